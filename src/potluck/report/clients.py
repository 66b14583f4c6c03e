"""Scores of single clients and single classes after the last scored round: histograms, sorted curves, columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.report.curves import run_curves, score_axis, tier_series
from potluck.report.html import Markup, Series, bar_list, charts, figure, foldable, note, section
from potluck.report.marks import BarsMark, ColumnsMark, DotsMark, LineMark, VerticalLineMark
from potluck.report.multiples import MethodRuns, all_runs, is_many
from potluck.report.records import ClientScores, RunRecord
from potluck.report.summary import capitalize, mean_of, mean_sd, metric_format, metric_name
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import MetricFormat, format_count, format_percent

BINS = 20
MAX_NODES = 24
"""More nodes are drawn as a sorted curve, without their names."""
LOCAL_MEANING = "The shared model on each client's own test examples, choosing among the classes that the client owns"


def clients_section(run: RunRecord) -> Markup | None:
    """Scores per client and per class; None if neither was recorded."""
    each = node_figure(run) or sorted_clients_figure(run)
    found = [one for one in (local_figure(run), each, _class_figure(run)) if one]
    return section("A closer look at the end", charts(*found, small=len(found) == 3)) if found else None


def bin_counts(values: Sequence[float]) -> list[int]:
    """How many values lie in each of twenty equal bins of [0, 1]; values outside are not counted."""
    counts = [0] * BINS
    for value in values:
        if 0 <= value <= 1:
            counts[min(BINS - 1, int(value * BINS))] += 1
    return counts


def local_figure(run: RunRecord) -> Markup | None:
    """A histogram of the run's local scores; None if it has none."""
    last = run.curve.last_local
    if last is None or not any(bin_counts(last.local.values)):
        return None
    scores, metric = last.local, metric_format(run)
    worst = f", worst tenth {metric.format(scores.worst)}" if scores.worst is not None else ""
    words = f"{LOCAL_MEANING}. Round {last.round}: {metric.format_mean_sd(scores.mean, scores.sd)}{worst}."
    chart = _histogram(Series("local", "local", "var(--c0)"), scores, _highest_share([scores]), metric)
    return figure(f"Local {metric.name}", chart, (), words)


def compare_local_section(methods: MethodRuns) -> Markup | None:
    """A histogram of local scores per method, all on the same axes; None if no run has any."""
    pooled = [(series, pool_clients(runs)) for series, runs in methods]
    shown = [(series, scores) for series, scores in pooled if any(bin_counts(scores.values))]
    if not shown:
        return None
    top, metric = _highest_share([scores for _, scores in shown]), metric_format(*all_runs(methods))
    figures = [figure(series.label, _histogram(series, scores, top, metric)) for series, scores in shown]
    words = f"{LOCAL_MEANING}; last scored round, the clients of all seeds together."
    drawn = charts(*figures, small=True)
    return foldable(f"Local {metric.name}", is_many(methods), note(words), drawn)


def pool_clients(runs: Sequence[RunRecord]) -> ClientScores:
    """The local scores of the clients of several runs together; the mean is the mean over runs."""
    found = [run.curve.last_local.local for run in runs if run.curve.last_local]
    mean = mean_of(mean_sd(scores.mean for scores in found))
    return ClientScores(mean=mean, values=tuple(value for scores in found for value in scores.values))


def _highest_share(found: Sequence[ClientScores]) -> float:
    """The end of the vertical axis: the highest bar of all histograms, rounded up to a tenth."""
    counts = [bin_counts(scores.values) for scores in found]
    return math.ceil(10 * max(max(bins) / max(1, sum(bins)) for bins in counts) - 1e-9) / 10


def _histogram(series: Series, scores: ClientScores, top: float, metric: MetricFormat) -> Markup:
    counts = bin_counts(scores.values)
    clients = sum(counts)
    bars = [
        (index / BINS, (index + 1) / BINS, count / clients, _bin_text(index, count, clients, metric))
        for index, count in enumerate(counts)
    ]
    marks: list[Mark] = [BarsMark(series, bars)]
    if scores.mean is not None and 0 <= scores.mean <= 1:
        marks.append(VerticalLineMark(scores.mean, f"mean {metric.format(scores.mean)}"))
    name = f"local {metric.name}"
    x_axis = PlotAxis(name, "percent" if metric.percent else "plain", low=0.0, high=1.0)
    y_axis = PlotAxis("share of clients", "percent", low=0.0, high=top)
    return plot(marks, x_axis, y_axis, f"Clients by {name}: {series.label}")


def _bin_text(index: int, count: int, clients: int, metric: MetricFormat) -> str:
    low, high = (metric.format(edge / BINS, 0) for edge in (index, index + 1))
    return f"{low.removesuffix(' %')} to {high}: {format_count(count)} of {format_count(clients)} clients"


def sorted_clients_figure(run: RunRecord) -> Markup | None:
    """Every client's score from the worst to the best, per tier. A flat line means a fair model."""
    marks, shown = [], []
    for series, tier in tier_series(run):
        values = sorted(tier.curve.final.clients.values) if tier.curve.final else []
        if values:
            last = max(1, len(values) - 1)
            marks.append(LineMark(series, [(index / last, value) for index, value in enumerate(values)]))
            shown.append(series)
    if not marks:
        return None
    name = capitalize(metric_name(run))
    x_axis = PlotAxis("clients", "percent", low=0.0, high=1.0)
    chart = plot(marks, x_axis, score_axis(run), f"{name} of every client, sorted")
    return figure(f"{name} over clients", chart, shown, "Each tier's clients from worst to best: flat is fair.")


def node_figure(run: RunRecord) -> Markup | None:
    """The score of every node by name, the lowest first; None if none is known or if they are too many."""
    colours = {tier.name: series.colour for series, tier in tier_series(run)}
    nodes = sorted((node.score, node.name, node) for node in run.nodes if node.score is not None)
    if not 0 < len(nodes) <= MAX_NODES:
        return None
    metric = metric_format(run)
    rows = [
        (Series("", name, colours.get(node.tier, "var(--muted)")), max(0.0, score), metric.format(score))
        for score, name, node in nodes
    ]
    words = "Last scored round, each node on its own examples; coloured by tier."
    return bar_list(f"{capitalize(metric.name)} of every node", rows, words)


def _class_figure(run: RunRecord) -> Markup | None:
    """Accuracy per class: columns for the shared model, dots for the tiers."""
    marks: list[Mark] = []
    shown = []
    for series, curve in run_curves(run):
        accuracies = enumerate(curve.final.test.per_class if curve.final else ())
        values = [(float(label), value, _class_text(label, series, value)) for label, value in accuracies
                  if value is not None]  # fmt: skip
        if not values:
            continue
        if series.key == "whole":
            series = Series(series.key, series.label, "var(--muted)")
            marks.append(ColumnsMark(series, values))
        else:
            marks.append(DotsMark(series, values))
        shown.append(series)
    if not marks:
        return None
    x_axis = PlotAxis("class", "whole", count=10, tight=True)
    y_axis = PlotAxis("accuracy", "percent", low=0.0, high=1.0)
    chart = plot(marks, x_axis, y_axis, "Accuracy per class")
    return figure("Accuracy per class", chart, shown, "Test set, last scored round. Bars: global; dots: tiers.")


def _class_text(label: int, series: Series, value: float) -> str:
    return f"class {label}, {series.label}: {format_percent(value)}"
