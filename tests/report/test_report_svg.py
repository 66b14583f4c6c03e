"""Scales and the frame of a chart."""

from __future__ import annotations

import pytest

from potluck.report.html import palette
from potluck.report.marks import LineMark
from potluck.report.svg import PlotAxis, make_scale, plot

ONE = palette(["one"])[0]


@pytest.mark.parametrize(
    ("axis", "values", "ticks"),
    [
        (PlotAxis("accuracy", "percent"), [0.1, 0.93], (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (PlotAxis("round", "whole", tight=True), [0, 3], (0.0, 1.0, 2.0, 3.0)),
        (PlotAxis("round", "whole", tight=True), [0, 47], (0.0, 10.0, 20.0, 30.0, 40.0)),
        (PlotAxis("loss", low=0.0), [2.3], (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)),
    ],
)
def test_ticks_are_round_numbers(axis: PlotAxis, values: list[float], ticks: tuple[float, ...]) -> None:
    assert make_scale(axis, values, 0, 100).ticks == ticks


def test_a_scale_maps_its_ends_onto_the_frame() -> None:
    line = make_scale(PlotAxis("x", tight=True), [2.0, 4.0], 10, 110)
    assert (line(2.0), line(3.0), line(4.0)) == (10, 60, 110)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.4, -3.0, 1e9])
@pytest.mark.parametrize("kind", ["plain", "percent", "whole"])
def test_a_single_value_still_gets_an_axis(value: float, kind: str) -> None:
    line = make_scale(PlotAxis("x", kind), [value], 0, 100)
    assert line.low < line.high


def test_a_chart_without_points_says_so() -> None:
    assert "Nothing recorded yet" in plot([LineMark(ONE, [])], PlotAxis("x"), PlotAxis("y"), "empty")
