"""The score against what it cost: joules of all devices, summed."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import manifest, task, write_folder

from potluck.report import write_report


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
