"""What the report says in words, on the page and in the terminal.

Which method did best, what a method needs, which replies were refused, and the privacy guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.report.json_values import integer, mapping, number, text
from potluck.report.records import SERVER, RunRecord
from potluck.report.summary import (
    Row,
    compare_rows,
    mean_of,
    metric_format,
    rankable_rows,
    sd_of,
    tier_names,
    with_results,
)
from potluck.report.units import GAP, MetricFormat

TIE = 0.0005
"""Scores closer than this look equal in every table of the report."""


@dataclass(frozen=True)
class Lead:
    """The best of several means, and its margin over the second best."""

    label: str
    mean: float
    second: str
    margin: float
    sd: float
    """The larger standard deviation over seeds of the two; 0 if each has one seed."""

    def sentence(self, metric: MetricFormat) -> str:
        """The winner and the margin in words."""
        winner = f"{self.label} with {metric.format(self.mean)}"
        if self.margin < TIE:
            return f"{winner}, level with {self.second}"
        spread = f", within the seeds' spread of ± {metric.format_difference(self.sd).removesuffix(' points')}"
        caution = spread if self.margin <= self.sd else ""
        return f"{winner}, {metric.format_difference(self.margin)} above {self.second}{caution}"


def verdict(runs: Sequence[RunRecord]) -> list[str]:
    """Which method has the best final score, overall and on each tier; empty if the runs cannot be compared."""
    rows = compare_rows(runs)
    problems = {(run.metric, run.classes) for run in runs if run.classes is not None}
    variants = {run.variant for run in runs}  # runs of two variants differ in their settings, not in their quality
    if len(rows) < 2 or len(problems) > 1 or len(variants) > 1:
        return []
    ranked, metric = rankable_rows(rows), metric_format(*runs)
    overall = find_lead({text(row["label"]): row["global"] for row in ranked})
    sentences = [f"Best final {metric.name}: {overall.sentence(metric)}."] if overall else []
    for name in tier_names(runs):
        if found := find_lead({text(row["label"]): mapping(row["tiers"]).get(name) for row in ranked}):
            sentences.append(f"On {name}: {found.sentence(metric)}.")
    return [*sentences, *_cautions(rows, ranked, runs)]


def find_lead(summaries: dict[str, object]) -> Lead | None:
    """The best mean among {label: result of `mean_sd`}; None if fewer than two means are known."""
    means = [(mean, label, sd_of(summary) or 0.0) for label, summary in summaries.items()
             if (mean := mean_of(summary)) is not None]  # fmt: skip
    if len(means) < 2:
        return None
    first, second = sorted(means, key=lambda item: -item[0])[:2]
    return Lead(first[1], first[0], second[1], first[0] - second[0], max(first[2], second[2]))


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
    each, delta, clip, noise = (number(found.get(key)) for key in ("epsilon_each", "delta", "clip", "noise"))
    if each is None or delta is None or clip is None or noise is None:
        return ""
    epsilon, uploads = number(found.get("epsilon")), integer(found.get("uploads"))
    words = f"ε = {each:.3g} for each upload"
    if epsilon is not None and uploads is not None:
        times = "once" if uploads == 1 else f"{uploads} times"
        words = f"ε = {epsilon:.3g} for all that a client uploaded ({times} at most), {each:.3g} for each upload"
    return f"{words}, at δ = {delta:g}; updates clipped to {clip:.3g}, with noise of {noise:.3g} times that"
