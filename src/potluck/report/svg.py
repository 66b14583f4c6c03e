"""Charts as inline SVG: axes, scales, and the frame in which marks are drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from potluck.report.html import Markup, join, tag
from potluck.report.units import format_short

LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 28.0, 44.0
"""Margins around the marks."""
MAX_DECADES = 2.0
"""Positive numbers that span more than this are drawn on a logarithmic axis."""


HUGE = 1e100
"""A larger number is a broken value."""


@dataclass(frozen=True)
class Frame:
    """The size of a chart, and the class with which the style sheet chooses the size of its words."""

    width: float
    height: float
    kind: str = "chart"


CHART, PANEL, WIDE = Frame(420.0, 270.0), Frame(286.0, 200.0, "chart panel"), Frame(1090.0, 400.0, "chart wide")


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
    pad: float = 0.0
    """Space beyond the first and the last value, as a share of the axis; percents stay within 0 and 100."""
    log: bool = False
    """Whether equal steps are equal factors; all values must be positive."""

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
    minor: tuple[float, ...] = ()
    """Places between the ticks that are marked without a number."""

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class LogScale(LinearScale):
    """A map from values to coordinates in which equal factors are equal distances."""

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def spans_decades(values: Iterable[float]) -> bool:
    """Whether numbers are all positive and lie more than two powers of ten apart."""
    known = list(values)
    inside = bool(known) and min(known) > 1 / HUGE and max(known) < HUGE
    return inside and math.log10(max(known)) - math.log10(min(known)) > MAX_DECADES


def make_scale(axis: PlotAxis, values: Iterable[float], start: float, end: float) -> LinearScale:
    """A scale that contains the values. An end that the axis leaves open moves to a tick, unless the axis is tight."""
    known = list(values)
    if axis.log:
        return _log_scale(known, start, end)
    low = min(known, default=0.0) if axis.low is None else axis.low
    high = max(known, default=1.0) if axis.high is None else axis.high
    if high <= low:
        low, high = _range_around(axis, low)
    elif axis.pad:
        low, high = _padded(axis, low, high)
    step = _tick_step(high - low, axis.count, 1.0 if axis.kind == "whole" else 0.0)
    if not axis.tight:
        low = math.floor(low / step + 1e-9) * step if axis.low is None else low
        high = math.ceil(high / step - 1e-9) * step if axis.high is None else high
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return LinearScale(low, high, start, end, tuple(round(index * step, 12) for index in range(first, last + 1)))


def _padded(axis: PlotAxis, low: float, high: float) -> tuple[float, float]:
    """The range with space at its open ends. No space shows percents that cannot be."""
    space = axis.pad * (high - low)
    bounds = (0.0, 1.0) if axis.kind == "percent" and low >= 0 and high <= 1 else (-math.inf, math.inf)
    return (
        max(bounds[0], low - space) if axis.low is None else low,
        min(bounds[1], high + space) if axis.high is None else high,
    )


def _log_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """A tick at each power of ten, or at 1, 2 and 5 times one if there are few; lines at all others between."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    space = max((high / low) ** 0.04, 1.05)
    low, high = low / space, high * space
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    all_steps = [float(f"{factor}e{power}") for power in powers for factor in range(1, 10)]
    inside = [step for step in all_steps if low <= step <= high]
    decades = [step for step in inside if f"{step:e}".startswith("1.0")]
    skip = -(-len(decades) // 8) or 1
    few = [step for step in inside if f"{step:e}"[0] in "125"] if len(decades) < 3 else decades[::skip]
    return LogScale(low, high, start, end, tuple(few), tuple(step for step in inside if step not in few))


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


def plot(
    marks: Sequence[Mark],
    x: PlotAxis,
    y: PlotAxis,
    name: str,
    frame: Frame = CHART,
    extent: Sequence[tuple[float, float]] = (),
) -> Markup:
    """A chart with axes and marks. `name` describes it to screen readers; the axes contain all points of `extent`."""
    inside = [*extent, *(point for mark in marks for point in mark.extent())]
    if not inside:
        return tag("p", "Nothing recorded yet.", class_="empty")
    x_scale = make_scale(x, (value for value, _ in inside), LEFT, frame.width - RIGHT)
    ups = [value for _, value in inside]
    y_scale = make_scale(y, ups, frame.height - BOTTOM, TOP)
    from_zero = make_scale(replace(y, low=0.0), ups, y_scale.start, y_scale.end) if _can_begin_at_zero(y, ups) else None
    lines = [data for mark in marks if (data := mark.hover_data())]
    return tag(
        "svg",
        _axes(x, y, x_scale, y_scale, frame),
        tag("g", *(mark.draw(x_scale, y_scale) for mark in marks), class_="marks"),
        tag("g", class_="cursor"),
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
        role="img",
        aria_label=name,
        class_=frame.kind,
        data_chart=_chart_data(x, y, x_scale, y_scale, lines) if lines else None,
        data_zero=_both_axes(y, y_scale, from_zero) if from_zero else None,
    )


def _can_begin_at_zero(axis: PlotAxis, values: Sequence[float]) -> bool:
    return axis.low is None and not axis.log and make_scale(axis, values, 0.0, 1.0).low > 0


def _both_axes(axis: PlotAxis, *scales: LinearScale) -> str:
    """JSON with which the page's script lets the vertical axis begin at zero and back: ends and ticks of both."""
    both = [
        {"low": scale.low, "high": scale.high, "ticks": [[tick, axis.format(tick)] for tick in scale.ticks]}
        for scale in scales
    ]
    found = {"start": scales[0].start, "end": scales[0].end, "scales": both}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


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
            **({"log": True} if axis.log else {}),
        }
        for side, axis, scale in (("x", x, x_scale), ("y", y, y_scale))
    }
    return json.dumps({**axes, "lines": lines}, separators=(",", ":"), ensure_ascii=False)


def _axes(x: PlotAxis, y: PlotAxis, x_scale: LinearScale, y_scale: LinearScale, frame: Frame) -> Markup:
    bottom, right = frame.height - BOTTOM, frame.width - RIGHT
    levels, parts = [], []
    for tick in y_scale.ticks:
        level = f"{y_scale(tick):.1f}"
        levels.append(tag("line", x1=LEFT, x2=right, y1=level, y2=level, class_="grid"))
        levels.append(tag("text", y.format(tick), x=LEFT - 6, y=level, dy="0.35em", text_anchor="end"))
    for tick in x_scale.minor:
        parts.append(tag("line", x1=x_scale(tick), x2=x_scale(tick), y1=bottom, y2=bottom + 2, class_="tick"))
    for tick in x_scale.ticks:
        place = x_scale(tick)
        parts.append(tag("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="tick"))
        parts.append(tag("text", x.format(tick), x=place, y=bottom + 17, text_anchor="middle"))
    parts.append(tag("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="base"))
    parts.append(tag("text", y.heading, x=4, y=14, class_="title"))
    parts.append(tag("text", x.heading, x=right, y=frame.height - 6, text_anchor="end", class_="title"))
    return join(tag("g", *levels, class_="levels"), *parts)
