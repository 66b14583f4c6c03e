"""Local scores as histograms: how well the one shared model serves each client."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.report.html import Markup, Series, charts, figure, section, tag
from potluck.report.json_values import number
from potluck.report.marks import BarsMark, VerticalLineMark
from potluck.report.records import ClientScores, RunRecord
from potluck.report.summary import mean_sd, metric_format
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import MetricFormat, format_count

BINS = 20
MEANING = "The shared model on each client's own test examples, choosing among the classes that the client owns"


def binned(values: Sequence[float]) -> list[int]:
    """How many of these shares lie in each of twenty equal bins; 1 counts to the last, what is no share to none."""
    found = [0] * BINS
    for value in values:
        if 0 <= value <= 1:
            found[min(BINS - 1, int(value * BINS))] += 1
    return found


def local_figure(run: RunRecord) -> Markup | None:
    """One run's clients by their local score; nothing where it was not measured."""
    point = run.curve.last_local
    if point is None or not any(binned(point.local.values)):
        return None
    spread, judge = point.local, metric_format(run)
    worst = f", worst tenth {judge.format(spread.worst)}" if spread.worst is not None else ""
    note = f"{MEANING}. Round {point.round}: {judge.format_mean_sd(spread.mean, spread.sd)}{worst}."
    series = Series("local", "local", "var(--c0)")
    return figure(f"Local {judge.name}", _chart(series, spread, _top([spread]), judge), (), note)


def local_section(painted: Sequence[tuple[Series, list[RunRecord]]]) -> Markup | None:
    """A histogram per method, all on the same axes; nothing where no run has one."""
    found = [(series, pooled(runs)) for series, runs in painted]
    shown = [(series, spread) for series, spread in found if any(binned(spread.values))]
    if not shown:
        return None
    top = _top([spread for _, spread in shown])
    judge = metric_format(*(run for _, runs in painted for run in runs))
    figures = [figure(series.label, _chart(series, spread, top, judge)) for series, spread in shown]
    note = f"{MEANING}; last scored round, the clients of all seeds together."
    return section(f"Local {judge.name}", tag("p", note, class_="note"), charts(*figures, small=True))


def pooled(runs: Sequence[RunRecord]) -> ClientScores:
    """The clients of several runs as one spread; its mean is the mean over the runs."""
    found = [run.curve.last_local.local for run in runs if run.curve.last_local]
    mean = number(mean_sd(spread.mean for spread in found)["mean"])
    return ClientScores(mean=mean, values=tuple(value for spread in found for value in spread.values))


def _top(spreads: Sequence[ClientScores]) -> float:
    """The end of the upright axis for all of these: the highest bar, up to the next full tenth."""
    highest = max(max(binned(spread.values)) / max(1, sum(binned(spread.values))) for spread in spreads)
    return math.ceil(10 * highest - 1e-9) / 10


def _chart(series: Series, spread: ClientScores, top: float, judge: MetricFormat) -> Markup:
    counts = binned(spread.values)
    clients = sum(counts)
    bars = [
        (index / BINS, (index + 1) / BINS, many / clients, _tip(index, many, clients, judge))
        for index, many in enumerate(counts)
    ]
    marks: list[Mark] = [BarsMark(series, bars)]
    if spread.mean is not None and 0 <= spread.mean <= 1:
        marks.append(VerticalLineMark(spread.mean, f"mean {judge.format(spread.mean)}"))
    what = f"local {judge.name}"
    across = PlotAxis(what, "percent" if judge.percent else "plain", low=0.0, high=1.0)
    up = PlotAxis("share of clients", "percent", low=0.0, high=top)
    return plot(marks, across, up, f"Clients by {what}: {series.label}")


def _tip(index: int, many: int, clients: int, judge: MetricFormat) -> str:
    low, high = (judge.format(edge / BINS, 0) for edge in (index, index + 1))
    return f"{low.removesuffix(' %')} to {high}: {format_count(many)} of {format_count(clients)} clients"
