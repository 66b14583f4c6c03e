"""Numbers as text."""

from __future__ import annotations

import pytest

from potluck.report import MetricFormat, units
from potluck.report.units import energy_unit


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


def test_an_axis_of_joules_has_the_unit_that_its_end_suggests() -> None:
    assert [energy_unit(most) for most in (0.0, 1.5, 1999, 2000, 7.2e6)] == [
        (1e-3, "mJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ"),
    ]  # fmt: skip


def test_a_metric_says_its_unit() -> None:
    share, correlation = MetricFormat.of_metric("f1"), MetricFormat.of_metric("pearson")
    assert (share.name, share.unit, share.format(0.931), share.format_cell(0.9, 0.012)) == (
        "F1",
        " in %",
        "93.1 %",
        "90.0 ± 1.2",
    )
    assert (correlation.name, correlation.unit, correlation.format(0.931)) == ("Pearson correlation", "", "0.931")
    assert (correlation.format_mean_sd(0.9, 0.012), correlation.format(0.8, 0)) == ("0.900 ± 0.012", "0.80")
    assert correlation.format(None) == "—"


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    share, correlation = MetricFormat.of_metric("accuracy"), MetricFormat.of_metric("matthews")
    assert (share.format_difference(-0.0004), share.format_difference(-0.021)) == ("0.0 points", "-2.1 points")
    assert correlation.format_interval(-0.0004, 0.25) == "0.000 to 0.250"
