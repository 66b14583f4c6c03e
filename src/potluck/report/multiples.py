"""Charts with a line per method: one chart for a few methods, small multiples for many.

Each of the small charts shows at most eight methods in colour, and all others in grey behind them, on the same scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from potluck.report.families import FAMILIES, family_of_runs
from potluck.report.html import COLOURS, Markup, Series, charts, figure, join, legend, note, tag
from potluck.report.marks import BehindMark, LineMark, StepsMark
from potluck.report.records import Points, RunRecord
from potluck.report.svg import PANEL, Mark, PlotAxis, plot

MethodRuns = Sequence[tuple[Series, list[RunRecord]]]
"""The methods of a comparison: each one's name and colour, and its runs over seeds."""

Draw = Callable[[Series, list[RunRecord]], list[Mark]]
"""The marks of one method."""

NEAR = 0.006
"""Points closer than this share of an axis look like one."""


def all_runs(methods: MethodRuns) -> list[RunRecord]:
    """The runs of all methods."""
    return [run for _, runs in methods for run in runs]


def is_many(methods: MethodRuns) -> bool:
    """Whether there are more methods than colours."""
    return len(methods) > COLOURS


def split_methods(methods: MethodRuns) -> dict[str, MethodRuns]:
    """Charts by title, each with at most as many methods as there are colours, and with colours of its own.

    Methods under several variants have a chart for each method; else there is a chart for each family.
    """
    parts = [(title, part) for name, group in group_methods(methods).items() for title, part in _parts(name, group)]
    return {title: in_own_colours(part) for title, part in parts}


def group_methods(methods: MethodRuns) -> dict[str, MethodRuns]:
    """The variants of each method, or the methods of each family, by title; families in their order."""
    groups: dict[str, list[tuple[Series, list[RunRecord]]]] = {}
    bases = [_without_variant(series.label, runs) for series, runs in methods]
    if any(runs[0].variant for _, runs in methods) and len(set(bases)) < len(bases):
        for base, (series, runs) in zip(bases, methods, strict=True):
            groups.setdefault(base, []).append((replace(series, label=runs[0].variant or base), runs))
        return dict(groups)
    for series, runs in methods:
        groups.setdefault(family_of_runs(runs), []).append((series, runs))
    if len(groups) == 1:
        return {"Methods": methods}
    return {title: groups[family] for family, title in FAMILIES.items() if family in groups}


def _without_variant(label: str, runs: Sequence[RunRecord]) -> str:
    return label.removesuffix(f", {runs[0].variant}")


def _parts(name: str, group: MethodRuns) -> list[tuple[str, MethodRuns]]:
    """The group in parts of about equal size, none larger than the number of colours."""
    many = -(-len(group) // COLOURS)
    size, longer = divmod(len(group), many)
    starts = [index * size + min(index, longer) for index in range(many + 1)]
    parts = [group[start:end] for start, end in pairwise(starts)]
    return [(f"{name} ({index} of {many})" if many > 1 else name, part) for index, part in enumerate(parts, 1)]


def in_own_colours(methods: MethodRuns) -> MethodRuns:
    """The methods in the colours from the first on."""
    return [(replace(series, colour=f"var(--c{index})", dash=""), runs) for index, (series, runs) in enumerate(methods)]


def method_charts(
    caption: str, methods: MethodRuns, draw: Draw, x: PlotAxis, y: PlotAxis, name: str, words: str = ""
) -> Markup:
    """A figure with a line per method, or a small figure for each family if there are more methods than colours."""
    if not is_many(methods):
        marks = [mark for series, runs in methods for mark in draw(series, runs)]
        return figure(caption, plot(take_turns(marks), x, y, name), (), words)
    marks_of = {series.key: draw(series, runs) for series, runs in methods}
    extent = [point for marks in marks_of.values() for mark in marks for point in mark.extent()]
    figures = []
    for title, some in split_methods(methods).items():
        shown = {series.key for series, _ in some}
        behind: list[Mark] = [
            BehindMark(series, mark.points)
            for series, _ in methods
            if series.key not in shown
            for mark in marks_of[series.key]
            if isinstance(mark, LineMark)
        ]
        front = take_turns([mark for series, runs in some for mark in draw(series, runs)])
        chart = plot(behind + front, x, y, f"{name}: {title}", PANEL, extent)
        figures.append(figure(title, chart, [series for series, _ in some]))
    told = join(tag("h3", caption), note(words)) if words else None
    return join(told, charts(*figures, kind="charts panels"))


def charts_of_methods(methods: MethodRuns, *parts: Markup, small: bool = False) -> Markup:
    """What `method_charts` gave: figures side by side under one legend; nothing to add to small multiples."""
    if is_many(methods):
        return tag("div", *parts)
    return tag("div", legend(series for series, _ in methods), charts(*parts, small=small))


def take_turns(marks: Sequence[Mark]) -> list[Mark]:
    """The marks, with lines that lie on each other dashed in such a way that each of them shows."""
    lines = [mark for mark in marks if isinstance(mark, LineMark | StepsMark) and mark.points and not _is_dashed(mark)]
    if len(lines) < 2:
        return list(marks)
    every = [point for line in lines for point in line.points]
    spans = [max(values) - min(values) or 1.0 for values in zip(*every, strict=True)]
    groups: list[list[LineMark | StepsMark]] = []
    for line in lines:
        group = next((one for one in groups if _coincide(one[0].points, line.points, spans)), None)
        groups.append([line]) if group is None else group.append(line)
    turns = {id(line): (place, len(group)) for group in groups for place, line in enumerate(group)}
    return [
        replace(mark, turn=turns[id(mark)]) if isinstance(mark, LineMark | StepsMark) and id(mark) in turns else mark
        for mark in marks
    ]


def _is_dashed(mark: LineMark | StepsMark) -> bool:
    """Whether its dashes mean something else, such as validation."""
    return isinstance(mark, LineMark) and bool(mark.dash)


def _coincide(one: Points, other: Points, spans: Sequence[float]) -> bool:
    """Whether two lines look the same in at least half of their points; of lines of unequal length, where both are."""
    if len(one) != len(other):
        known, most = dict(other), min(len(one), len(other))
        pairs = [((x, y), (x, known[x])) for x, y in one if x in known]
    else:
        pairs, most = list(zip(one, other, strict=True)), len(one)
    near = sum(abs(a[0] - b[0]) < NEAR * spans[0] and abs(a[1] - b[1]) < NEAR * spans[1] for a, b in pairs)
    return 2 * near >= most
