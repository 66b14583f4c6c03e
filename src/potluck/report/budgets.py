"""Comparison at equal cost: the score of a run within a budget, and what it had spent when it reached a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from potluck.report.records import LearningCurve, RoundRecord, RunRecord, sum_known
from potluck.report.units import format_bytes, format_count, format_flops, format_joules, format_limit, format_seconds

Spent = Mapping[int, float]
"""What a run has spent up to the end of each round, from round 0 on; empty if that is not known."""

COSTS: Mapping[str, Callable[[RoundRecord], float | None]] = {
    "bytes": lambda record: sum_known((record.bytes_down, record.bytes_up)),
    "time": lambda record: record.device_seconds,
    "energy": lambda record: record.joules,
    "flops": lambda record: record.flops,
}
"""What a round costs, by the name of the budget: as in the tables, of the clients alone. Time: the slowest device's."""

KINDS = ("rounds", *COSTS)
"""What can be budgeted."""

FORMATS: Mapping[str, Callable[[float | None], str]] = {
    "rounds": lambda value: f"{format_count(value)} rounds",
    "bytes": format_bytes,
    "time": format_seconds,
    "energy": format_joules,
    "flops": format_flops,
}


@dataclass(frozen=True)
class CostBudget:
    """A limit on what a run may spend, such as 500 J."""

    kind: str
    """One of `KINDS`."""
    amount: float

    @property
    def key(self) -> str:
        """Its name in rows of a comparison."""
        return f"{self.kind}={self.amount:.15g}"

    @property
    def name(self) -> str:
        """The amount with its unit and all its digits."""
        return format_limit(self.kind, self.amount)


@dataclass(frozen=True)
class BudgetScore:
    """The score of one run within a budget."""

    score: float | None
    """At the last scored round that the budget covers."""
    round: int | None
    unspent_of: float | None = None
    """What the whole run spent, if it ended before the budget was spent; else None."""


def budgets(*runs: RunRecord) -> tuple[CostBudget, ...]:
    """The budgets that the settings of the runs name, each once."""
    return tuple(dict.fromkeys(CostBudget(kind, amount) for run in runs for kind, amount in run.budget.items()))


def with_budget(runs: Iterable[RunRecord], budget: Mapping[str, float]) -> list[RunRecord]:
    """Runs that are looked at with this budget, in place of what their settings name; with none, as they are."""
    return [replace(run, budget=dict(budget)) if budget else run for run in runs]


def spent_by_round(run: RunRecord, kind: str) -> Spent:
    """What the run has spent up to the end of each finished round; empty if no round says what it cost."""
    if kind == "rounds":
        numbers = {0, *(record.number for record in run.rounds), *(point.round for point in run.curve.points)}
        return {number: float(number) for number in sorted(numbers)}
    costs = [COSTS[kind](record) for record in run.rounds]
    if all(cost is None for cost in costs):
        return {}
    sums = accumulate((cost or 0.0 for cost in costs), initial=0.0)
    return dict(zip((0, *(record.number for record in run.rounds)), sums, strict=True))


def score_within(curve: LearningCurve, spent: Spent, limit: float) -> BudgetScore:
    """The score at the last scored round up to which no more than `limit` was spent.

    Rounds between two scored rounds count as the earlier one. A run that ended with budget left is taken at its end.
    """
    covered = -1
    for number, amount in spent.items():
        if amount > limit:
            break
        covered = number
    scored = [point for point in curve.points if point.score is not None and point.round <= covered]
    total = list(spent.values())[-1] if spent else limit
    last = scored[-1] if scored else None
    return BudgetScore(last.score if last else None, last.round if last else None, total if total < limit else None)


def spent_until(spent: Spent, round: int) -> float | None:
    """What was spent up to the end of this round; None if that is not known."""
    return next((amount for number, amount in reversed(list(spent.items())) if number <= round), None)


def known_budget(values: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """The budgets of settings that make sense: known names, amounts above 0."""
    return {kind: amount for kind, amount in values if kind in KINDS and amount is not None and amount > 0}
