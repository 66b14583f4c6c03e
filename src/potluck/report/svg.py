"""Charts as inline SVG: axes, scales, and the frame in which marks are drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.report.html import Markup, join, tag
from potluck.report.units import format_short

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 28.0, 44.0
"""Margins around the marks."""


@dataclass(frozen=True)
class PlotAxis:
    """One axis of a chart: its title, its unit, how its values are written and where it must begin or end."""

    title: str
    kind: str = "plain"
    """plain | whole (no fractions, for rounds) | percent (values in [0, 1])"""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    count: int = 5
    """About how many ticks."""
    tight: bool = False
    """Whether the axis ends at its last value instead of at the next tick."""

    def format(self, value: float) -> str:
        """The label of a tick, without the unit."""
        return f"{100 * value:.3g} %" if self.kind == "percent" else format_short(value)

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


ROUND_AXIS = PlotAxis("round", "whole", low=0.0, tight=True)


@dataclass(frozen=True)
class LinearScale:
    """A linear map from values to coordinates: `low` to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def make_scale(axis: PlotAxis, values: Iterable[float], start: float, end: float) -> LinearScale:
    """A scale that contains the values. An end that the axis leaves open moves to a tick, unless the axis is tight."""
    known = list(values)
    low = min(known, default=0.0) if axis.low is None else axis.low
    high = max(known, default=1.0) if axis.high is None else axis.high
    if high <= low:
        low, high = _range_around(axis, low)
    step = _tick_step(high - low, axis.count, 1.0 if axis.kind == "whole" else 0.0)
    if not axis.tight:
        low = math.floor(low / step + 1e-9) * step if axis.low is None else low
        high = math.ceil(high / step - 1e-9) * step if axis.high is None else high
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return LinearScale(low, high, start, end, tuple(round(index * step, 12) for index in range(first, last + 1)))


def _range_around(axis: PlotAxis, value: float) -> tuple[float, float]:
    """A range around a single value."""
    if axis.kind == "percent" and 0 <= value <= 1:
        return max(0.0, value - 0.05), min(1.0, max(0.0, value - 0.05) + 0.1)
    if axis.kind == "whole":
        return value, value + max(1.0, abs(value) / 10)
    return (value - abs(value) / 2, value + abs(value) / 2) if value else (0.0, 1.0)


def _tick_step(span: float, count: int, least: float) -> float:
    """The step out of 1, 2, 5, 10, 20, … that gives about `count` ticks."""
    rough = max(span / count, least)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


class Mark(Protocol):
    """Something that a chart draws: a line, bars, dots. `marks.py` has them all."""

    def extent(self) -> Iterable[tuple[float, float]]:
        """Points that the axes must contain."""
        ...

    def draw(self, x: LinearScale, y: LinearScale) -> Markup: ...

    def hover_data(self) -> dict[str, object] | None:
        """The key, label, colour and points that the page's script shows at the pointer; None if there are none."""
        ...


def plot(marks: Sequence[Mark], x: PlotAxis, y: PlotAxis, name: str) -> Markup:
    """A chart with axes and marks. `name` describes it to screen readers."""
    extent = [point for mark in marks for point in mark.extent()]
    if not extent:
        return tag("p", "Nothing recorded yet.", class_="empty")
    x_scale = make_scale(x, (value for value, _ in extent), LEFT, WIDTH - RIGHT)
    y_scale = make_scale(y, (value for _, value in extent), HEIGHT - BOTTOM, TOP)
    lines = [data for mark in marks if (data := mark.hover_data())]
    return tag(
        "svg",
        _axes(x, y, x_scale, y_scale),
        *(mark.draw(x_scale, y_scale) for mark in marks),
        tag("g", class_="cursor"),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=name,
        class_="chart",
        data_chart=_chart_data(x, y, x_scale, y_scale, lines) if lines else None,
    )


def _chart_data(
    x: PlotAxis, y: PlotAxis, x_scale: LinearScale, y_scale: LinearScale, lines: list[dict[str, object]]
) -> str:
    """JSON with which the page's script turns a pointer position into values."""
    axes = {
        side: {
            "low": scale.low,
            "high": scale.high,
            "start": scale.start,
            "end": scale.end,
            "kind": axis.kind,
            "unit": axis.unit,
            "title": axis.title,
        }
        for side, axis, scale in (("x", x, x_scale), ("y", y, y_scale))
    }
    return json.dumps({**axes, "lines": lines}, separators=(",", ":"), ensure_ascii=False)


def _axes(x: PlotAxis, y: PlotAxis, x_scale: LinearScale, y_scale: LinearScale) -> Markup:
    bottom = HEIGHT - BOTTOM
    parts = []
    for tick in y_scale.ticks:
        level = f"{y_scale(tick):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, class_="grid"))
        parts.append(tag("text", y.format(tick), x=LEFT - 6, y=level, dy="0.35em", text_anchor="end"))
    for tick in x_scale.ticks:
        place = x_scale(tick)
        parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="tick"))
        parts.append(tag("text", x.format(tick), x=place, y=bottom + 17, text_anchor="middle"))
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="base"))
    parts.append(tag("text", y.heading, x=4, y=14, class_="title"))
    parts.append(tag("text", x.heading, x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end", class_="title"))
    return join(*parts)
