"""The final score against cost, and its front."""

from __future__ import annotations

import html
import re
from pathlib import Path

from made_runs import made_everything, made_run, manifest, task, write_folder

from potluck.report import write_report
from potluck.report.scatter import pareto_front, place_labels


def test_the_front_holds_what_no_other_beats_in_cost_and_score() -> None:
    points = [(3.0, 0.9), (1.0, 0.5), (2.0, 0.8), (2.5, 0.7), (2.0, 0.6), (4.0, 0.9), (1.0, 0.5)]
    assert pareto_front(points) == [(1.0, 0.5), (2.0, 0.8), (3.0, 0.9)]
    assert pareto_front([]) == []


def one_task(folder: Path, label: str, score: float, amount: float, **changes: object) -> Path:
    costs = {"bytes_down": amount, "modelled_seconds": amount, "modelled_joules": amount, "modelled_flops": amount}
    events = [task(1, "c0", "phone", **costs), {"event": "round", "round": 1}]
    scores = [{"round": 1, "global": {"test": {"accuracy": score}}}]
    return write_folder(folder, manifest(label, **changes), events, scores)


def scatter(folders: list[Path], to: Path) -> str:
    page = write_report(folders, to).read_text("utf-8")
    part = page[page.index("<h2>Cost") :]
    return part[: part.index("</section>")]


def test_a_run_without_a_result_is_not_in_it_and_a_bound_is_hollow_and_not_on_the_front(tmp_path: Path) -> None:
    lost = {"status": "diverged", "fault_round": 1}
    folders = [
        one_task(tmp_path / "a", "cheap", 0.5, 1000),
        one_task(tmp_path / "b", "good", 0.8, 5000),
        one_task(tmp_path / "c", "bound", 0.9, 500, facts={"networks": "one", "bound": True}),
        one_task(tmp_path / "d", "lost", 0.99, 100, **lost),
    ]
    part = scatter(folders, tmp_path / "page.html")
    assert re.findall(r'data-tab="([^"]*)"', part) == [
        "Traffic (measured)", "Time in the field (modelled)", "Energy (modelled)", "Compute (modelled)",
    ]  # fmt: skip
    first = part[: part.index("Time in the field (modelled)</h4>")]
    tips = re.findall(r'style="([^"]*)" data-tip="([^"]*)"', first)
    assert [(tip, "fill:none" in style) for style, tip in tips] == [
        ("cheap: 50.0 % for 1 kB, 1 seed", False),
        ("good: 80.0 % for 5 kB, 1 seed", False),
        ("bound: 90.0 % for 500 B, 1 seed", True),
    ]
    assert "bound ‡" in first
    assert "lost" not in first.split("<table")[0].replace('class="lost"', "")
    path = re.findall(r'd="([^"]*)" class="front"', first)[0]
    assert len(re.findall("V", path)) == 1  # two methods: one step


def test_costs_that_span_over_two_decades_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    wide = [one_task(tmp_path / f"w{n}", f"w{n}", 0.5, 10.0**n) for n in range(2, 7)]
    near = [one_task(tmp_path / f"n{n}", f"n{n}", 0.5, 100.0 * n) for n in range(1, 6)]
    assert "A logarithmic axis." in scatter(wide, tmp_path / "a.html")
    assert "A logarithmic axis." not in scatter(near, tmp_path / "b.html")


def test_labels_overlap_no_other_label_and_no_point() -> None:
    points = [(100.0 + 13 * (n % 6), 100.0 + 9 * (n // 6), f"Method {n}") for n in range(30)]
    found = [place.box for place in place_labels(points, (0.0, 800.0, 0.0, 400.0)) if place]
    assert len(found) >= 25
    boxes = [*found, *((x - 4, x + 4, y - 4, y + 4) for x, y, _ in points)]
    for index, one in enumerate(found):
        for other in boxes[index + 1 :]:
            assert not (one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3])
        assert one[0] >= 0
        assert one[1] <= 800


def test_all_of_31_methods_have_their_name_beside_them(tmp_path: Path) -> None:
    part = scatter(made_everything(tmp_path / "runs", rounds=2), tmp_path / "page.html")
    for tab in part.split("data-tab=")[1:]:
        chart = tab[: tab.index("</svg>")]
        assert len(re.findall('class="word"', chart)) == chart.count("data-tip") == 30


def test_hostile_labels_stay_text_in_it(tmp_path: Path) -> None:
    nasty = "</text><script>alert(1)</script>"
    part = scatter([made_run(tmp_path / name, name + nasty, rounds=2) for name in "ab"], tmp_path / "page.html")
    assert "<script" not in part
    assert html.escape("a" + nasty, quote=False)[:20] in part
