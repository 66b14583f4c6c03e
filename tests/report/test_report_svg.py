"""Scales and the frame of a chart."""

from __future__ import annotations

import html
import json
import re

import pytest

from potluck.report.html import palette
from potluck.report.marks import LineMark
from potluck.report.svg import PlotAxis, make_scale, plot, spans_decades

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


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors_and_ticks_at_powers_of_ten() -> None:
    scale = make_scale(PlotAxis("lr", log=True), [0.001, 0.01, 10.0], 0, 100)
    assert scale.ticks == (0.001, 0.01, 0.1, 1.0, 10.0)
    assert scale(0.01) - scale(0.001) == pytest.approx(scale(10.0) - scale(1.0))
    assert 0 < scale(0.001) < scale(10.0) < 100
    assert 0.005 in scale.minor


def test_a_short_logarithmic_scale_has_ticks_at_one_two_and_five() -> None:
    assert make_scale(PlotAxis("lr", log=True), [0.01, 0.1], 0, 100).ticks == (0.01, 0.02, 0.05, 0.1)
    assert make_scale(PlotAxis("lr", log=True), [0.3], 0, 100).low < 0.3


def test_numbers_span_decades_if_they_are_positive_and_far_apart() -> None:
    assert spans_decades([1.0, 101.0])
    assert not spans_decades([1.0, 100.0])
    assert not spans_decades([0.0, 1000.0])
    assert not spans_decades([])


def test_a_padded_axis_begins_near_the_data_and_shows_no_percents_that_cannot_be() -> None:
    axis = PlotAxis("accuracy", "percent", tight=True, pad=0.1)
    near = make_scale(axis, [0.8, 0.9], 0, 100)
    assert (near.low, near.high) == (pytest.approx(0.79), pytest.approx(0.91))
    whole = make_scale(axis, [0.0, 1.0], 0, 100)
    assert (whole.low, whole.high) == (0.0, 1.0)


def test_a_chart_that_does_not_begin_at_zero_can_be_made_to() -> None:
    axis = PlotAxis("accuracy", "percent", tight=True)
    drawn = plot([LineMark(ONE, [(0, 0.8), (1, 0.9)])], PlotAxis("x"), axis, "near")
    (found,) = re.findall(r'data-zero="([^"]*)"', drawn)
    data, zero = json.loads(html.unescape(found))["scales"]
    assert (data["low"], zero["low"], zero["high"]) == (0.8, 0.0, 0.9)
    assert zero["ticks"][:2] == [[0.0, "0 %"], [0.2, "20 %"]]
    assert "data-zero" not in plot([LineMark(ONE, [(0, 0.0), (1, 0.9)])], PlotAxis("x"), axis, "from zero")
    assert "data-zero" not in plot([LineMark(ONE, [(0, -0.5), (1, 0.9)])], PlotAxis("x"), axis, "below")
    assert "data-zero" not in plot([LineMark(ONE, [(0, 0.8)])], PlotAxis("x"), PlotAxis("loss", low=0.0), "fixed")
