"""The notebooks: kept without outputs, short, and executed as a reader would."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
WHOLE = ROOT / "examples" / "own_data_and_network.ipynb"
"""Runs, interrupts, resumes, compares own arrays with an own network under an own method, and goes out into a paper."""


def cells(path, kind="code"):
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == kind]


def code_lines(path):
    text = [line for cell in cells(path) for line in "".join(cell["source"]).splitlines()]
    return [line for line in text if line.strip() and not line.strip().startswith("#")]


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_data_and_network", "own_method"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_begins_with_words(path):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path))
    assert json.loads(path.read_text("utf-8"))["cells"][0]["cell_type"] == "markdown"


def test_the_whole_way_from_arrays_to_a_paper_takes_fewer_than_40_lines():
    assert len(code_lines(WHOLE)) < 40


def execute(path, folder):
    """The outputs of every code cell of a notebook that ran in this folder."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = nbformat.read(path, as_version=4)
    client(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": os.fspath(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def data_of(outputs, kind):
    """What the outputs of a cell hold of this type; what changed in place counts as it was last."""
    return [one["data"][kind] for one in outputs if kind in one.get("data", {})]


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path != WHOLE], ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    outputs = execute(path, tmp_path)
    assert not [one for cell in outputs for one in cell if one["output_type"] == "error"]
    assert any(data_of(cell, "image/png") for cell in outputs)
    assert any("<progress" in text for cell in outputs for text in data_of(cell, "text/html"))


@pytest.mark.slow
def test_a_notebook_goes_from_own_arrays_to_a_paper_over_an_interruption(tmp_path):
    _, _, stopped, resumed, used, compared, frame, latex, plotted = execute(WHOLE, tmp_path)
    [fault] = [one for one in stopped if one["output_type"] == "error"]
    line = "Interrupted: interrupted after round 2; go on with: pl.resume('runs/gait', data=...)"
    assert fault["traceback"] == [line]
    assert any("RootRolex" in text and "6 rounds" in text for text in data_of(resumed, "text/html"))
    assert data_of(used, "text/plain")[0].startswith("tensor([")
    assert all(name in data_of(compared, "text/html")[-1] for name in ("HeteroFL", "FedRolex", "RootRolex"))
    assert "RootRolex" in data_of(frame, "text/html")[0]
    table = "".join(one["text"] for one in latex if one["output_type"] == "stream")
    assert table.count("\\begin{tabular}{lrrrr}") == 1
    assert table.count(" \\\\\n") == 4
    assert data_of(plotted, "image/png")
    pdf = (tmp_path / "learning.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    scores = [json.loads(line) for line in (tmp_path / "runs/gait/scores.jsonl").read_text().splitlines()]
    assert [line["round"] for line in scores] == list(range(7))
