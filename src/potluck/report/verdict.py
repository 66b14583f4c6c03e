"""Who did best where, in words: the winner and the margin, never more than the numbers carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.report.json_values import mapping, number, text
from potluck.report.records import RunRecord
from potluck.report.summary import Row, compare_rows, metric_format, ranked, tier_names
from potluck.report.units import MetricFormat

LEVEL = 0.0005
"""Scores closer than this look the same in every table of the report."""


@dataclass(frozen=True)
class Lead:
    """The best of several means, and how far the next one is behind."""

    label: str
    mean: float
    behind: str
    margin: float
    sd: float
    """The larger spread over seeds of the two; 0 where there was one seed."""

    def told(self, judged: MetricFormat) -> str:
        """The winner and the margin, in words."""
        with_ = f"{self.label} with {judged.format(self.mean)}"
        if self.margin < LEVEL:
            return f"{with_}, level with {self.behind}"
        within = f", within the seeds' spread of ± {judged.format_difference(self.sd).removesuffix(' points')}"
        small = within if self.margin <= self.sd else ""
        return f"{with_}, {judged.format_difference(self.margin)} above {self.behind}{small}"


def verdict(runs: Sequence[RunRecord]) -> list[str]:
    """Sentences on the final score; none where the runs cannot be set side by side."""
    rows = compare_rows(runs)
    tasks = {(run.metric, run.classes) for run in runs if run.classes is not None}
    if len(rows) < 2 or len(tasks) > 1:
        return []
    if len({run.variant for run in runs}) > 1:  # other settings, not better methods
        return []
    able, judged = ranked(rows), metric_format(*runs)
    tiers = {
        name: lead({text(row["label"]): mapping(row["tiers"]).get(name) for row in able}) for name in tier_names(runs)
    }
    overall = lead({text(row["label"]): row["global"] for row in able})
    best = [f"Best final {judged.name}: {overall.told(judged)}."] if overall else []
    best += [f"On {name}: {found.told(judged)}." for name, found in tiers.items() if found]
    return [*best, *_cautions(rows, able, runs)]


def lead(summaries: dict[str, object]) -> Lead | None:
    """The best mean among {label: mean and sd}; nothing where fewer than two are known."""
    known = []
    for label, summary in summaries.items():
        mean = number(mapping(summary).get("mean"))
        if mean is not None:
            known.append((mean, label, number(mapping(summary).get("sd")) or 0.0))
    if len(known) < 2:
        return None
    first, second = sorted(known, key=lambda item: -item[0])[:2]
    return Lead(first[1], first[0], second[1], first[0] - second[0], max(first[2], second[2]))


def _cautions(rows: list[Row], able: list[Row], runs: Sequence[RunRecord]) -> list[str]:
    found = []
    if bounds := [text(row["label"]) for row in rows if row["bound"]]:
        found.append(f"Not ranked: {', '.join(bounds)}, a bound that ignores what devices can carry.")
    left_out = [text(row["label"]) for row in rows if row not in able and not row["bound"]]
    if left_out:
        found.append(f"Not ranked: {', '.join(left_out)}, scored by its clients and not on the shared test set.")
    done = sorted({run.rounds_done for run in runs})
    if len(done) > 1:
        found.append(f"The runs differ in length: {done[0]} to {done[-1]} rounds done.")
    return found
