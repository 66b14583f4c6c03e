"""How evenly a method trains the units of its model: counts, milestones, and what theory says of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from potluck.report.json_values import mapping, number, sequence
from potluck.report.marks import PlotStep
from potluck.report.records import GroupCoverage, Points, RunRecord

CELLS = 256
"""Cells drawn of one group: a group with more units is drawn in stretches of equal length."""


def cells(counts: Sequence[float | None], most: int = CELLS) -> list[PlotStep]:
    """The counts in at most `most` cells, in the order of the units."""
    size = max(1, -(-len(counts) // most))
    return [_cell(start, counts[start : start + size]) for start in range(0, len(counts), size)]


def _cell(start: int, counts: Sequence[float | None]) -> PlotStep:
    known, last = [count for count in counts if count is not None], start + len(counts) - 1
    return (
        PlotStep(start, last, statistics.fmean(known), min(known), max(known)) if known else PlotStep(start, last, None)
    )


def has_coverage(run: RunRecord) -> bool:
    """Whether the run recorded how often units were trained."""
    return bool(run.coverage) or any(line.least_trained is not None for line in run.rounds)


def mean_coverage(runs: Sequence[RunRecord], name: str, units: int) -> GroupCoverage:
    """One group's counts, averaged over the runs that have it in this size."""
    lists = [one.counts for run in runs for one in run.coverage if one.name == name and len(one.counts) == units]
    return GroupCoverage(name, tuple(_mean(column) for column in zip(*lists, strict=True)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def least_line(runs: Sequence[RunRecord]) -> Points:
    """(round, count of the unit trained least), averaged over the runs that recorded it in that round."""
    found: dict[int, list[int]] = {}
    for run in runs:
        for line in run.rounds:
            if line.least_trained is not None:
                found.setdefault(line.number, []).append(line.least_trained)
    return [(float(index), statistics.fmean(found[index])) for index in sorted(found)]


def rounds_until(run: RunRecord, times: int) -> int | None:
    """The first round after which every unit had been trained at least this often."""
    return next(
        (line.number for line in run.rounds if line.least_trained is not None and line.least_trained >= times), None
    )


def milestones(runs: Sequence[RunRecord], most: int = 10) -> list[int]:
    """1, 2, 5, 10, 20, … as far as any run got, and the first that none reached."""
    top = max((line.least_trained for run in runs for line in run.rounds if line.least_trained is not None), default=0)
    steps = [factor * 10**power for power in range(most) for factor in (1, 2, 5)]
    within = sum(step <= top for step in steps)
    return steps[: min(most, within + 1)]


def windows(runs: Sequence[RunRecord]) -> int | str:
    """Into how many disjoint sub-models the model falls; in words why there is no such number."""
    tiers = [mapping(tier) for run in runs for tier in sequence(run.manifest.get("tiers"))]
    widths = {number(tier.get("width")) for tier in tiers}
    if len(widths) > 1:
        return "the tiers differ in width"
    width = next(iter(widths), None)
    if width is None:
        return "no tier's width is one number"
    return round(1 / width) if 0 < width <= 0.5 else "no two sub-models of this width are disjoint"


def rolling(count: int, times: int) -> float:
    """Rounds until each of `count` disjoint windows was taken so often when they are taken in turn."""
    return float(count * times)


def at_random(count: int, times: int) -> float | None:
    """The same for windows drawn at random, as FedRolex's paper has it; nothing where its formula has no meaning."""
    value = count * math.log(count) + count * (times - 1) * math.log(math.log(count))
    return value if value > 0 else None
