"""What the report says in words, on the page and in the terminal.

Which method did best, what a method needs, which replies were refused, and the privacy guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from potluck.report.budgets import FORMATS, CostBudget
from potluck.report.json_values import Json, integer, mapping, number, text
from potluck.report.records import SERVER, RunRecord
from potluck.report.statistics import TIE, Lead, PairedDifference, Rival, find_lead
from potluck.report.summary import (
    Row,
    capitalize,
    compare_rows,
    metric_format,
    problem,
    rankable_rows,
    tier_names,
    with_results,
)
from potluck.report.units import GAP, MetricFormat


def verdict(runs: Sequence[RunRecord], *, by_tier: bool = True) -> list[str]:
    """Which method is ahead in the final score, as far as paired seeds carry the claim; empty if runs do not compare.

    One sentence for the global score, one for the tiers' average and, `by_tier`, one for each tier. "Ahead" is claimed
    only of a method that beats each other one by a paired t-test after Holm's correction; see `statistics.Lead`.
    """
    rows = compare_rows(runs)
    problems = {(run.metric, run.classes) for run in runs if run.classes is not None}
    variants = {run.variant for run in runs}  # runs of two variants differ in their settings, not in their quality
    if len(rows) < 2 or len(problems) > 1 or len(variants) > 1:
        return []
    ranked, metric = rankable_rows(rows), metric_format(*runs)
    columns = {f"Final {metric.name}": partial(column, "global"), "Average of the tiers": partial(column, "average")}
    columns |= {f"On {name}": partial(tier_column, name) for name in tier_names(runs) if by_tier}
    leads = {title: lead for title, pick in columns.items() if (lead := find_lead(ranked, pick))}
    sentences = [f"{title}: {lead_words(lead, metric)}." for title, lead in leads.items()]
    return [*sentences, *_chance_caution(ranked, list(leads.values())), *_cautions(rows, ranked, runs)]


def column(key: str, row: Json) -> object:
    """A column of a comparison: a score of the whole run."""
    return row.get(key)


def tier_column(name: str, row: Json) -> object:
    """A column of a comparison: the score of a tier."""
    return mapping(row["tiers"]).get(name)


def budget_column(key: str, row: Json) -> object:
    """A column of a comparison: the score within a budget."""
    return mapping(row["at_budget"]).get(key)


def best_labels(rows: Sequence[Row], pick: Callable[[Json], object]) -> set[str]:
    """The methods that a table marks as the best of a column: ahead of each other one, as the verdict has it.

    Each variant, and each problem, has its own best. Where the seeds do not carry the claim, nothing is marked.
    """
    problems: dict[object, list[Row]] = {}
    for row in rankable_rows(rows):
        problems.setdefault(problem(row), []).append(row)
    leads = (find_lead(alike, pick) for alike in problems.values())
    return {lead.label for lead in leads if lead and lead.is_best}


def budget_sign(summary: object) -> str:
    """The sign of a score within a budget that some run did not spend."""
    return " §" if number(mapping(summary).get("ended_before")) else ""


def budget_notes(rows: Sequence[Row], limits: Sequence[CostBudget]) -> list[str]:
    """What a column of scores within a budget shows, and which methods have budget left."""
    if not limits:
        return []
    names = ", ".join(f"at {limit.name}" for limit in limits)
    notes = [f"{capitalize(names)}: the score at the last scored round within the budget."]
    for limit in limits:
        ended = {text(row["label"]): mapping(budget_column(limit.key, row)) for row in rows}
        words = [f"{label}, {_ended_words(found, limit)}" for label, found in ended.items() if budget_sign(found)]
        notes += [f"§ Ended with some of {limit.name} left, and taken at the end: {'; '.join(words)}."] * bool(words)
    return notes


def _ended_words(found: Json, limit: CostBudget) -> str:
    """What the runs that ended before the budget was spent have spent, and how many they are if not all."""
    ended, runs = integer(found.get("ended_before")) or 0, integer(found.get("count")) or 0
    some = f"{ended} of {runs} runs, " if ended < runs else ""
    return f"{some}all of it {FORMATS[limit.kind](number(found.get('spent_in_all')))}"


def lead_words(lead: Lead, metric: MetricFormat) -> str:
    """The highest mean, the method that is closest to it, and whether the seeds carry the difference."""
    score, closest = metric.format(lead.mean), lead.rivals[0]
    if lead.shared_seeds < 2:
        margin = lead.mean - closest.mean
        distance = f"{metric.format_difference(margin)} above" if margin >= TIE else "level with"
        return f"{lead.label} has the highest, {score}, {distance} {closest.label}"
    if not lead.is_best:
        return _doubt_words(lead, metric)
    found, others = closest.difference, len(lead.rivals) - 1
    assert found is not None  # it is beaten
    proof = f"95 % interval {_interval_words(found, metric)}; in {found.ahead} of {found.count} seeds"
    distance = f"{metric.format_difference(found.mean)} ({proof})"
    rest = "the other method" if others == 1 else f"each of the {others} other methods"
    more = f", and of {rest} (Holm's correction for {others + 1} comparisons)" if others else ""
    return f"{lead.label}, {score}, is ahead of {closest.label} by {distance}{more}"


def _doubt_words(lead: Lead, metric: MetricFormat) -> str:
    """The highest mean and the first method that it is not shown to be ahead of."""
    doubtful = [rival for rival in lead.rivals if not rival.beaten]
    rival, *others = doubtful
    to_others = f"that to {others[0].label}" if len(others) == 1 else f"those to {len(others)} others"
    rest = f"; so may {to_others}" if others else ""
    found, start = rival.difference, f"{lead.label} has the highest mean, {metric.format(lead.mean)}, but"
    if found is None or found.count == 1:
        shared = "no seed" if found is None else "only one seed"
        return f"{start} shares {shared} with {rival.label}, so nothing can be said about chance"
    if found.is_level:
        return f"{lead.label}, {metric.format(lead.mean)}, is level with {rival.label} in each of {found.count} seeds"
    if found.low is None:
        same = f"{metric.format_difference(found.mean)} in each of {found.count} seeds"
        return f"{start} its difference to {rival.label} ({same}) does not vary, so it has no interval"
    ahead = f"ahead in {found.ahead} of {found.count} seeds"
    numbers = f"{metric.format_difference(found.mean)}, {_interval_words(found, metric)}; {ahead}"
    if found.mean <= 0:
        return f"{start} not on the seeds that it shares with {rival.label} ({numbers})"
    picked = _picked_words(rival, len(lead.rivals) + 1)
    return f"{start} over {found.count} seeds its difference to {rival.label} ({numbers}) may be chance{picked}{rest}"


def _picked_words(rival: Rival, methods: int) -> str:
    """Why an interval without 0 is no proof: the method was picked as the best of several."""
    excludes_zero = rival.difference is not None and (rival.difference.low or 0.0) > 0
    return f", as it is the best of {methods} methods" if excludes_zero else ""


def _interval_words(found: PairedDifference, metric: MetricFormat) -> str:
    return GAP if found.low is None or found.high is None else metric.format_interval(found.low, found.high)


def _chance_caution(ranked: list[Row], leads: list[Lead]) -> list[str]:
    """That nothing is known about chance, where no two methods share two seeds."""
    if not leads or any(lead.shared_seeds > 1 for lead in leads):
        return []
    one = all((number(row["runs"]) or 0) <= 1 for row in ranked)
    return [f"{'One seed' if one else 'Methods share one seed at most'}: nothing can be said about chance."]


def _cautions(rows: list[Row], ranked: list[Row], runs: Sequence[RunRecord]) -> list[str]:
    found = []
    if bounds := [text(row["label"]) for row in rows if row["bound"]]:
        found.append(f"Not ranked: {', '.join(bounds)}, a bound that ignores what devices can carry.")
    if others := [text(row["label"]) for row in rows if row not in ranked and not row["bound"]]:
        found.append(f"Not ranked: {', '.join(others)}, scored by its clients and not on the shared test set.")
    done = sorted({run.rounds_done for run in with_results(runs)})
    if len(done) > 1:
        found.append(f"The runs differ in length: {done[0]} to {done[-1]} rounds done.")
    return found


NEEDS = ("networks", "public", "memory", "larger", "secure")
"""Column names of what a method needs and allows, in the order of `needs_cells`."""
NEEDS_CAPTION = (
    "networks that devices may train: one for all, parts of one in width or depth, any   public: rows needed\n"
    "memory: clients keep some   larger: a server model may outgrow the clients'   secure: sums of uploads suffice"
)
"""What these columns mean, in short, for the terminal."""
NEEDS_NOTE = (
    "Networks that devices may train: one for all, parts of one that differ in width or depth, or any. Public rows "
    "that are needed: inputs, or labels too. Memory: clients keep something from round to round. Larger: the server's "
    "model may be larger than every client's. Secure: the server needs only sums, so secure aggregation is possible."
)


def needs_cells(facts: object) -> list[str]:
    """What a method needs and allows, one cell per name in `NEEDS`; gaps if the method declares nothing."""
    found = mapping(facts)
    if not found:
        return [GAP] * len(NEEDS)
    public = text(found.get("public"))
    flags = ["yes" if found.get(key) is True else "" for key in ("memory", "larger", "sums")]
    return [text(found.get("networks")) or GAP, public if public != "none" else "", *flags]


def format_needs(facts: object) -> str:
    """What a method needs and allows, as a list of words."""
    networks, public, *flags = needs_cells(facts)
    kinds = {"one": "one network", "width": "widths of one network", "depth": "depths of one network"}
    words = [kinds.get(networks, f"{networks} networks")] + ([f"public {public}"] if public else [])
    names = zip(("memory", "larger server", "secure sums"), flags, strict=True)
    return ", ".join(words + [name for name, flag in names if flag == "yes"])


def refusal_summary(run: RunRecord) -> str:
    """How many replies were refused, and the most frequent reason, in a line; empty if none was refused."""
    refusals = [failure for failure in run.failures if failure.outcome == "quarantined"]
    if not refusals:
        return ""
    first, times = refusals[0], sum(failure.times for failure in refusals)
    source = "of the server's own" if first.tier == SERVER else f"from tier '{first.tier}'"
    source = f"from {first.node}" if first.node else source
    replies = "1 reply" if times == 1 else f"{times} replies"
    return f"{replies}; {first.times} {source}: {first.reason or 'no reason given'}"


def privacy_guarantee(run: RunRecord) -> str:
    """The differential privacy of the run in a line; empty if updates got no noise."""
    found = mapping(run.manifest.get("privacy"))
    if found.get("where") == "server":
        return _central_guarantee(found)
    each, delta, clip, noise = (number(found.get(key)) for key in ("epsilon_each", "delta", "clip", "noise"))
    if each is None or delta is None or clip is None or noise is None:
        return ""
    epsilon, uploads = number(found.get("epsilon")), integer(found.get("uploads"))
    words = f"ε = {each:.3g} for each upload"
    if epsilon is not None and uploads is not None:
        times = "once" if uploads == 1 else f"{uploads} times"
        words = f"ε = {epsilon:.3g} for all that a client uploaded ({times} at most), {each:.3g} for each upload"
    if found.get("where") == "clients":
        how = f"updates clipped to {clip:.3g}; every opened sum has noise of at least {noise:.3g} times that"
        return f"{words}, against {NEIGHBOURS['replace-one']}, at δ = {delta:g}; {how}"
    return f"{words}, at δ = {delta:g}; updates clipped to {clip:.3g}, with noise of {noise:.3g} times that"


def secure_summary(run: RunRecord) -> str:
    """What secure sums let the server see, in a line; empty without [secure]."""
    found = mapping(run.manifest.get("secure"))
    least, entries, opened = (integer(found.get(key)) for key in ("min_holders", "entries", "opened"))
    if least is None:
        return ""
    words = f"the server saw sums of at least {least} clients, and no single update"
    if not entries or opened is None:
        return words
    rest = "" if opened == entries else "; fewer clients held the rest, which kept its value"
    return f"{words}; {opened / entries:.0%} of all entries were opened{rest}"


NEIGHBOURS = {
    "add-or-remove": "a client that is there or not",
    "replace-one": "a client with any other data",
    "zero-out": "a client whose updates are left out",
}
"""Which data sets epsilon compares, in words."""


def _central_guarantee(found: Json) -> str:
    """The differential privacy of sums in a line."""
    epsilon, delta, clip, noise = (number(found.get(key)) for key in ("epsilon", "delta", "clip", "noise"))
    if delta is None or clip is None or noise is None:
        return ""
    tree = found.get("mechanism") == "tree"
    how = f"sums of updates clipped to {clip:.3g}, with noise of {noise:.3g} times that"
    how += " on every node of a tree over rounds" if tree else ""
    if epsilon is None:
        return f"{how}; δ = {delta:g}"
    against = NEIGHBOURS.get(text(found.get("neighbours")), "neighbouring data")
    releases, rate = integer(found.get("releases")), number(found.get("rate"))
    times = f" in {releases} released sums" if releases is not None else ""
    drawn = f", each client drawn with a probability of {rate:.3g} at most" if rate is not None else ""
    own = {tier: share for tier, told in mapping(found.get("rates")).items() if (share := number(told)) is not None}
    drawn += f" ({', '.join(f'{tier}: {share:.3g}' for tier, share in own.items())})" if drawn and own else ""
    return f"ε = {epsilon:.3g} for {against}{times}, at δ = {delta:g}; {how}{drawn}"


def privacy_meaning(run: RunRecord) -> str:
    """To whom the guarantee is given, in a sentence."""
    scores = "scores on clients' own examples are not part of it."
    if mapping(run.manifest.get("privacy")).get("where") == "server":
        return (
            "Central differential privacy, against everyone who sees the models; the server itself is trusted to add "
            f"the noise. Whoever reads this run folder sees who took part; {scores}"
        )
    if mapping(run.manifest.get("privacy")).get("where") == "clients":
        return (
            "Distributed differential privacy, also against the server: clients add the noise together, under the "
            f"masks of secure sums, and at least secure.min_holders of them must be honest; {scores}"
        )
    return f"Local differential privacy, simulated; {scores}"
