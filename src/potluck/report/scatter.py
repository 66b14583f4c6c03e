"""The final score of every method against what it cost, and the methods that no other beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from potluck.report.curves import score_axis
from potluck.report.html import COLOURS, Markup, Series, colour_list, figure, join, tabs, tag
from potluck.report.json_values import text
from potluck.report.multiples import MethodRuns, all_runs, group_methods, is_many
from potluck.report.records import Points
from potluck.report.summary import (
    Row,
    failure_words,
    mean_of,
    metric_format,
    rankable_rows,
    sd_of,
)
from potluck.report.svg import WIDE, LinearScale, Mark, PlotAxis, plot, spans_decades
from potluck.report.units import (
    byte_unit,
    energy_unit,
    flop_unit,
    format_bytes,
    format_flops,
    format_joules,
    format_seconds,
    time_unit,
)

MAX_LABEL = 34
"""Characters of a label in the chart; the pointer shows all of them."""
LOW = 300.0
"""The height of the chart of a few methods."""
LETTER, LINE = 6.9, 13.0
"""About the width of a letter and the height of a line, in units of the chart."""


@dataclass(frozen=True)
class CostKind:
    """One kind of cost: its key in `compare_rows`, its words, and how it is written."""

    key: str
    title: str
    axis: str
    unit: Callable[[float], tuple[float, str]]
    write: Callable[[float | None], str]


COSTS = (
    CostKind("bytes", "Traffic (measured)", "traffic, both directions", byte_unit, format_bytes),
    CostKind("device_seconds", "Time in the field (modelled)", "time in the field", time_unit, format_seconds),
    CostKind("round_seconds", "Time with the server (modelled)", "time with the wait for the server", time_unit,
         format_seconds),
    CostKind("joules", "Energy (modelled)", "energy of all devices", energy_unit, format_joules),
    CostKind("flops", "Compute (modelled)", "compute of all devices", flop_unit, format_flops),
)  # fmt: skip


def pareto_front(points: Points) -> Points:
    """Of (cost, score): those for which no other costs no more and scores no less; by cost."""
    front: Points = []
    for cost, score in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


@dataclass(frozen=True)
class ScatterPoint:
    """One method in the chart."""

    series: Series
    x: float
    y: float
    sd: float | None
    tip: str
    ranked: bool
    """Whether it can be on the front: not a bound, and scored on the common test set as the others are."""
    sign: str = ""


@dataclass(frozen=True)
class ScatterMark:
    """Named points, each with a line of one standard deviation; hollow if they are not ranked."""

    points: Sequence[ScatterPoint]

    def extent(self) -> Points:
        return [(one.x, one.y + side * (one.sd or 0.0)) for one in self.points for side in (-1, 1)]

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        places = place_labels(
            [(x(one.x), y(one.y), _label(one)) for one in self.points], (x.start, x.end, y.end, y.start)
        )
        drawn = (self._draw(one, place, x, y) for one, place in zip(self.points, places, strict=True))
        return tag("g", *drawn, class_="scatter")

    def _draw(self, one: ScatterPoint, place: LabelPlace | None, x: LinearScale, y: LinearScale) -> Markup:
        colour, across, up = one.series.colour, x(one.x), y(one.y)
        look = f"fill:{colour}" if one.ranked else f"fill:none;stroke:{colour};stroke-width:2"
        spread = None
        if one.sd is not None:
            ends = {"y1": f"{y(one.y - one.sd):.1f}", "y2": f"{y(one.y + one.sd):.1f}"}
            at = f"{across:.1f}"
            spread = tag("line", x1=at, x2=at, **ends, class_="spread", style=f"stroke:{colour}")
        dot = tag("circle", cx=f"{across:.1f}", cy=f"{up:.1f}", r="4.4", style=look, data_tip=one.tip)
        return tag("g", spread, dot, place.draw(across, up) if place else None, data_key=one.series.key)

    def hover_data(self) -> None:
        return None


def _label(one: ScatterPoint) -> str:
    label = one.series.label if len(one.series.label) <= MAX_LABEL else one.series.label[: MAX_LABEL - 1] + "…"
    return label + one.sign


@dataclass(frozen=True)
class FrontMark:
    """The front as steps: at each cost, the best score that so much or less has bought."""

    points: Points

    def extent(self) -> Points:
        return []

    def draw(self, x: LinearScale, y: LinearScale) -> Markup:
        (first, up), *rest = self.points
        path = f"M{x(first):.1f} {y(up):.1f}" + "".join(f"H{x(across):.1f}V{y(up):.1f}" for across, up in rest)
        return tag("path", d=path + f"H{x.end:.1f}", class_="front")

    def hover_data(self) -> None:
        return None


Box = tuple[float, float, float, float]
"""left, right, top, bottom"""


@dataclass(frozen=True)
class LabelPlace:
    """Where the label of a point stands: the place and side of its anchor, and its base line."""

    x: float
    base: float
    words: str
    anchor: str = "start"
    led: bool = False
    """Whether a thin line leads from the point to the label, because it stands apart."""

    @property
    def box(self) -> Box:
        """The place that the words take."""
        width = LETTER * len(self.words)
        left = self.x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return left, left + width, self.base - LINE + 2, self.base + 3

    def draw(self, x: float, y: float) -> Markup:
        place = {"x": f"{self.x:.1f}", "y": f"{self.base:.1f}"}
        word = tag("text", self.words, **place, text_anchor=self.anchor, class_="word")
        if not self.led:
            return word
        left, right, top, bottom = self.box
        near = min(max(x, left), right)
        level = (bottom if y > bottom else top) if near == x else self.base - 4
        ends = {"x1": f"{x:.1f}", "y1": f"{y:.1f}", "x2": f"{near:.1f}", "y2": f"{level:.1f}"}
        return join(tag("line", **ends, class_="lead"), word)


def place_labels(points: Sequence[tuple[float, float, str]], frame: Box) -> list[LabelPlace | None]:
    """A free place for each label, as near to its point as there is one; None where there is none."""
    taken: list[Box] = [(x - 6, x + 6, y - 6, y + 6) for x, y, _ in points]
    found: dict[int, LabelPlace] = {}
    for index in sorted(range(len(points)), key=lambda place: points[place][:2]):
        free = (place for place in _candidates(*points[index]) if _is_free(place.box, frame, taken))
        if place := next(free, None):
            taken.append(place.box)
            found[index] = place
    return [found.get(index) for index in range(len(points))]


def _candidates(x: float, y: float, words: str) -> list[LabelPlace]:
    """Places beside the point, then farther and farther away above and below it."""
    beside = [
        LabelPlace(x + 8, y + 4, words),
        LabelPlace(x - 8, y + 4, words, "end"),
        LabelPlace(x, y - 9, words, "middle"),
        LabelPlace(x, y + 17, words, "middle"),
    ]
    far = [
        LabelPlace(x + turn * (10 + 5 * step), y + 4 + side * step * LINE, words, anchor, led=True)
        for step in range(1, 12)
        for side in (-1, 1)
        for turn, anchor in ((1, "start"), (-1, "end"), (0, "middle"))
    ]
    return beside + far


def _is_free(box: Box, frame: Box, taken: Sequence[Box]) -> bool:
    inside = box[0] >= frame[0] and box[1] <= frame[1] and box[2] >= frame[2] and box[3] <= frame[3]
    return inside and not any(_overlap(box, other) for other in taken)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def scatter_charts(methods: MethodRuns, all_rows: Sequence[Row]) -> Markup | None:
    """Score against each kind of cost, as tabs; None if no method has both. `all_rows` are those of `compare_rows`."""
    rows = {text(row["label"]): row for row in all_rows}
    waits = any(run.waits_for_server for run in all_runs(methods))
    costs = [cost for cost in COSTS if waits or cost.key != "round_seconds"]
    found = [(cost.title, chart) for cost in costs if (chart := _figure(cost, methods, rows))]
    return tabs("cost", *found) if found else None


def _figure(cost: CostKind, methods: MethodRuns, rows: dict[str, Row]) -> Markup | None:
    points = _points(cost, methods, rows)
    if not points:
        return None
    factor, unit = cost.unit(max(one.x for one in points))
    points = [replace(one, x=one.x / factor) for one in points]
    front = pareto_front([(one.x, one.y) for one in points if one.ranked])
    x = PlotAxis(cost.axis, unit=unit, count=8, tight=True, pad=0.05, log=spans_decades(one.x for one in points))
    axis = score_axis(*all_runs(methods))
    caption = f"Final {axis.title} against {cost.axis}"
    marks: list[Mark] = [*([FrontMark(front)] if front else []), ScatterMark(points)]
    words = "Line: the front. No ranked method costs less than one on it and scores as high."
    words += (
        " Hollow: not ranked (‡ a bound that ignores what devices can carry, † scored on clients' own examples)."
        * any(not one.ranked for one in points)
    )
    words += " A logarithmic axis." * x.log
    colours = _group_colours(methods)
    chart = plot(marks, x, axis, caption, WIDE if is_many(methods) else replace(WIDE, height=LOW))
    keys = colour_list(Series("", title, colour) for title, colour in colours.items()) if colours else None
    box = tag("div", chart, class_="widebox", tabindex=0)
    return figure(caption, join(keys, box), (), words)


def _points(cost: CostKind, methods: MethodRuns, rows: dict[str, Row]) -> list[ScatterPoint]:
    ranked = {text(row["label"]) for row in rankable_rows(list(rows.values()))}
    metric, colours = metric_format(*all_runs(methods)), _colours_of_methods(methods)
    points = []
    for series, runs in methods:
        row = rows[series.label]
        score, amount = mean_of(row["global"]), mean_of(row[cost.key])
        if score is None or amount is None:
            continue
        sd, many = sd_of(row["global"]), len(runs)
        seeds = "1 seed" if many == 1 else f"{many} seeds"
        tip = (
            f"{series.label}: {metric.format_mean_sd(score, sd)} for {cost.write(amount)}, {seeds}{failure_words(row)}"
        )
        sign = " ‡" * bool(row["bound"]) + " †" * (row["scored_on"] == "clients")
        points.append(
            ScatterPoint(
                replace(series, colour=colours[series.key]), amount, score, sd, tip, series.label in ranked, sign
            )
        )
    return points


def _group_colours(methods: MethodRuns) -> dict[str, str]:
    """A colour for each group of methods, if there are more methods than colours; empty if each has its own."""
    groups = group_methods(methods) if is_many(methods) else {}
    return {title: f"var(--c{index})" for index, title in enumerate(groups)} if len(groups) <= COLOURS else {}


def _colours_of_methods(methods: MethodRuns) -> dict[str, str]:
    """The colour of each series by its key."""
    if not is_many(methods):
        return {series.key: series.colour for series, _ in methods}
    colours, groups = _group_colours(methods), group_methods(methods)
    return {series.key: colours.get(title, "var(--c0)") for title, some in groups.items() for series, _ in some}
