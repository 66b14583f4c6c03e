"""Charts as inline SVG: marks drawn in one frame. A new kind of chart is a new mark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.report.markup import Markup, join, tag
from potluck.report.records import Points
from potluck.report.scale import Axis, Scale, scale

WIDTH, HEIGHT = 420.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 28.0, 44.0
MOST = 160
"""Points kept of a long line: more than a chart has room for only make the page heavy."""


class Mark(Protocol):
    """Something drawn in a frame."""

    def reach(self) -> Iterable[tuple[float, float]]:
        """Points that the axes must include."""
        ...

    def draw(self, x: Scale, y: Scale) -> Markup: ...

    def hover(self) -> dict[str, object] | None:
        """What the pointer reads off: key, label, colour and points; nothing for marks that carry their own tips."""
        ...


@dataclass(frozen=True)
class Series:
    """Whose marks these are: one name, one colour, one legend entry."""

    key: str
    label: str
    colour: str
    dash: str = ""
    thick: bool = False


def palette(labels: Iterable[str], start: int = 0) -> list[Series]:
    """A series per label: eight colours that colour-blind eyes tell apart, then the same ones dashed."""
    dashes = ("", "7 3", "2 3")
    return [
        Series(f"s{index}", label, f"var(--c{index % 8})", dashes[index // 8 % 3])
        for index, label in enumerate(labels, start)
    ]


@dataclass(frozen=True)
class Path:
    """A line through points."""

    series: Series
    points: Points
    dash: str = ""
    name: str = ""
    """What the pointer says, where it is more than the series' label."""

    def reach(self) -> Points:
        return self.points

    def draw(self, x: Scale, y: Scale) -> Markup:
        kept = thinned(self.points)
        if not kept:
            return Markup("")
        way = "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in kept)
        style = f"stroke:{self.series.colour}"
        dash = self.dash or self.series.dash
        line = tag(
            "path",
            d=way,
            class_=self._class(),
            style=style,
            stroke_dasharray=dash or None,
        )
        across, up = kept[-1]
        end = tag("circle", cx=x(across), cy=y(up), r="2.6", style=f"fill:{self.series.colour}")
        return tag("g", line, end, data_key=self.series.key)

    def _class(self) -> str:
        """A line with its own dashes stands beside its series' main line, and gives way to it."""
        return "line thin" if self.dash else "line thick" if self.series.thick else "line"

    def hover(self) -> dict[str, object]:
        points = [[float(f"{across:.6g}"), float(f"{up:.4g}")] for across, up in thinned(self.points)]
        return {
            "key": self.series.key,
            "label": self.name or self.series.label,
            "colour": self.series.colour,
            "points": points,
        }


@dataclass(frozen=True)
class Band:
    """The area between two lines over the same places: (x, low, high)."""

    series: Series
    edges: list[tuple[float, float, float]]

    def reach(self) -> Points:
        return [(across, up) for across, low, high in self.edges for up in (low, high)]

    def draw(self, x: Scale, y: Scale) -> Markup:
        if len(self.edges) < 2:
            return Markup("")
        places = [(across, high) for across, _, high in self.edges] + [
            (across, low) for across, low, _ in reversed(self.edges)
        ]
        way = "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in places) + "Z"
        return tag("path", d=way, class_="band", style=f"fill:{self.series.colour}", data_key=self.series.key)

    def hover(self) -> None:
        return None


@dataclass(frozen=True)
class Dots:
    """Single points, each with what it says when pointed at."""

    series: Series
    points: list[tuple[float, float, str]]
    radius: float = 3.2

    def reach(self) -> Points:
        return [(across, up) for across, up, _ in self.points]

    def draw(self, x: Scale, y: Scale) -> Markup:
        style = f"fill:{self.series.colour}"
        dots = (
            tag("circle", cx=f"{x(a):.1f}", cy=f"{y(b):.1f}", r=self.radius, data_tip=tip or None)
            for a, b, tip in self.points
        )
        return tag("g", *dots, class_="dots", style=style, data_key=self.series.key)

    def hover(self) -> None:
        return None


