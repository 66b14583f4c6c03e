"""The marks of a chart: lines, bands, dots, columns, bars, steps and a vertical line. A new kind is a new class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.report.html import Markup, Series, tag
from potluck.report.records import Points
from potluck.report.svg import LinearScale

MAX_POINTS = 160
"""Points kept of a long line; more would make the page large and could not be seen."""
BEHIND_POINTS = 40
"""Points kept of a line that only shows where the others are."""
DASH = 7
"""Length of a stroke where several lines lie on each other, in units of the chart."""


@dataclass(frozen=True)
class LineMark:
    """A line through points."""

    series: Series
    points: Points
    dash: str = ""
    name: str = ""
    """The text at the pointer, if it is not the label of the series."""
    spreads: Mapping[tuple[float, float], tuple[float | None, int]] = field(default_factory=dict)
    """Standard deviation and number of seeds of a point; for the pointer only."""
    turn: tuple[int, int] = (0, 1)
    """(place, number) among lines that lie on each other: these are dashed, and show one after the other."""

    def extent(self) -> Points:
        return self.points

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        points = thin(self.points)
        if not points:
            return Markup("")
        path = "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in points)
        style, (dash, offset) = f"stroke:{self.series.colour}", _dashes(self.turn, self.dash or self.series.dash)
        line = tag("path", d=path, class_=self._css_class(), style=style, stroke_dasharray=dash,
                   stroke_dashoffset=offset)  # fmt: skip
        across, up = points[-1]
        end = tag("circle", cx=x(across), cy=y(up), r="2.6", style=f"fill:{self.series.colour}")
        return tag("g", line, end, data_key=self.series.key)

    def _css_class(self) -> str:
        """A line with its own dashes accompanies the main line of its series, so it is thinner."""
        if self.turn[0]:
            return "line turn"
        return "line thin" if self.dash else "line thick" if self.series.thick else "line"

    def hover_data(self) -> dict[str, object]:
        kept = thin(self.points)
        points = [[float(f"{across:.6g}"), float(f"{up:.4g}")] for across, up in kept]
        data = _hover_data(self.series, self.name or self.series.label, points)
        if not any(sd is not None for sd, _ in self.spreads.values()):
            return data
        spreads = [self.spreads.get(point, (None, 1)) for point in kept]
        return {**data, "spreads": [[None if sd is None else float(f"{sd:.3g}"), many] for sd, many in spreads]}


@dataclass(frozen=True)
class BehindMark:
    """A line of another chart in grey, so that the lines of this chart can be placed among all."""

    series: Series
    points: Points

    def extent(self) -> Points:
        return self.points

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        points = thin(self.points, BEHIND_POINTS)
        if not points:
            return Markup("")
        path = "M" + "L".join(f"{x(across):.0f} {y(up):.0f}" for across, up in points)
        return tag("path", d=path, class_="line behind", data_key=self.series.key)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True)
class BandMark:
    """The area between two lines: (x, low, high)."""

    series: Series
    edges: list[tuple[float, float, float]]

    def extent(self) -> Points:
        return [(across, up) for across, low, high in self.edges for up in (low, high)]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        if len(self.edges) < 2:
            return Markup("")
        upper = [(across, high) for across, _, high in self.edges]
        lower = [(across, low) for across, low, _ in reversed(self.edges)]
        path = "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in upper + lower) + "Z"
        return tag("path", d=path, class_="band", style=f"fill:{self.series.colour}", data_key=self.series.key)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True)
class DotsMark:
    """Single points: (x, y, text at the pointer)."""

    series: Series
    points: list[tuple[float, float, str]]
    radius: float = 3.2

    def extent(self) -> Points:
        return [(across, up) for across, up, _ in self.points]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        dots = (
            tag("circle", cx=f"{x(across):.1f}", cy=f"{y(up):.1f}", r=self.radius, data_tip=tip or None)
            for across, up, tip in self.points
        )
        return tag("g", *dots, class_="dots", style=f"fill:{self.series.colour}", data_key=self.series.key)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True)
class ColumnsMark:
    """Vertical bars at whole numbers: (x, height, text at the pointer)."""

    series: Series
    columns: list[tuple[float, float, str]]
    width: float = 0.72
    """As a share of the distance between two columns."""

    def extent(self) -> Points:
        return [(place + side, value) for place, value, _ in self.columns for side in (-0.5, 0.5)]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        columns = (self._column(x, y, *column) for column in self.columns)
        return tag("g", *columns, class_="columns", data_key=self.series.key)

    def _column(self, x: LinearScale, y: LinearScale, place: float, value: float, tip: str) -> Markup:
        left, right = x(place - self.width / 2), x(place + self.width / 2)
        top, bottom = y(value), y(max(0.0, y.low))
        box = _box(left, top, right - left, bottom - top)
        return tag("rect", **box, rx="1.5", style=f"fill:{self.series.colour}", data_tip=tip or None)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True)
class BarsMark:
    """Vertical bars of a histogram: (left edge, right edge, height, text at the pointer)."""

    series: Series
    bars: list[tuple[float, float, float, str]]

    def extent(self) -> Points:
        return [(place, height) for left, right, height, _ in self.bars for place in (left, right)]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        bars = (self._bar(x, y, *bar) for bar in self.bars if bar[2] > 0)
        return tag("g", *bars, class_="columns", data_key=self.series.key)

    def _bar(self, x: LinearScale, y: LinearScale, left: float, right: float, height: float, tip: str) -> Markup:
        box = _box(x(left) + 0.6, y(height), max(0.5, x(right) - x(left) - 1.2), y(0.0) - y(height))
        return tag("rect", **box, style=f"fill:{self.series.colour}", data_tip=tip)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True)
class VerticalLineMark:
    """A vertical line over the whole chart, with a word beside it."""

    place: float
    word: str

    def extent(self) -> Points:
        return []

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        at, on_the_left = x(self.place), self.place > (x.low + x.high) / 2
        line = tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=y.start, y2=y.end, class_="upright")
        beside, anchor = (at - 5, "end") if on_the_left else (at + 5, "start")
        word = tag("text", self.word, y=y.end + 9, class_="word", x=f"{beside:.1f}", text_anchor=anchor)
        return tag("g", line, word)

    def hover_data(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PlotStep:
    """One step of a `StepsMark`: the mean, lowest and highest value at the places `first` to `last`."""

    first: int
    last: int
    mean: float | None
    """None if no value is known there."""
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class StepsMark:
    """A line of horizontal steps, with a band from the lowest to the highest value if a step has several places."""

    series: Series
    steps: Sequence[PlotStep]
    turn: tuple[int, int] = (0, 1)
    """As in a `LineMark`."""

    @property
    def points(self) -> Points:
        """The middle of each step whose value is known."""
        return [((step.first + step.last) / 2, step.mean) for step in self.steps if step.mean is not None]

    def extent(self) -> Points:
        return [
            (place, value)
            for step in self.steps
            if step.mean is not None
            for place, value in ((step.first - 0.5, step.low), (step.last + 0.5, step.high))
        ]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        stretches = list(_known_stretches(self.steps))
        path = "".join(_step_path(x, y, [(step, step.mean or 0.0) for step in steps], "M") for steps in stretches)
        style, (dash, offset) = f"stroke:{self.series.colour}", _dashes(self.turn, self.series.dash)
        css_class = "line turn" if self.turn[0] else "line"
        line = tag("path", d=path, class_=css_class, style=style, stroke_dasharray=dash, stroke_dashoffset=offset)
        return tag("g", self._band(x, y, stretches), line, data_key=self.series.key)

    def _band(self, x: LinearScale, y: LinearScale, stretches: list[list[PlotStep]]) -> Markup | None:
        if all(step.low == step.high for steps in stretches for step in steps):
            return None
        path = "".join(
            _step_path(x, y, [(step, step.high) for step in steps], "M")
            + _step_path(x, y, [(step, step.low) for step in reversed(steps)], "L")
            + "Z"
            for steps in stretches
        )
        return tag("path", d=path, class_="band", style=f"fill:{self.series.colour}")

    def hover_data(self) -> dict[str, object]:
        known = ((step, step.mean) for step in self.steps if step.mean is not None)
        points = [[(step.first + step.last) // 2, float(f"{mean:.4g}")] for step, mean in known]
        return _hover_data(self.series, self.series.label, points)


def _known_stretches(steps: Sequence[PlotStep]) -> Iterable[list[PlotStep]]:
    """Neighbouring steps with known values; an unknown one ends a stretch."""
    stretch: list[PlotStep] = []
    for step in steps:
        if step.mean is not None:
            stretch.append(step)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _step_path(x: LinearScale, y: LinearScale, heights: list[tuple[PlotStep, float]], start: str) -> str:
    """An SVG path over the steps at these heights, to the right or back to the left."""
    back = heights[0][0].first > heights[-1][0].first
    sides = [
        (step.last + 0.5, step.first - 0.5) if back else (step.first - 0.5, step.last + 0.5) for step, _ in heights
    ]
    path = f"{start}{x(sides[0][0]):.1f} {y(heights[0][1]):.1f}"
    for (near, _), (_, before), (_, height) in zip(sides[1:], heights, heights[1:], strict=False):
        if height != before:
            path += f"H{x(near):.1f}V{y(height):.1f}"
    return f"{path}H{x(sides[-1][1]):.1f}"


def thin(points: Points, most: int = MAX_POINTS) -> Points:
    """At most about `most` points: the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return points
    stretch = -(-len(points) // (most // 2))
    kept = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return sorted({points[0], *kept, points[-1]})


def _dashes(turn: tuple[int, int], usual: str) -> tuple[str | None, int | None]:
    """The first of several lines is whole and lies below; each of the others leaves the places of the rest free."""
    place, many = turn
    return (f"{DASH} {DASH * (many - 1)}", -DASH * place) if place else (usual or None, None)


def _hover_data(series: Series, label: str, points: list[list[float]]) -> dict[str, object]:
    return {"key": series.key, "label": label, "colour": series.colour, "points": points}


def _box(left: float, top: float, width: float, height: float) -> dict[str, str]:
    return {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}", "height": f"{max(0.0, height):.1f}"}
