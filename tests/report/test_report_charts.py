"""Scales, marks, units, markup and terminal tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_family, made_run
from rich.console import Console

from potluck.report import compare_table, read_record, run_table, units
from potluck.report.html import Markup, palette, tag
from potluck.report.marks import BandMark, ColumnsMark, LineMark, thin
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


def test_a_chart_without_points_says_so() -> None:
    assert "Nothing recorded yet" in plot([LineMark(ONE, [])], PlotAxis("x"), PlotAxis("y"), "empty")


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(float(n), 0.0) for n in range(10_000)]
    points[777] = (777.0, 5.0)
    kept = thin(points)
    assert len(kept) <= 162
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (777.0, 5.0) in kept


def test_more_series_than_colours_differ_in_their_dashes() -> None:
    series = palette(map(str, range(20)))
    assert len({(one.colour, one.dash) for one in series}) == 20


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    made = tag("p", "<b>", tag("i", "&"), class_="a", data_tip='"><script>')
    assert made == '<p class="a" data-tip="&quot;&gt;&lt;script&gt;">&lt;b&gt;<i>&amp;</i></p>'
    assert isinstance(made, Markup)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(999), "999 B"),
        (units.format_bytes(12_345_678), "12.3 MB"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(99.5), "99.5 s"),
        (units.format_seconds(200), "3 min 20 s"),
        (units.format_seconds(3600), "1 h"),
        (units.format_seconds(3599.9), "60 min"),
        (units.format_seconds(90_000), "1 d 1 h"),
        (units.format_joules(4200), "4.2 kJ"),
        (units.format_flops(1.5e9), "1.5 GFLOP"),
        (units.format_percent(0.9312), "93.1 %"),
        (units.format_mean_sd(0.9, 0.012), "90.0 ± 1.2 %"),
        (units.format_mean_sd(0.9, None), "90.0 %"),
        (units.format_count(1_234_567), "1,234,567"),
        (units.format_bytes(None), "—"),
    ],
)
def test_numbers_read_as_people_write_them(written: str, expected: str) -> None:
    assert written == expected


def shown(table: object) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_terminal_table_has_a_row_per_tier_and_one_for_all(tmp_path: Path) -> None:
    run = read_record(made_run(tmp_path / "run", "[red]FedAvg[/red]"))
    text = shown(run_table(run))
    assert run.curve.final
    for words in ("watch", "phone", "laptop", "global", "22,666", "[red]FedAvg[/red]"):
        assert words in text
    assert units.format_percent(run.curve.final.score) in text
    assert units.format_bytes(run.totals.bytes_down) in text


def test_the_comparison_in_the_terminal_has_a_row_per_method(tmp_path: Path) -> None:
    text = shown(compare_table([read_record(folder) for folder in made_family(tmp_path)], 160))
    for name in ("FedAvg (smallest model)", "HeteroFL", "FedRolex", "watch", "phone", "laptop", "global"):
        assert name in text
    assert "±" in text
