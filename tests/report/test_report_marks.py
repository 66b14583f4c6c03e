"""Marks: drawn where their values lie."""

from __future__ import annotations

from potluck.report.coverage import make_steps
from potluck.report.html import palette
from potluck.report.marks import BandMark, ColumnsMark, LineMark, StepsMark, thin
from potluck.report.svg import PlotAxis, make_scale

ONE = palette(["one"])[0]


def test_a_line_is_drawn_where_its_points_lie() -> None:
    drawn = LineMark(ONE, [(0, 0.0), (1, 1.0)]).draw(
        make_scale(PlotAxis("x"), [0, 1], 0, 100), make_scale(PlotAxis("y"), [0, 1], 50, 0)
    )
    assert 'd="M0.0 50.0L100.0 0.0"' in drawn


def test_a_band_closes_over_its_lower_edge() -> None:
    across, up = make_scale(PlotAxis("x"), [0, 1], 0, 100), make_scale(PlotAxis("y"), [0, 1], 100, 0)
    drawn = BandMark(ONE, [(0, 0.2, 0.4), (1, 0.5, 0.7)]).draw(across, up)
    assert 'd="M0.0 60.0L100.0 30.0L100.0 50.0L0.0 80.0Z"' in drawn


def test_columns_stand_on_zero() -> None:
    across, up = make_scale(PlotAxis("x", tight=True), [-0.5, 0.5], 0, 100), make_scale(PlotAxis("y"), [0, 1], 100, 0)
    assert 'x="14.0" y="25.0" width="72.0" height="75.0"' in ColumnsMark(ONE, [(0, 0.75, "")]).draw(across, up)


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(float(n), 0.0) for n in range(10_000)]
    points[777] = (777.0, 5.0)
    kept = thin(points)
    assert len(kept) <= 162
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (777.0, 5.0) in kept


def test_steps_keep_their_height_and_break_where_nothing_is_known() -> None:
    across, up = make_scale(PlotAxis("x", tight=True), [-0.5, 3.5], 0, 40), make_scale(PlotAxis("y"), [0, 10], 100, 0)
    drawn = StepsMark(ONE, make_steps([5, 10, None, 5])).draw(across, up)
    assert 'd="M0.0 50.0H10.0V0.0H20.0M30.0 50.0H40.0"' in drawn
    assert "band" not in drawn
    banded = StepsMark(ONE, make_steps([4, 6, 10, 10], most=2)).draw(across, up)
    assert 'd="M0.0 40.0H20.0V0.0H40.0L40.0 0.0H20.0V60.0H0.0Z"' in banded
