"""Numbers as text: bytes, seconds, joules, counts, percent, and the values of a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = "—"
"""Shown where a value is unknown."""

Units = tuple[tuple[float, str], ...]
"""(factor, name) of each unit, the largest first."""

_BYTES: Units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS: Units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_JOULES: Units = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
_FLOPS: Units = (
    (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"),
)  # fmt: skip


def format_short(value: float | None) -> str:
    """A number with three significant digits, without a power of ten where possible."""
    if value is None:
        return GAP
    if value == 0:
        return "0"
    if 100 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_plain(value: float | None, digits: int) -> str:
    """A number with a fixed number of decimals."""
    return GAP if value is None else f"{value:.{digits}f}"


def format_percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as percent."""
    return GAP if value is None else f"{100 * value:.{digits}f} %"


def format_mean_sd(mean: float | None, sd: float | None) -> str:
    """A mean and its standard deviation, both shares in [0, 1], as percent."""
    if mean is None or sd is None:
        return format_percent(mean)
    return f"{100 * mean:.1f} ± {100 * sd:.1f} %"


def format_count(value: float | None) -> str:
    """A whole number with commas between the thousands."""
    return GAP if value is None else f"{value:,.0f}"


def format_mean_round(rounds: Sequence[float | None]) -> str:
    """The mean of the rounds in which runs reached a target; adds how many runs did, if not all."""
    known = [value for value in rounds if value is not None]
    if not known:
        return GAP
    some = f" ({len(known)} of {len(rounds)} runs)" if len(known) < len(rounds) else ""
    return f"{format_short(sum(known) / len(known))}{some}"


def format_bytes(value: float | None) -> str:
    """Bytes, in powers of a thousand."""
    return _format(value, _BYTES)


def format_joules(value: float | None) -> str:
    """Energy."""
    return _format(value, _JOULES)


def format_flops(value: float | None) -> str:
    """Floating-point operations."""
    return _format(value, _FLOPS)


def format_seconds(value: float | None) -> str:
    """A duration; from two minutes on in two units."""
    if value is None or value < 120:
        return _format(value, _SECONDS[3:])
    for (factor, unit), (smaller_factor, smaller_unit) in pairwise(_SECONDS):
        if value >= factor:
            whole, rest = divmod(round(value / smaller_factor), round(factor / smaller_factor))
            return f"{whole} {unit} {rest} {smaller_unit}" if rest else f"{whole} {unit}"
    return _format(value, _SECONDS)


def _format(value: float | None, units: Units) -> str:
    if value is None:
        return GAP
    if value == 0:
        return f"0 {next(name for factor, name in units if factor == 1.0)}"
    factor, unit = next((pair for pair in units if abs(value) >= pair[0]), units[-1])
    return f"{format_short(value / factor)} {unit}"


def format_limit(kind: str, value: float) -> str:
    """A budget of rounds, bytes, time, energy or flops with its unit and all its digits."""
    if kind == "time" and value >= 120:
        return format_seconds(value)
    units = {"bytes": _BYTES, "time": _SECONDS[3:], "energy": _JOULES, "flops": _FLOPS}.get(kind, ((1.0, kind),))
    factor, unit = next((pair for pair in units if value >= pair[0]), units[-1])
    return f"{value / factor:,.6g} {unit}"


def byte_unit(most: float) -> tuple[float, str]:
    """The factor and name of the unit for an axis of bytes that ends at `most`."""
    return _axis_unit(most, _BYTES)


def time_unit(most: float) -> tuple[float, str]:
    """The factor and name of the unit for an axis of seconds that ends at `most`."""
    return _axis_unit(most, _SECONDS[:4])


def energy_unit(most: float) -> tuple[float, str]:
    """The factor and name of the unit for an axis of joules that ends at `most`."""
    return _axis_unit(most, _JOULES)


def flop_unit(most: float) -> tuple[float, str]:
    """The factor and name of the unit for an axis of floating-point operations that ends at `most`."""
    return _axis_unit(most, _FLOPS)


def _axis_unit(most: float, units: Units) -> tuple[float, str]:
    return next((pair for pair in units if most >= 2 * pair[0]), units[-1])


METRIC_NAMES = {"f1": "F1", "matthews": "Matthews correlation", "pearson": "Pearson correlation"}
"""The text for metrics whose name in the run folder is not the text to show."""
CORRELATIONS = {"matthews", "pearson"}
"""Metrics in [-1, 1], which are not shown in percent."""


@dataclass(frozen=True)
class MetricFormat:
    """How the values of one metric are written: its name, and percent or plain numbers."""

    name: str = "accuracy"
    percent: bool = True

    @classmethod
    def of_metric(cls, metric: str) -> MetricFormat:
        """The format of the metric that a run folder calls by this name."""
        return cls(METRIC_NAMES.get(metric, metric), metric not in CORRELATIONS)

    @property
    def unit(self) -> str:
        """The unit as a heading writes it, so that no cell has to repeat it."""
        return " in %" if self.percent else ""

    def format(self, value: float | None, digits: int = 1) -> str:
        """One value with its unit."""
        return format_percent(value, digits) if self.percent else format_plain(value, digits + 2)

    def format_target(self, value: float) -> str:
        """A target score with its unit and all its digits."""
        if self.percent:
            return f"{100 * value:.6g} %"
        return max(f"{value:.2f}", f"{value:.6g}", key=len)

    def format_mean_sd(self, mean: float | None, sd: float | None) -> str:
        """A mean and its standard deviation with their unit."""
        if self.percent:
            return format_mean_sd(mean, sd)
        return format_plain(mean, 3) if mean is None or sd is None else f"{mean:.3f} ± {sd:.3f}"

    def format_cell(self, mean: float | None, sd: float | None = None) -> str:
        """The same without the unit, for a table whose heading names it."""
        return self.format_mean_sd(mean, sd).removesuffix(" %")

    def format_difference(self, value: float) -> str:
        """The difference of two values."""
        return f"{self.format_bare_difference(value)} points" if self.percent else self.format_bare_difference(value)

    def format_bare_difference(self, value: float) -> str:
        """The same without the unit."""
        shown = f"{100 * value:.1f}" if self.percent else format_plain(value, 3)
        return shown.removeprefix("-") if not float(shown) else shown

    def format_interval(self, low: float, high: float) -> str:
        """Two ends of an interval of differences, without the unit."""
        return f"{self.format_bare_difference(low)} to {self.format_bare_difference(high)}"
