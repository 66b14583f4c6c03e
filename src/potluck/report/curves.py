"""Learning curves: score and loss over rounds, of one run and of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from potluck.report.html import COLOURS, Markup, Series, figure, note, palette
from potluck.report.marks import BandMark, LineMark
from potluck.report.multiples import MethodRuns, all_runs, method_charts, take_turns
from potluck.report.records import LearningCurve, Points, RunRecord, TierRecord
from potluck.report.summary import capitalize, mean_of, mean_sd, metric_format, metric_name, overall_name, sd_of
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis, plot

VALIDATION_DASH = "4 4"
TRAINING_DASH = "2 3"


def score_axis(*runs: RunRecord) -> PlotAxis:
    """The axis of the metric that the runs share."""
    metric = metric_format(*runs)
    return PlotAxis(metric.name, "percent" if metric.percent else "plain", tight=True, pad=0.04)


def overall_series(run: RunRecord) -> Series:
    """The series of the whole run: the shared model, or the mean over all clients' own models."""
    return Series("whole", overall_name(run.curve), "var(--ink)", thick=True)


def tier_series(run: RunRecord) -> list[tuple[Series, TierRecord]]:
    """A series per tier, with the same colour in every chart of a run."""
    return list(zip(palette(tier.name for tier in run.tiers), run.tiers, strict=True))


def run_curves(run: RunRecord) -> list[tuple[Series, LearningCurve]]:
    """The learning curves of the whole run and of each tier that was scored."""
    curves = [(overall_series(run), run.curve)] + [(series, tier.curve) for series, tier in tier_series(run)]
    return [(series, curve) for series, curve in curves if curve.final or curve.best]


def score_figure(run: RunRecord) -> Markup:
    """The score over rounds, overall and per tier."""
    curves = run_curves(run)
    marks = [mark for series, curve in reversed(curves) for mark in _test_and_validation(series, curve)]
    solid = "Solid: mean over clients" if run.curve.on_clients else "Solid: test"
    dashed = "; dashed: validation" if any(_has_validation(curve) for _, curve in curves) else ""
    words = f"{solid}{dashed}. A click on a name shows it alone."
    chart = plot(take_turns(marks), ROUND_AXIS, score_axis(run), f"{capitalize(metric_name(run))} over rounds")
    return figure(capitalize(metric_name(run)), chart, [series for series, _ in curves], words)


def _has_validation(curve: LearningCurve) -> bool:
    return any(point.validation.value is not None for point in curve.points)


def _test_and_validation(series: Series, curve: LearningCurve) -> list[Mark]:
    """A solid line for the test set, a dashed one for validation."""
    test, validation = curve.line(lambda point: point.score), curve.line(lambda point: point.validation.value)
    name = f"{series.label}, {'clients' if curve.on_clients else 'test'}"
    return [
        LineMark(series, test, name=name),
        LineMark(series, validation, VALIDATION_DASH, f"{series.label}, validation"),
    ]


def loss_figure(run: RunRecord) -> Markup:
    """Training and test loss over rounds."""
    training = [(float(record.number), record.loss) for record in run.rounds if record.loss is not None]
    shown, marks = [], []
    if training:
        marks.append(LineMark(Series("training", "training", "var(--muted)"), training, TRAINING_DASH))
        shown.append(Series("training", "training", "var(--muted)", TRAINING_DASH))
    for series, curve in run_curves(run):
        if line := curve.line(lambda point: point.test.loss):
            marks.append(LineMark(series, line))
            shown.append(series)
    chart = plot(take_turns(marks), ROUND_AXIS, PlotAxis("loss", low=0.0), "Loss over rounds")
    return figure("Loss", chart, shown, "Dotted: mean training loss of the round's clients; solid: test loss.")


def compare_curves(caption: str, methods: MethodRuns, pick: Callable[[RunRecord], LearningCurve]) -> Markup:
    """One learning curve per method, mean and standard deviation over seeds."""

    def draw(series: Series, runs: list[RunRecord]) -> list[Mark]:
        lines = [pick(run).line(lambda point: point.score) for run in runs]
        return mean_marks(series, [[(index, index, value) for index, value in line] for line in lines])

    axis = score_axis(*all_runs(methods))
    return method_charts(caption, methods, draw, ROUND_AXIS, axis, f"{capitalize(axis.title)} over rounds: {caption}")


def mean_marks(series: Series, lines: Iterable[Iterable[tuple[float, float, float]]]) -> list[Mark]:
    """A line through the means of several lines, and a band of one standard deviation.

    Lines hold (slot, x, y). Points in the same slot are averaged.
    """
    slots: dict[float, list[tuple[float, float]]] = {}
    for line in lines:
        for slot, x, y in line:
            slots.setdefault(slot, []).append((x, y))
    points: Points = []
    edges, spreads = [], {}
    for _, found in sorted(slots.items()):
        x = sum(x for x, _ in found) / len(found)
        summary = mean_sd(y for _, y in found)
        mean, sd = mean_of(summary) or 0.0, sd_of(summary)
        points.append((x, mean))
        spreads[x, mean] = (sd, len(found))
        if sd is not None:
            edges.append((x, max(min(0.0, mean), mean - sd), min(1.0, mean + sd)))
    return [BandMark(series, edges), LineMark(series, points, spreads=spreads)]


def lines_note(methods: MethodRuns) -> Markup:
    """How to read charts with a line per method."""
    seeds = any(len(runs) > 1 for _, runs in methods)
    words = "Lines: mean over seeds; bands: ± one standard deviation." if seeds else "Lines: one seed each."
    if len(methods) > COLOURS:
        words += " A chart for each family, all on the same scale; grey: the methods of the others."
    return note(f"{words} A click on a name shows it alone in all charts here, a second click shows all.")
