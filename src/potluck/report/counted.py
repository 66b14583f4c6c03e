"""Marks for what was counted: steps over places, bars between edges, an upright line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from potluck.report.chart import Series
from potluck.report.coverage import Cell
from potluck.report.markup import Markup, tag
from potluck.report.records import Points
from potluck.report.scale import Scale


@dataclass(frozen=True)
class Steps:
    """A line that keeps its height over every cell; a band from lowest to highest where a cell holds several units."""

    series: Series
    cells: Sequence[Cell]

    def reach(self) -> Points:
        return [
            (place, value)
            for cell in self.cells
            if cell.mean is not None
            for place, value in ((cell.first - 0.5, cell.low), (cell.last + 0.5, cell.high))
        ]

    def draw(self, x: Scale, y: Scale) -> Markup:
        runs = list(_unbroken(self.cells))
        way = "".join(_stairs(x, y, [(cell, cell.mean or 0.0) for cell in run], "M") for run in runs)
        style, dash = f"stroke:{self.series.colour}", self.series.dash or None
        line = tag("path", d=way, class_="line", style=style, stroke_dasharray=dash)
        return tag("g", self._band(x, y, runs), line, data_key=self.series.key)

    def _band(self, x: Scale, y: Scale, runs: list[list[Cell]]) -> Markup | None:
        if all(cell.low == cell.high for run in runs for cell in run):
            return None
        way = "".join(
            _stairs(x, y, [(cell, cell.high) for cell in run], "M")
            + _stairs(x, y, [(cell, cell.low) for cell in reversed(run)], "L")
            + "Z"
            for run in runs
        )
        return tag("path", d=way, class_="band", style=f"fill:{self.series.colour}")

    def hover(self) -> dict[str, object]:
        points = [
            [(cell.first + cell.last) // 2, float(f"{cell.mean:.4g}")] for cell in self.cells if cell.mean is not None
        ]
        return {"key": self.series.key, "label": self.series.label, "colour": self.series.colour, "points": points}


def _unbroken(cells: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Stretches of cells without an unknown one between them."""
    run: list[Cell] = []
    for cell in cells:
        if cell.mean is not None:
            run.append(cell)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _stairs(x: Scale, y: Scale, heights: list[tuple[Cell, float]], start: str) -> str:
    """A way over the cells at their heights, forwards or backwards."""
    back = heights[0][0].first > heights[-1][0].first
    sides = [
        (cell.last + 0.5, cell.first - 0.5) if back else (cell.first - 0.5, cell.last + 0.5) for cell, _ in heights
    ]
    way = f"{start}{x(sides[0][0]):.1f} {y(heights[0][1]):.1f}"
    for (near, _), (_, before), (_, height) in zip(sides[1:], heights, heights[1:], strict=False):
        if height != before:
            way += f"H{x(near):.1f}V{y(height):.1f}"
    return f"{way}H{x(sides[-1][1]):.1f}"


@dataclass(frozen=True)
class Bars:
    """Upright bars on zero between two edges each: (left, right, height, tip)."""

    series: Series
    bars: list[tuple[float, float, float, str]]

    def reach(self) -> Points:
        return [(place, height) for left, right, height, _ in self.bars for place in (left, right)]

    def draw(self, x: Scale, y: Scale) -> Markup:
        boxes = (self._bar(x, y, *bar) for bar in self.bars if bar[2] > 0)
        return tag("g", *boxes, class_="columns", data_key=self.series.key)

    def _bar(self, x: Scale, y: Scale, left: float, right: float, height: float, tip: str) -> Markup:
        box = {
            "x": f"{x(left) + 0.6:.1f}",
            "y": f"{y(height):.1f}",
            "width": f"{max(0.5, x(right) - x(left) - 1.2):.1f}",
            "height": f"{max(0.0, y(0.0) - y(height)):.1f}",
        }
        return tag("rect", **box, style=f"fill:{self.series.colour}", data_tip=tip)

    def hover(self) -> None:
        return None


@dataclass(frozen=True)
class Upright:
    """A line from the foot of the chart to its top, with a word beside it."""

    place: float
    word: str

    def reach(self) -> Points:
        return []

    def draw(self, x: Scale, y: Scale) -> Markup:
        at, left = x(self.place), self.place > (x.low + x.high) / 2
        line = tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=y.start, y2=y.end, class_="upright")
        side = {"x": f"{at - 5 if left else at + 5:.1f}", "text_anchor": "end" if left else "start"}
        return tag("g", line, tag("text", self.word, y=y.end + 9, class_="word", **side))

    def hover(self) -> None:
        return None
