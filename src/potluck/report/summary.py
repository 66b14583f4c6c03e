"""Numbers over runs: cost so far, rounds to a target, the tiers' average, and one row per method over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from potluck.report.budgets import (
    FORMATS,
    KINDS,
    BudgetScore,
    CostBudget,
    budgets,
    score_within,
    spent_by_round,
    spent_until,
)
from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.records import LearningCurve, ModelScore, RoundScores, RunRecord, TierRecord
from potluck.report.run_settings import read_settings, settings_that_differ, written
from potluck.report.statistics import known_scores, paired_difference
from potluck.report.units import CORRELATIONS, MetricFormat

TARGETS = (0.5, 0.8, 0.9, 0.95)
"""The targets of runs whose settings name none. Where there is space for one target only, it is the second."""

MAX_SHARE = 1e9
"""A larger share of a tier is a broken value."""

Row = dict[str, object]


def metric_format(*runs: RunRecord) -> MetricFormat:
    """How to write the metric that the runs share. If their metrics differ it is called just "score"."""
    names = {run.metric for run in runs}
    return MetricFormat.of_metric(names.pop()) if len(names) == 1 else MetricFormat("score", not names & CORRELATIONS)


def metric_name(*runs: RunRecord) -> str:
    """The name of the metric that the runs share, as text."""
    return metric_format(*runs).name


def capitalize(words: str) -> str:
    """The words with a capital first letter; the others stay as they are."""
    return words[:1].upper() + words[1:]


def overall_name(curve: LearningCurve) -> str:
    """What to call the score of a whole run."""
    return "all clients" if curve.on_clients else "global"


@dataclass(frozen=True)
class CostSoFar:
    """What a run has cost up to the end of a round."""

    bytes_down: float = 0.0
    bytes_up: float = 0.0
    device_seconds: float = 0.0
    round_seconds: float = 0.0
    """With the wait for the server."""
    joules: float = 0.0
    flops: float = 0.0

    @property
    def bytes(self) -> float:
        return self.bytes_down + self.bytes_up


def costs_so_far(run: RunRecord) -> dict[int, CostSoFar]:
    """The cost up to each round, from round 0 on."""
    cost = CostSoFar()
    costs = {0: cost}
    for record in run.rounds:
        cost = CostSoFar(
            cost.bytes_down + (record.bytes_down or 0.0),
            cost.bytes_up + (record.bytes_up or 0.0),
            cost.device_seconds + (record.device_seconds or 0.0),
            cost.round_seconds + (record.round_seconds or 0.0),
            cost.joules + (record.joules or 0.0),
            cost.flops + (record.flops or 0.0),
        )
        costs[record.number] = cost
    return costs


def first_round_at(curve: LearningCurve, target: float) -> int | None:
    """The first scored round with a score of at least the target."""
    return next((p.round for p in curve.points if p.score is not None and p.score >= target), None)


def rounds_to(run: RunRecord, target: float) -> int | None:
    """Rounds until the run's score reached the target."""
    return first_round_at(run.curve, target)


def rounds_to_average(run: RunRecord, target: float) -> int | None:
    """Rounds until the tiers' average reached the target."""
    return first_round_at(tier_average(run), target)


def targets(*runs: RunRecord) -> tuple[float, ...]:
    """The scores to which rounds are counted: those that the settings name, sorted if the runs name different ones."""
    named = list(dict.fromkeys(run.targets for run in runs if run.targets))
    if len(named) > 1:
        return tuple(sorted({target for some in named for target in some}))
    return named[0] if named else TARGETS


def main_target(*runs: RunRecord) -> float:
    """The one target to show where there is space for one: the first that the settings name."""
    return targets(*runs)[0] if any(run.targets for run in runs) else TARGETS[1]


def tier_average(run: RunRecord) -> LearningCurve:
    """The mean of the tiers' test scores over the rounds, each tier weighted by its share of clients.

    Papers on heterogeneous models judge by it. A round in which some tier has no test score has no average.
    """
    tiers = _device_tiers(run)
    if not tiers:
        return LearningCurve()
    weights, scores = _tier_weights(tiers), [_test_scores(tier) for tier in tiers]
    rounds = [point.round for point in tiers[0].curve.points if all(point.round in found for found in scores)]
    means = (sum(w * found[index] for w, found in zip(weights, scores, strict=True)) for index in rounds)
    return LearningCurve(
        tuple(RoundScores(index, test=ModelScore(mean)) for index, mean in zip(rounds, means, strict=True))
    )


def worst_tier(run: RunRecord) -> float | None:
    """The lowest final score of a tier; None if some tier has no score: it could be the worst.

    All tiers are judged alike: on the test set, or else by their clients.
    """
    finals = [tier.curve.final for tier in _device_tiers(run)]
    known = [final for final in finals if final is not None]
    alike = len({final.test.value is None for final in known}) == 1
    return min(final.score or 0.0 for final in known) if alike and len(known) == len(finals) else None


