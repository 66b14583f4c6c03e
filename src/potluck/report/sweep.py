"""Methods under each variant of a comparison: what happens as one thing is varied."""

from __future__ import annotations

import re
from collections.abc import Sequence

from potluck.report.html import Markup, charts, figure, legend, palette, section, table, tag
from potluck.report.json_values import number
from potluck.report.marks import BandMark, LineMark
from potluck.report.records import RunRecord
from potluck.report.single import judged
from potluck.report.summary import Row, mean_sd, metric_format, metric_name
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import MetricFormat

Cells = dict[str, dict[str, Row]]
"""Mean and deviation by method, then by variant."""


def sweep_section(runs: Sequence[RunRecord]) -> Markup | None:
    """A table of methods by variants and, where the variants are numbers, a chart; nothing without variants."""
    variants = list(dict.fromkeys(run.variant for run in runs))
    if len(variants) < 2:
        return None
    found, judge = cells(runs), metric_format(*runs)
    if all(len(across) < 2 for across in found.values()):  # every method has a variant of its own: nothing varies
        return None
    rows = [
        [method, *(_written(across[each], judge) if each in across else "" for each in variants)]
        for method, across in found.items()
    ]
    note = f"Final {judge.name}{judge.unit}, mean ± standard deviation over seeds."
    words = tag("p", note, class_="note")
    return section("What varies", words, table(["", *variants], rows), _chart(found, scaled(variants), runs))


def cells(runs: Sequence[RunRecord]) -> Cells:
    """The final score of each method under each variant."""
    values: dict[str, dict[str, list[float | None]]] = {}
    for run in runs:
        final = run.curve.final
        method = run.label.removesuffix(f", {run.variant}")
        values.setdefault(method, {}).setdefault(run.variant, []).append(final.score if final else None)
    return {method: {name: mean_sd(seen) for name, seen in across.items()} for method, across in values.items()}


def scaled(variants: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """What is varied and each variant's number, where the names differ in one number at their end alone.

    >>> scaled(["ratio = 0.1", "ratio = 2"])
    ('ratio', {'ratio = 0.1': 0.1, 'ratio = 2': 2.0})
    """
    found = {name: re.fullmatch(r"(.*?)[\s=]*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", name) for name in variants}
    titles = {match[1] if match else None for match in found.values()}
    title = titles.pop()
    if titles or not title:
        return None
    return title, {name: float(match[2]) for name, match in found.items() if match}


def _written(cell: Row, judge: MetricFormat) -> str:
    return judge.format_cell(number(cell["mean"]), number(cell["sd"]))


def _chart(found: Cells, scale: tuple[str, dict[str, float]] | None, runs: Sequence[RunRecord]) -> Markup | None:
    if scale is None:
        return None
    title, places = scale
    painted = list(zip(palette(found), found.values(), strict=True))
    marks: list[Mark] = []
    for series, across in painted:
        path, edges = [], []
        for name, cell in sorted(across.items(), key=lambda item: places[item[0]]):
            mean, sd = number(cell["mean"]), number(cell["sd"])
            if mean is not None:
                path.append((places[name], mean))
                edges += [(places[name], mean - sd, mean + sd)] if sd is not None else []
        marks += [BandMark(series, edges), LineMark(series, path)]
    caption = f"Final {metric_name(*runs)} against {title}"
    drawn = figure(caption, plot(marks, PlotAxis(title, tight=True), judged(*runs), caption))
    return tag("div", legend([series for series, _ in painted]), charts(drawn), data_scope="")