@dataclass(frozen=True)
class Columns:
    """Upright bars that stand on zero: (place, height, tip)."""

    series: Series
    bars: list[tuple[float, float, str]]
    width: float = 0.72
    """Of the distance between two whole places."""

    def reach(self) -> Points:
        return [(place + side, value) for place, value, _ in self.bars for side in (-0.5, 0.5)]

    def draw(self, x: Scale, y: Scale) -> Markup:
        return tag("g", *(self._bar(x, y, *bar) for bar in self.bars), class_="columns", data_key=self.series.key)

    def _bar(self, x: Scale, y: Scale, place: float, value: float, tip: str) -> Markup:
        left, right = x(place - self.width / 2), x(place + self.width / 2)
        top, foot = y(value), y(max(0.0, y.low))
        style = f"fill:{self.series.colour}"
        box = {
            "x": f"{left:.1f}",
            "y": f"{top:.1f}",
            "width": f"{right - left:.1f}",
            "height": f"{max(0.0, foot - top):.1f}",
        }
        return tag("rect", **box, rx="1.5", style=style, data_tip=tip or None)

    def hover(self) -> None:
        return None


def thinned(points: Points, most: int = MOST) -> Points:
    """At most about `most` points: of each stretch its lowest and highest, so that no spike is lost."""
    if len(points) <= most:
        return points
    stretch = -(-len(points) // (most // 2))
    kept = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return sorted({points[0], *kept, points[-1]})


def plot(marks: Sequence[Mark], x: Axis, y: Axis, name: str, height: float = HEIGHT) -> Markup:
    """The chart: axes with round numbers, the marks above them, and what the pointer needs to read values off."""
    reach = [point for mark in marks for point in mark.reach()]
    if not reach:
        return tag("p", "Nothing recorded yet.", class_="empty")
    across = scale(x, (place for place, _ in reach), LEFT, WIDTH - RIGHT)
    up = scale(y, (value for _, value in reach), height - BOTTOM, TOP)
    hovers = [hover for mark in marks if (hover := mark.hover())]
    return tag(
        "svg",
        _axes(x, y, across, up, height),
        *(mark.draw(across, up) for mark in marks),
        tag("g", class_="cursor"),
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=name,
        class_="chart",
        data_chart=_reading(x, y, across, up, hovers) if hovers else None,
    )


def _reading(x: Axis, y: Axis, across: Scale, up: Scale, hovers: list[dict[str, object]]) -> str:
    """What the page's script needs to turn a pointer's place into values."""
    ends = {
        side: {
            "low": end.low,
            "high": end.high,
            "start": end.start,
            "end": end.end,
            "kind": axis.kind,
            "unit": axis.unit,
            "title": axis.title,
        }
        for side, axis, end in (("x", x, across), ("y", y, up))
    }
    return json.dumps({**ends, "lines": hovers}, separators=(",", ":"), ensure_ascii=False)


def _axes(x: Axis, y: Axis, across: Scale, up: Scale, height: float) -> Markup:
    foot = height - BOTTOM
    parts = []
    for tick in up.ticks:
        place = f"{up(tick):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid"))
        parts.append(tag("text", y.format(tick), x=LEFT - 6, y=place, dy="0.35em", text_anchor="end"))
    for tick in across.ticks:
        at = across(tick)
        parts.append(tag("line", x1=at, x2=at, y1=foot, y2=foot + 4, class_="tick"))
        parts.append(tag("text", x.format(tick), x=at, y=foot + 17, text_anchor="middle"))
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=foot, y2=foot, class_="base"))
    parts.append(tag("text", y.heading, x=4, y=14, class_="title"))
    parts.append(tag("text", x.heading, x=WIDTH - RIGHT, y=height - 6, text_anchor="end", class_="title"))
    return join(*parts)