def tiers_differ(runs: Sequence[RunRecord]) -> bool:
    """Whether the final scores of some run's tiers differ. If not, the tiers' average repeats the global score."""
    return any(_scores_differ(run) for run in runs)


def _scores_differ(run: RunRecord) -> bool:
    final = tier_average(run).final
    return final is not None and len({_test_scores(tier)[final.round] for tier in _device_tiers(run)}) > 1


def _device_tiers(run: RunRecord) -> list[TierRecord]:
    """The tiers of devices, without the server."""
    return [tier for tier in run.tiers if tier.curve.points or tier.share is not None or tier.clients is not None]


def _test_scores(tier: TierRecord) -> dict[int, float]:
    """The tier's scores on the test set, by round."""
    return {point.round: point.test.value for point in tier.curve.points if point.test.value is not None}


def _tier_weights(tiers: Sequence[TierRecord]) -> list[float]:
    """The tiers' shares, with sum 1; equal if some share is unknown."""
    shares = [tier.share for tier in tiers if tier.share is not None and 0 < tier.share <= MAX_SHARE]
    shares = shares if len(shares) == len(tiers) else [1.0] * len(tiers)
    return [share / sum(shares) for share in shares]


def group_by_method(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ only in their seed, by label.

    Where runs with one label differ in their settings, these become part of the label. If two that do not differ have
    the same seed, there is something else: then the run's name, or else its folder, becomes part of the label.
    """
    by_label: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    groups: dict[str, list[RunRecord]] = {}
    for label, members in by_label.items():
        for name, some in _by_settings(label, members).items():
            alone = len({run.seed for run in some}) == len(some)
            groups |= {name: some} if alone else _group(some, (_name, _folder), name)
    return groups


def _name(run: RunRecord) -> str:
    return run.name


def _folder(run: RunRecord) -> str:
    return str(run.folder)


MAX_TOLD = 3
"""At most so many settings tell the runs of a label apart, where that is enough."""


def _by_settings(label: str, runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs with one label, apart where their settings differ; what differs is then part of the label."""
    alike: list[list[RunRecord]] = []
    differ: dict[str, None] = {}
    for run in runs:
        mine = read_settings(run.settings)
        found = [settings_that_differ(mine, read_settings(some[0].settings)) for some in alike]
        differ |= dict.fromkeys(key for keys in found for key in keys)
        if [] in found:
            alike[found.index([])].append(run)
        else:
            alike.append([run])
    if len(alike) == 1:
        return {label: alike[0]}
    for most in (MAX_TOLD, len(differ)):
        named = {f"{label} · {_told(some[0], list(differ)[:most])}": some for some in alike}
        if len(named) == len(alike):
            return named
    return {f"{label} · {some[0].folder}": some for some in alike}


def _told(run: RunRecord, keys: Sequence[str]) -> str:
    settings = read_settings(run.settings)
    return ", ".join(f"{key}={written(settings.get(key)) or 'default'}" for key in keys)


def _group(
    runs: Sequence[RunRecord], names: Sequence[Callable[[RunRecord], str]], prefix: str = ""
) -> dict[str, list[RunRecord]]:
    by_name: dict[str, list[RunRecord]] = {}
    for run in runs:
        name = names[0](run)
        by_name.setdefault(f"{prefix} · {name}" if prefix else name, []).append(run)
    groups: dict[str, list[RunRecord]] = {}
    for label, members in by_name.items():
        seeds_differ = len({run.seed for run in members}) == len(members)
        groups |= {label: members} if seeds_differ or len(names) == 1 else _group(members, names[1:], label)
    return groups


def mean_sd(values: Iterable[float | None]) -> Row:
    """Mean, sample standard deviation and count of the known values; a single value has no deviation."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "count": len(known),
    }


def mean_of(summary: object) -> float | None:
    """The mean in a result of `mean_sd`."""
    return number(mapping(summary).get("mean"))


def sd_of(summary: object) -> float | None:
    """The standard deviation in a result of `mean_sd`."""
    return number(mapping(summary).get("sd"))


def tier_names(runs: Iterable[RunRecord]) -> list[str]:
    """Every tier that was scored in any run, in the order of first mention."""
    return list(dict.fromkeys(tier.name for run in runs for tier in run.tiers if tier.curve.points))


def method_facts(runs: Sequence[RunRecord]) -> Json:
    """What the method of these runs declares about itself; empty if the runs differ in it."""
    first, *others = (mapping(run.manifest.get("facts")) for run in runs)
    return first if all(other == first for other in others) else {}


def with_results(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs that go into means: not those that diverged or failed."""
    return [run for run in runs if not run.failure]


def failure_words(row: Row) -> str:
    """The runs of a row that diverged or failed, in words and in brackets; empty if there are none."""
    failed = [mapping(one) for one in sequence(row["failed"])]
    words = [f"seed {one['seed']} {one['status']}" + _in_round(one["round"]) for one in failed]
    return f" ({', '.join(words)})" if words else ""


def _in_round(at: object) -> str:
    return f" in round {at}" if isinstance(at, int) else ""


Measure = Callable[[RunRecord], float | None]

MEASURES: dict[str, Measure] = {
    "global": lambda run: _final_score(run.curve),
    "average": lambda run: _final_score(tier_average(run)),
    "worst_tier": worst_tier,
    "local": lambda run: run.curve.last_local.local.mean if run.curve.last_local else None,
    "personal": lambda run: run.curve.last_personal.personal.mean if run.curve.last_personal else None,
    "own mix": lambda run: run.curve.last_personal.own_mix.mean if run.curve.last_personal else None,
    "commonest": lambda run: run.curve.last_personal.commonest if run.curve.last_personal else None,
    "best": lambda run: run.curve.best.score if run.curve.best else None,
    "clients": lambda run: run.curve.final.clients.mean if run.curve.final else None,
    "worst": lambda run: run.curve.final.clients.worst if run.curve.final else None,
}
"""Scores of a whole run, by their names in the rows of a comparison."""


def compare_rows(runs: Sequence[RunRecord]) -> list[Row]:
    """One row per method with mean and standard deviation over its seeds, bounds last. A row is plain JSON.

    A run that diverged or failed is in no mean; its row names it under ``failed``.
    The tiers' average is in all rows or in none: if no run has tiers that differ, it would repeat the global score.
    ``by_seed`` holds the scores of each seed under the names that the row has for their means. ``differences`` holds
    the paired differences of the global score to every other method that is scored alike under the same variant, and
    ``best_other`` the one with the highest mean that is ranked.
    """
    dropped = set() if tiers_differ(with_results(runs)) else {"average"}
    measures = {key: measure for key, measure in MEASURES.items() if key not in dropped}
    aims, limits = targets(*runs), budgets(*runs)
    rows = [_row(label, members, measures, aims, limits) for label, members in group_by_method(runs).items()]
    for row in rows:
        others = [other for other in rows if other is not row and problem(row) == problem(other)]
        row["differences"] = {text(other["label"]): _difference(row, other) for other in others}
        row["best_other"] = _highest(rankable_rows(others))
    return sorted(rows, key=lambda row: bool(row["bound"]))


def problem(row: Row) -> tuple[object, ...]:
    """What two rows must have in common to be compared: variant, metric, classes, and whether clients score."""
    return row["variant"], row["metric"], row["classes"], row["scored_on"]


def _difference(one: Row, other: Row) -> Row | None:
    """The paired difference of two rows' global scores; None if they share no seed."""
    first, second = (known_scores(mapping(row["by_seed"])["global"]) for row in (one, other))
    found = paired_difference(first, second)
    return found.plain() if found else None


def _highest(rows: Sequence[Row]) -> str | None:
    """The label of the highest global mean."""
    means = {text(row["label"]): mean for row in rows if (mean := mean_of(row["global"])) is not None}
    return max(means, key=means.__getitem__, default=None)


def client_measures(rows: Sequence[Row]) -> list[str]:
    """Which scores over clients the rows have, of those that the settings must ask for."""
    return [key for key in ("local", "personal", "own mix") if any(mean_of(row[key]) is not None for row in rows)]


PERSONAL_NOTE = (
    "Personal: each client's model after its local epochs, on the common test set. "
    "Own mix: the same with the client's own mix of labels"
)


def personal_note(rows: Sequence[Row]) -> str:
    """What the columns of personal scores say, and what always saying a client's commonest label would score."""
    shares = [share for row in rows if (share := mean_of(row["commonest"])) is not None]
    return f"{PERSONAL_NOTE}; always saying its commonest label: {max(shares):.1%}." if shares else f"{PERSONAL_NOTE}."


def rankable_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that can be compared: no bounds, and only methods with a shared model if there are any."""
    methods = [row for row in rows if not row["bound"]]
    return [row for row in methods if row["scored_on"] == "test"] or methods


def _row(
    label: str,
    members: list[RunRecord],
    measures: dict[str, Measure],
    aims: Sequence[float],
    limits: Sequence[CostBudget],
) -> Row:
    facts, runs = method_facts(members), with_results(members)
    scores = {key: [measure(run) for run in runs] for key, measure in measures.items()}
    tiers = {name: [_tier_score(run, name) for run in runs] for name in tier_names(runs)}
    within = {limit.key: [_within(run, limit) for run in runs] for limit in limits}
    by_seed = partial(_by_seed, runs)
    return {
        "label": label,
        "variant": members[0].variant,
        "facts": dict(facts),
        "bound": facts.get("bound") is True,
        "runs": len(runs),
        "seeds": [run.seed for run in runs],
        "failed": [
            {"seed": run.seed, "status": run.status, "round": run.manifest.get("fault_round")}
            for run in members
            if run.failure
        ],
        "chosen": _choice(members),
        "unfinished": sum(run.status != "done" for run in runs),
        "rounds": mean_sd(float(run.rounds_done) for run in runs),
        "metric": metric_name(*members),
        "classes": members[0].classes,
        "scored_on": "clients" if any(run.curve.on_clients for run in runs) else "test",
        **{key: mean_sd(values) for key, values in scores.items()},
        "best_by": best_by(*runs),
        "best_round": mean_sd(float(run.curve.best.round) if run.curve.best else None for run in runs),
        "tiers": {name: mean_sd(values) for name, values in tiers.items()},
        "at_budget": {key: _budget_summary(found) for key, found in within.items()},
        "by_seed": {
            **{key: by_seed(values) for key, values in scores.items()},
            "tiers": {name: by_seed(values) for name, values in tiers.items()},
            "at_budget": {key: by_seed(one.score for one in found) for key, found in within.items()},
        },
        "rounds_to": {str(target): mean_sd(rounds_to(run, target) for run in runs) for target in aims},
        "cost_to": {str(target): _cost_to(runs, target) for target in aims},
        "bytes_down": mean_sd(run.totals.bytes_down for run in runs),
        "bytes_up": mean_sd(run.totals.bytes_up for run in runs),
        "bytes": mean_sd(run.totals.bytes for run in runs),
        "flops": mean_sd(run.totals.flops for run in runs),
        "device_seconds": mean_sd(run.device_seconds for run in runs),
        "round_seconds": mean_sd(run.round_seconds for run in runs),
        "joules": mean_sd(run.totals.joules for run in runs),
    }


def _choice(runs: Sequence[RunRecord]) -> Row:
    """What the method chose by tuning; empty if it did not, or if its runs differ in it."""
    first, *others = (dict(run.chosen) for run in runs)
    return first if all(other == first for other in others) else {}


def _by_seed(runs: Iterable[RunRecord], values: Iterable[float | None]) -> dict[str, float]:
    """The known scores of runs by seed, for pairs."""
    pairs = ((run.seed, value) for run, value in zip(runs, values, strict=True))
    return {str(seed): value for seed, value in pairs if seed is not None and value is not None}


def _tier_score(run: RunRecord, name: str) -> float | None:
    tier = run.tier(name)
    return _final_score(tier.curve) if tier else None


def _within(run: RunRecord, limit: CostBudget) -> BudgetScore:
    return score_within(run.curve, spent_by_round(run, limit.kind), limit.amount)


def _budget_summary(found: Sequence[BudgetScore]) -> Row:
    """Mean and deviation of the scores, how many runs ended with budget left, and what these spent on average."""
    unspent = mean_sd(one.unspent_of for one in found)
    ended = {"ended_before": unspent["count"], "spent_in_all": unspent["mean"]}
    return {**mean_sd(one.score for one in found), **ended}


def _cost_to(runs: Sequence[RunRecord], target: float) -> Row:
    """What it cost to reach a target, over the runs that reached it; `reached` says how many did, of `runs`."""
    reached = [(run, round) for run in runs if (round := rounds_to(run, target)) is not None]
    costs = {kind: mean_sd(spent_until(spent_by_round(run, kind), round) for run, round in reached) for kind in KINDS}
    return {"reached": len(reached), "runs": len(runs), **costs}


def target_cost_cells(row: Row, target: float) -> list[str]:
    """Mean costs to a target, and in how many runs it was reached; "not reached" if in none."""
    found = mapping(mapping(row["cost_to"]).get(str(target)))
    reached, runs = integer(found.get("reached")) or 0, integer(found.get("runs")) or 0
    if not reached:
        return ["not reached", *[""] * (len(KINDS) - 1), f"0 of {runs}"]
    return [*(_cost_cell(found, kind) for kind in KINDS), f"{reached} of {runs}"]


def _cost_cell(found: Json, kind: str) -> str:
    return FORMATS[kind](mean_of(found.get(kind))).removesuffix(" rounds")


def best_by(*runs: RunRecord) -> str:
    """What chose the best round of these runs: "validation" or "test"; "several" if runs differ."""
    found = {run.curve.best_by for run in runs}
    return found.pop() if len(found) == 1 else "several"


def best_heading(*runs: RunRecord) -> str:
    """The heading over scores of best rounds, which says what chose them."""
    headings = {"validation": "by validation", "test": "best round by the test set"}
    return headings.get(best_by(*runs), "best round")


def _final_score(curve: LearningCurve | None) -> float | None:
    return curve.final.score if curve and curve.final else None
