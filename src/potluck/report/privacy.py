"""Differential privacy over a run: epsilon over rounds, and what the score was at each epsilon."""

from __future__ import annotations

from potluck.report.curves import overall_series, score_axis
from potluck.report.html import Markup, charts, figure, note, section
from potluck.report.marks import LineMark
from potluck.report.records import Points, RunRecord
from potluck.report.sentences import privacy_guarantee, privacy_meaning, secure_summary
from potluck.report.summary import capitalize, metric_name
from potluck.report.svg import ROUND_AXIS, PlotAxis, plot


def privacy_section(run: RunRecord) -> Markup | None:
    """Curves of epsilon, and what it means; None for a run without noise and without secure sums."""
    words = privacy_note(run)
    if words is None and not run.epsilons:
        return None
    return section("Privacy", words, charts(_epsilon_figure(run), _score_figure(run)))


def privacy_note(run: RunRecord) -> Markup | None:
    """The guarantee in a line, and to whom it is given; and what secure sums let the server see."""
    words, sums = privacy_guarantee(run), secure_summary(run)
    told = [f"Privacy: {words}. {privacy_meaning(run)}"] if words else []
    told += [f"Secure sums: {sums}."] if sums else []
    return note(" ".join(told)) if told else None


def _epsilon_figure(run: RunRecord) -> Markup | None:
    points: Points = [(float(round), epsilon) for round, epsilon in run.epsilons]
    if not points:
        return None
    chart = plot(
        [LineMark(overall_series(run), points)], ROUND_AXIS, PlotAxis("epsilon", low=0.0), "Epsilon over rounds"
    )
    return figure("Epsilon", chart, (), "What the run has revealed of the client that it revealed most of.")


def _score_figure(run: RunRecord) -> Markup | None:
    spent = dict(run.epsilons)
    scores = run.curve.line(lambda point: point.score)
    points: Points = [(spent[int(round)], score) for round, score in scores if int(round) in spent]
    if len(points) < 2:
        return None
    name = capitalize(metric_name(run))
    axis = PlotAxis("epsilon", low=0.0, tight=True)
    chart = plot([LineMark(overall_series(run), points)], axis, score_axis(run), f"{name} over epsilon")
    return figure(f"{name} over epsilon", chart, (), "The score after each scored round, at the epsilon spent by then.")
