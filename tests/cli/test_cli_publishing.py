"""`potluck table` and `potluck plot`."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))

from made_runs import made_run

from potluck.report import compare_rows, read_record


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two methods of two seeds each."""
    base = tmp_path_factory.mktemp("runs")
    for label in ("FedAvg", "HeteroFL"):
        for seed in (0, 1):
            made_run(base / f"{label}-{seed}", label, seed, rounds=3)
    return base


def test_table_prints_what_compare_counts(potluck, runs):
    code, out, err = potluck("table", runs, "--to", "csv", "--columns", "global,bytes")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    counted = compare_rows([read_record(folder) for folder in sorted(runs.iterdir())])
    assert [float(row["global_mean"]) for row in rows] == [row["global"]["mean"] for row in counted]
    assert [float(row["bytes_sd"]) for row in rows] == [row["bytes"]["sd"] for row in counted]


@pytest.mark.parametrize(
    ("to", "start"), [("latex", "% \\usepackage{booktabs}"), ("markdown", "| method |"), ("json", "[")]
)
def test_table_writes_a_file(potluck, runs, place, to, start):
    code, out, _ = potluck("table", runs, "--to", to, "-o", "deep/table.txt")
    assert (code, out) == (0, "table: deep/table.txt\n")
    assert (place / "deep/table.txt").read_text().startswith(start)


def test_table_of_json_is_one_value(potluck, runs):
    _, out, _ = potluck("table", runs, "--to", "json")
    assert [row["method"] for row in json.loads(out)] == ["FedAvg", "HeteroFL"]


def test_an_unknown_column_is_one_line_with_the_nearest_name(fail, runs):
    code, line = fail("table", runs, "--to", "csv", "--columns", "bites")
    assert code == 2
    assert line.endswith("the table has no column 'bites'. Did you mean 'bytes'?")


def test_a_folder_without_runs_is_one_line(fail, place):
    code, line = fail("table", place, "--to", "csv")
    assert code == 3
    assert "is not a run folder" in line


def test_a_misspelt_folder_among_several_is_refused_by_its_name(fail, runs):
    code, line = fail("table", runs / "FedAvg-0", runs / "FedAgv-1", "--to", "csv")
    assert code == 3
    assert "FedAgv-1 is not a run folder and holds none" in line


def test_a_budget_is_asked_of_a_table_and_of_a_report(potluck, fail, runs, place):
    code, out, _ = potluck("table", runs, "--to", "json", "--columns", "at_budget", "--budget", "rounds=2")
    assert code == 0
    wanted = {"FedAvg": [], "HeteroFL": []}
    for folder in sorted(runs.iterdir()):
        record = read_record(folder)
        wanted[record.label] += [record.curve.points[2].score]
    assert {row["method"]: row["rounds=2"]["mean"] for row in json.loads(out)} == {
        name: pytest.approx(sum(scores) / 2) for name, scores in wanted.items()
    }
    assert potluck("report", runs, "--to", "page.html", "--budget", "rounds=2")[0] == 0
    assert "at 2 rounds" in (place / "page.html").read_text()
    code, line = fail("table", runs, "--to", "csv", "--budget", "energi=5")
    assert (code, "did you mean 'energy'?" in line) == (2, True)
    assert "write it as cost=amount" in fail("table", runs, "--to", "csv", "--budget", "energy")[1]


@pytest.mark.parametrize(
    ("options", "name", "start"),
    [
        ((), "learning.pdf", b"%PDF"),
        (("--what", "cost", "--cost", "energy", "--to", "svg"), "cost.svg", b"<?xml"),
        (("--what", "tiers", "--to", "png", "--columns", "2"), "tiers.png", b"\x89PNG"),
    ],
)
def test_plot_writes_beside_the_runs(potluck, runs, options, name, start):
    pytest.importorskip("matplotlib")
    code, out, err = potluck("plot", runs, *options)
    assert (code, out, err) == (0, f"plot: {runs / name}\n", "")
    assert (runs / name).read_bytes().startswith(start)


def test_the_ending_of_the_file_is_the_format(potluck, runs, place):
    pytest.importorskip("matplotlib")
    assert potluck("plot", runs, "-o", "curve.svg")[0] == 0
    assert (place / "curve.svg").read_bytes().startswith(b"<?xml")


def test_a_file_of_another_ending_is_refused_in_one_line(fail, runs):
    pytest.importorskip("matplotlib")
    code, line = fail("plot", runs, "-o", "curve.docx")
    assert code == 2
    assert line.endswith("curve.docx: a plot is written as pdf, svg, png; give the file such an ending.")


def test_a_format_that_the_ending_of_the_file_contradicts_is_refused(fail, runs, place):
    code, line = fail("plot", runs, "--to", "png", "-o", "a.pdf")
    assert code == 2
    assert "a.pdf ends in .pdf, but png was asked for" in line
    assert not (place / "a.pdf").exists()


def test_coverage_that_was_not_recorded_is_one_line(fail, runs):
    pytest.importorskip("matplotlib")
    code, line = fail("plot", runs, "--what", "coverage")
    assert code == 3
    assert "no run here recorded how often units were trained" in line


def test_without_matplotlib_one_line_names_the_extra(runs):
    program = (
        f"import sys\nsys.modules['matplotlib'] = None\nfrom potluck.cli import main\nmain(['plot', {str(runs)!r}])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 6
    assert found.stderr == "potluck: a plot needs the package matplotlib: pip install 'potluck[plot]'\n"
