"""From values to places on a chart, and the round numbers along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from potluck.report.units import format_short


@dataclass(frozen=True)
class Axis:
    """What an axis means: its title, how its values are written, and where it must begin or end."""

    title: str
    kind: str = "plain"
    """plain | whole (rounds: no fractions) | percent (values in [0, 1])"""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    count: int = 5
    """About how many ticks."""
    tight: bool = False
    """Whether it ends with its values and not on the next tick."""

    def format(self, value: float) -> str:
        """A tick's label; the unit stands in the title."""
        return f"{100 * value:.3g} %" if self.kind == "percent" else format_short(value)

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Scale:
    """A straight line from values to places; `start` is where `low` lies."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scale(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """A scale that holds the values; ends that the axis leaves open fall on a tick, unless it is tight."""
    found = list(values)
    low = min(found, default=0.0) if axis.low is None else axis.low
    high = max(found, default=1.0) if axis.high is None else axis.high
    if high <= low:
        low, high = _widened(axis, low)
    step = _step(high - low, axis.count, 1.0 if axis.kind == "whole" else 0.0)
    if not axis.tight:
        low = math.floor(low / step + 1e-9) * step if axis.low is None else low
        high = math.ceil(high / step - 1e-9) * step if axis.high is None else high
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, start, end, tuple(round(index * step, 12) for index in range(first, last + 1)))


def _widened(axis: Axis, value: float) -> tuple[float, float]:
    """Room around a single value."""
    if axis.kind == "percent" and 0 <= value <= 1:
        return max(0.0, value - 0.05), min(1.0, max(0.0, value - 0.05) + 0.1)
    if axis.kind == "whole":
        return value, value + max(1.0, abs(value) / 10)
    return (value - abs(value) / 2, value + abs(value) / 2) if value else (0.0, 1.0)


def _step(span: float, count: int, least: float) -> float:
    """The step out of 1, 2, 5, 10, 20, … that gives about `count` ticks."""
    rough = max(span / count, least)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
