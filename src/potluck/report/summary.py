"""What runs add up to: rounds to a target, cost so far, and methods side by side over their seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from potluck.report.average import average, telling
from potluck.report.needs import facts
from potluck.report.records import LearningCurve, RunRecord
from potluck.report.units import CORRELATIONS, MetricFormat

TARGETS = (0.5, 0.8, 0.9, 0.95)
"""The scores to which rounds are counted where runs name none; the second is the one where there is room for one."""

Row = dict[str, object]


@dataclass(frozen=True)
class Spent:
    """What a run had cost by the end of a round."""

    bytes_down: float = 0.0
    bytes_up: float = 0.0
    device_seconds: float = 0.0
    joules: float = 0.0

    @property
    def bytes(self) -> float:
        return self.bytes_down + self.bytes_up


def spent(run: RunRecord) -> dict[int, Spent]:
    """The cost so far after every round, from 0 on."""
    so_far = Spent()
    costs = {0: so_far}
    for line in run.rounds:
        so_far = Spent(
            so_far.bytes_down + (line.bytes_down or 0.0),
            so_far.bytes_up + (line.bytes_up or 0.0),
            so_far.device_seconds + (line.device_seconds or 0.0),
            so_far.joules + (line.joules or 0.0),
        )
        costs[line.number] = so_far
    return costs


def reached(curve: LearningCurve, target: float) -> int | None:
    """The first scored round whose score is at least the target."""
    return next((p.round for p in curve.points if p.score is not None and p.score >= target), None)


def rounds_to(run: RunRecord, target: float) -> int | None:
    """The first scored round with this test score; the mean over clients where no shared model is scored."""
    return reached(run.curve, target)


def rounds_to_average(run: RunRecord, target: float) -> int | None:
    """The first scored round in which the tiers' average is at least the target."""
    return reached(average(run), target)


def targets(*runs: RunRecord) -> tuple[float, ...]:
    """The scores to which rounds are counted: those that runs name, in their order, or sorted where runs differ."""
    named = list(dict.fromkeys(run.targets for run in runs if run.targets))
    if len(named) > 1:
        return tuple(sorted({target for some in named for target in some}))
    return named[0] if named else TARGETS


def main_target(*runs: RunRecord) -> float:
    """The one score to which rounds are counted where there is room for one: the first that is named."""
    return targets(*runs)[0] if any(run.targets for run in runs) else TARGETS[1]


def groups(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs of one method that differ in their seed. Where a label repeats a seed its runs differ in more than that,
    so the run's name tells them apart, and failing that its folder."""
    return _split(runs, (lambda run: run.label, lambda run: run.name, lambda run: str(run.folder)))


def _split(
    runs: Sequence[RunRecord], names: Sequence[Callable[[RunRecord], str]], known: str = ""
) -> dict[str, list[RunRecord]]:
    sorted_: dict[str, list[RunRecord]] = {}
    for run in runs:
        name = names[0](run)
        sorted_.setdefault(f"{known} · {name}" if known else name, []).append(run)
    found: dict[str, list[RunRecord]] = {}
    for label, members in sorted_.items():
        apart = len({run.seed for run in members}) == len(members)
        found |= {label: members} if apart or len(names) == 1 else _split(members, names[1:], label)
    return found


def mean_sd(values: Iterable[float | None]) -> Row:
    """Mean and sample standard deviation of what is known; one value has no deviation."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "count": len(known),
    }


def _final(curve: LearningCurve | None) -> float | None:
    return curve.final.score if curve and curve.final else None


def _chosen(curve: LearningCurve) -> float | None:
    """The test score where validation was best."""
    return curve.best.score if curve.best else None


def metric_format(*runs: RunRecord) -> MetricFormat:
    """How to write the metric that the runs share; if their metrics differ it is called just "score"."""
    names = {run.metric for run in runs}
    return MetricFormat.of_metric(names.pop()) if len(names) == 1 else MetricFormat("score", not names & CORRELATIONS)


def metric(*runs: RunRecord) -> str:
    """The name of the metric that the runs share, as text."""
    return metric_format(*runs).name


def capital(words: str) -> str:
    """The words as they begin a sentence."""
    return words[:1].upper() + words[1:]


def tier_names(runs: Iterable[RunRecord]) -> list[str]:
    """Every tier that was scored in any run, in the order of first mention."""
    return list(dict.fromkeys(tier.name for run in runs for tier in run.tiers if tier.curve.points))


def compare_rows(runs: Sequence[RunRecord]) -> list[Row]:
    """One row per method, bounds last: mean and sd over its seeds. Plain values throughout: a row is JSON as it is.

    The tiers' average is in every row or in none: where no run has tiers that differ it would repeat the global score.
    """
    rows = [_row(label, members, targets(*runs), telling(runs)) for label, members in groups(runs).items()]
    return sorted(rows, key=lambda row: bool(row["bound"]))


def ranked(rows: Sequence[Row]) -> list[Row]:
    """The rows that may be set against each other: no bounds, and where some have a shared model only those."""
    able = [row for row in rows if not row["bound"]]
    return [row for row in able if row["scored_on"] == "test"] or able


def _row(label: str, runs: list[RunRecord], aims: Sequence[float], averaged: bool) -> Row:
    declared = facts(runs)
    return {
        "label": label,
        "variant": runs[0].variant,
        "facts": dict(declared),
        "bound": declared.get("bound") is True,
        "runs": len(runs),
        "seeds": [run.seed for run in runs],
        "unfinished": sum(run.status != "done" for run in runs),
        "rounds": mean_sd(float(run.rounds_done) for run in runs),
        "metric": metric(*runs),
        "scored_on": "clients" if any(run.curve.on_clients for run in runs) else "test",
        "global": mean_sd(_final(run.curve) for run in runs),
        **({"average": mean_sd(_final(average(run)) for run in runs)} if averaged else {}),
        "local": mean_sd(run.curve.last_local.local.mean if run.curve.last_local else None for run in runs),
        "best": mean_sd(_chosen(run.curve) for run in runs),
        "tiers": {
            name: mean_sd(_final(t.curve if (t := run.tier(name)) else None) for run in runs)
            for name in tier_names(runs)
        },
        "clients": mean_sd(run.curve.final.clients.mean if run.curve.final else None for run in runs),
        "worst": mean_sd(run.curve.final.clients.worst if run.curve.final else None for run in runs),
        "rounds_to": {str(target): mean_sd(rounds_to(run, target) for run in runs) for target in aims},
        "bytes_down": mean_sd(run.totals.bytes_down for run in runs),
        "bytes_up": mean_sd(run.totals.bytes_up for run in runs),
        "bytes": mean_sd(run.totals.bytes for run in runs),
        "flops": mean_sd(run.totals.flops for run in runs),
        "device_seconds": mean_sd(run.device_seconds for run in runs),
        "joules": mean_sd(run.totals.joules for run in runs),
    }
