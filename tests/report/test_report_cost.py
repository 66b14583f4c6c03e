"""The score against what it cost: joules of all devices, summed."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import manifest, task, write_folder

from potluck.report import compare_rows, read_record, write_report


def made(folder: Path, label: str) -> Path:
    """Two rounds: a phone takes 2,000 J and then 3,000 J; the server's own 9,000 J are not the devices'."""
    events = [
        task(1, "c0", "phone", modelled_joules=2000),
        task(1, "server", "server", modelled_joules=9000),
        {"event": "round", "round": 1},
        task(2, "c0", "phone", modelled_joules=3000),
        {"event": "round", "round": 2},
    ]
    scores = [{"round": n, "global": {"test": {"accuracy": a}}} for n, a in ((0, 0.1), (1, 0.5), (2, 0.8))]
    return write_folder(folder, manifest(label), events, scores)


def charts(runs: list[Path], to: Path) -> list[dict[str, Any]]:
    page = write_report(runs, to).read_text("utf-8")
    found = [json.loads(html.unescape(text)) for text in re.findall(r'data-chart="([^"]*)"', page)]
    return [chart for chart in found if chart["x"]["title"] == "energy so far"]


@pytest.mark.parametrize("labels", [["FedAvg"], ["FedAvg", "Moss"]])
def test_accuracy_is_drawn_against_the_joules_of_all_devices(tmp_path: Path, labels: list[str]) -> None:
    (chart,) = charts([made(tmp_path / label, label) for label in labels], tmp_path / "report.html")
    assert chart["x"]["unit"] == "kJ"
    assert [line["points"] for line in chart["lines"]] == [[[0, 0.1], [2, 0.5], [5, 0.8]]] * len(labels)


def timed(folder: Path, label: str, server: float) -> Path:
    """Two rounds in which the phone takes 60 s and the server so many."""
    events: list[dict[str, object]] = []
    for index in (1, 2):
        events += [task(index, "c0", "phone", modelled_seconds=60), {"event": "round", "round": index}]
        events += [task(index, "server", "server", modelled_seconds=server)] if server else []
    scores = [{"round": n, "global": {"test": {"accuracy": a}}} for n, a in ((0, 0.1), (1, 0.5), (2, 0.8))]
    return write_folder(folder, manifest(label), events, scores)


def test_a_comparison_has_time_without_and_with_the_wait_for_the_server(tmp_path: Path) -> None:
    """Two minutes in the field each; FedDF's server takes another minute in every round."""
    folders = [timed(tmp_path / "a", "FedAvg", 0), timed(tmp_path / "b", "FedDF", 60)]
    runs = [read_record(folder) for folder in folders]
    rows = {row["label"]: row for row in compare_rows(runs)}
    times = {
        label: [row[key]["mean"] for key in ("device_seconds", "round_seconds")]  # type: ignore[index]
        for label, row in rows.items()
    }
    assert times == {"FedAvg": [120, 120], "FedDF": [120, 240]}
    page = write_report(folders, tmp_path / "report.html").read_text("utf-8")
    assert "time with the wait for the server (modelled)" in page
    (cells,) = (line for line in re.findall(r"<tr[^>]*>.*?</tr>", page) if "FedDF" in line and "4 min" in line)
    assert re.findall(r"\d min", cells) == ["2 min", "4 min"]


def test_a_runs_page_has_the_wait_only_where_the_server_computes(tmp_path: Path) -> None:
    with_work, without = (
        write_report([timed(tmp_path / label, label, server)], tmp_path / f"{label}.html").read_text("utf-8")
        for label, server in (("FedDF", 60.0), ("FedAvg", 0.0))
    )
    assert "with the wait for the server" in with_work
    assert "with server" in with_work
    assert "wait for the server" not in without
    assert "with server" not in without
