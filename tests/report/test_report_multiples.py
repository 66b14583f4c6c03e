"""Charts with a line per method: few in one chart, many in small charts by family."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_everything, made_family, made_run

from potluck.report import read_record, write_report
from potluck.report.html import Series, palette
from potluck.report.marks import BandMark, LineMark
from potluck.report.multiples import group_methods, method_charts, split_methods, take_turns
from potluck.report.records import RunRecord
from potluck.report.svg import Mark, PlotAxis

ONE, TWO, THREE = palette(["one", "two", "three"])


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("everything")
    return write_report(made_everything(base / "runs", rounds=4), base / "page.html").read_text("utf-8")


def run_of(label: str, variant: str = "", **facts: object) -> RunRecord:
    return RunRecord(Path(label), label, label, variant, label.lower(), manifest={"facts": facts})


def learning(page: str) -> list[str]:
    """The figures of the section on learning."""
    part = page[page.index("<h2>Learning") :]
    return re.findall(r"<figure>.*?</figure>", part[: part.index("</section>")])


def charts(figures: list[str]) -> list[dict[str, Any]]:
    return [json.loads(html.unescape(found)) for one in figures for found in re.findall(r'data-chart="([^"]*)"', one)]


def test_31_methods_are_charts_by_family_and_none_repeats_a_colour(everything: str) -> None:
    figures = learning(everything)
    captions = [re.findall("<figcaption>(.*?)<", one)[0] for one in figures]
    families = ["Width", "Depth, layer by layer", "Architecture", "Personal masks", "One network (1 of 2)"]
    assert captions == [*families, "One network (2 of 2)", "References"] * 4
    for chart in charts(figures):
        colours = [line["colour"] for line in chart["lines"]]
        assert 1 < len(colours) <= 8
        assert len(set(colours)) == len(colours)
    named = [line["label"] for chart in charts(figures[:7]) for line in chart["lines"]]
    assert len(named) == len(set(named)) == 30  # FedMask diverged


def test_small_charts_share_their_scales_and_have_the_others_behind(everything: str) -> None:
    figures = learning(everything)[:7]
    scales = [[(chart[side]["low"], chart[side]["high"]) for side in "xy"] for chart in charts(figures)]
    assert all(scale == scales[0] for scale in scales)
    for one, chart in zip(figures, charts(figures), strict=True):
        assert one.count('class="line behind"') == 30 - len(chart["lines"])


def test_bands_of_any_chart_count_for_the_scale_of_all() -> None:
    methods = [(series, [run_of(series.label, networks="one")]) for series in palette(f"M{n}" for n in range(9))]

    def draw(series: Series, _: list[RunRecord]) -> list[Mark]:
        return [BandMark(series, [(0.0, 0.0, float(series.key[1:]))]), LineMark(series, [(0.0, 0.5), (1.0, 0.5)])]

    drawn = charts([method_charts("all", methods, draw, PlotAxis("x"), PlotAxis("y"), "all")])
    assert [chart["y"]["high"] for chart in drawn] == [8.0, 8.0]


def test_few_methods_stay_in_one_chart(tmp_path: Path) -> None:
    figures = learning(write_report(made_family(tmp_path / "runs"), tmp_path / "page.html").read_text("utf-8"))
    assert len(figures) == 4
    assert "behind" not in "".join(figures)


def test_a_family_with_more_methods_than_colours_is_split_into_parts_of_about_one_size() -> None:
    names = [f"M{index}" for index in range(17)]
    methods = [(series, [run_of(series.label, networks="one")]) for series in palette(names)]
    methods += [(series, [run_of(series.label, networks="width")]) for series in palette(["W"], 17)]
    found = split_methods(methods)
    assert list(found) == ["Width", "One network (1 of 3)", "One network (2 of 3)", "One network (3 of 3)"]
    assert [len(part) for part in found.values()] == [1, 6, 6, 5]
    assert [series.colour for series, _ in found["Width"]] == ["var(--c0)"]
    assert {series.key for part in found.values() for series, _ in part} == {series.key for series, _ in methods}


def test_methods_under_variants_have_a_chart_each() -> None:
    labels = [(method, f"lr = {rate}") for method in ("A", "B") for rate in range(1, 6)]
    series = palette(f"{method}, {variant}" for method, variant in labels)
    methods = [
        (one, [run_of(f"{method}, {variant}", variant)]) for one, (method, variant) in zip(series, labels, strict=True)
    ]
    assert {name: [one.label for one, _ in some] for name, some in group_methods(methods).items()} == {
        name: [f"lr = {rate}" for rate in range(1, 6)] for name in "AB"
    }


def test_lines_on_each_other_take_turns_and_others_stay_whole() -> None:
    rising = [(float(x), x / 10) for x in range(10)]
    marks = take_turns([LineMark(ONE, rising), LineMark(TWO, [(x, 1 - y) for x, y in rising]), LineMark(THREE, rising)])
    assert [mark.turn for mark in marks if isinstance(mark, LineMark)] == [(0, 2), (0, 1), (1, 2)]


def test_lines_of_unequal_length_are_compared_where_both_are() -> None:
    long, short = [(float(x), 0.5) for x in range(10)], [(float(x), 0.5) for x in range(6)]
    away = [(float(x), 0.9) for x in range(6)]
    turns = [mark.turn for mark in take_turns([LineMark(ONE, long), LineMark(TWO, short), LineMark(THREE, away)])]  # type: ignore[attr-defined]
    assert turns == [(0, 2), (1, 2), (0, 1)]


def test_dashes_that_mean_something_take_no_part() -> None:
    line = [(0.0, 0.5), (1.0, 0.6)]
    marks = take_turns([LineMark(ONE, line), LineMark(ONE, line, "4 4"), LineMark(TWO, line)])
    assert [mark.turn for mark in marks if isinstance(mark, LineMark)] == [(0, 2), (0, 1), (1, 2)]


def test_fedprox_on_fedavg_is_dashed_in_the_page(everything: str) -> None:
    figure = learning(everything)[4]
    assert re.findall(r'stroke-dasharray="([^"]*)" stroke-dashoffset="([^"]*)"', figure) == [("7 7", "-7")]


def test_a_point_at_the_pointer_has_its_deviation_and_its_seeds(tmp_path: Path) -> None:
    folders = made_family(tmp_path / "runs")
    chart = charts(learning(write_report(folders, tmp_path / "page.html").read_text("utf-8")))[0]
    finals = [run.curve.final.score for run in map(read_record, folders[:2]) if run.curve.final]
    first, second = (score or 0.0 for score in finals)
    assert chart["lines"][0]["spreads"][-1] == [pytest.approx(abs(first - second) / 2**0.5, rel=1e-2), 2]
    single = [made_run(tmp_path / name, name, rounds=2) for name in "ab"]
    assert (
        "spreads" not in charts(learning(write_report(single, tmp_path / "b.html").read_text("utf-8")))[0]["lines"][0]
    )
