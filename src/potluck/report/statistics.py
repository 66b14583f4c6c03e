"""What seeds can tell: paired differences between methods, confidence intervals, and which method is ahead of all.

All methods of a comparison share data, clients and cohorts by seed, so scores are paired by seed. docs/comparing.md
has the rules in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from potluck.report.json_values import Json, mapping, number, text

ALPHA = 0.05
"""The level of all tests; intervals have a confidence of 1 - ALPHA."""

TIE = 0.0005
"""Scores closer than this look equal in every table of the report."""

NO_SPREAD = 1e-12
"""Differences whose standard deviation is smaller are the same in every seed."""

MAX_SCORE = 1e9
"""A larger score is a broken value."""

SeedScores = Mapping[str, float]
"""The scores of one method by seed."""


@dataclass(frozen=True)
class PairedDifference:
    """The score of one method minus that of another, seed by seed, with a paired t interval of 95 %.

    The interval assumes that the seeds are independent draws and that differences are normally distributed over seeds.
    It speaks of other seeds of the same experiment: other splits, initial weights and cohorts. It does not speak of
    other data, settings or test rows. Two seeds have an interval, which is wide; one seed has none. If all
    differences are equal, their spread is unknown, not zero (scores on few test rows are coarse): there is no interval.
    """

    by_seed: SeedScores
    """Only seeds that both methods have a result for."""
    mean: float
    low: float | None = None
    """The lower end of the interval; None if there is none."""
    high: float | None = None
    p: float | None = None
    """The two-sided p-value of the paired t-test, without a correction for multiple comparisons."""

    @property
    def count(self) -> int:
        """The number of pairs."""
        return len(self.by_seed)

    @property
    def ahead(self) -> int:
        """In how many seeds the first method has the higher score."""
        return sum(difference > NO_SPREAD for difference in self.by_seed.values())

    @property
    def is_level(self) -> bool:
        """Whether no table shows a difference: it is small in every seed, or certain and too small to be shown."""
        certain = abs(self.mean) < TIE and self.p is not None and self.p <= ALPHA
        return certain or all(abs(difference) < TIE for difference in self.by_seed.values())

    def plain(self) -> dict[str, object]:
        """The same as plain JSON."""
        ends = {"low": self.low, "high": self.high, "p": self.p}
        return {"mean": self.mean, **ends, "ahead": self.ahead, "count": self.count, "by_seed": dict(self.by_seed)}


def paired_difference(first: SeedScores, second: SeedScores) -> PairedDifference | None:
    """The first method minus the second on the seeds that both have; None if they share no seed."""
    by_seed = {seed: first[seed] - second[seed] for seed in first if seed in second}
    if not by_seed:
        return None
    differences, count = list(by_seed.values()), len(by_seed)
    mean, freedom = math.fsum(differences) / count, count - 1
    sd = math.sqrt(math.fsum((one - mean) ** 2 for one in differences) / freedom) if freedom else 0.0
    if sd <= NO_SPREAD:
        return PairedDifference(by_seed, mean)
    error = sd / math.sqrt(count)
    half = critical_t(freedom) * error
    return PairedDifference(by_seed, mean, mean - half, mean + half, two_sided_p(mean / error, freedom))


def two_sided_p(t: float, freedom: int) -> float:
    """The probability that Student's t with this many degrees of freedom is at least as far from 0 as `t`.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4. A report starts without NumPy, so without SciPy too.
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for index in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (index - 1) / index
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


@lru_cache(maxsize=64)
def critical_t(freedom: int) -> float:
    """The value that Student's t exceeds in size with probability `ALPHA`; found by bisection."""
    low, high = 0.0, 16.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > ALPHA else (low, middle)
    return high


def holm(p_values: Sequence[float | None]) -> list[float]:
    """P-values that are adjusted for multiple comparisons by Holm's step-down method; an unknown one counts as 1."""
    known = [1.0 if p is None else p for p in p_values]
    order = sorted(range(len(known)), key=known.__getitem__)
    adjusted, largest = [1.0] * len(known), 0.0
    for place, index in enumerate(order):
        largest = max(largest, (len(known) - place) * known[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


@dataclass(frozen=True)
class Rival:
    """Another method, compared with the one that has the highest mean."""

    label: str
    mean: float
    difference: PairedDifference | None
    """The highest minus this one; None if they share no seed."""
    p: float
    """Holm's adjusted p-value, over all rivals."""

    @property
    def beaten(self) -> bool:
        """Whether the seeds carry the claim that the highest is ahead of this one."""
        return self.difference is not None and self.difference.mean >= TIE and self.p <= ALPHA


@dataclass(frozen=True)
class Lead:
    """The highest of several means, and what the seeds say about it.

    It was picked because it is the highest, so it is called the best only if it is ahead of each other method after
    Holm's correction for that many comparisons.
    """

    label: str
    mean: float
    rivals: tuple[Rival, ...]
    """The other methods, the highest mean first."""

    @property
    def is_best(self) -> bool:
        """Whether it is ahead of each other method, beyond chance."""
        return all(rival.beaten for rival in self.rivals)

    @property
    def shared_seeds(self) -> int:
        """The most seeds that it shares with a rival."""
        return max(rival.difference.count if rival.difference else 0 for rival in self.rivals)


def find_lead(rows: Sequence[Json], pick: Callable[[Json], object]) -> Lead | None:
    """The highest mean of one column; None if fewer than two means are known.

    `pick` takes a column out of a row of `compare_rows`, and the same column out of its scores by seed.
    """
    means = {text(row["label"]): mean for row in rows if (mean := number(mapping(pick(row)).get("mean"))) is not None}
    if len(means) < 2:
        return None
    first, *others = sorted(means, key=lambda label: -means[label])
    scores = {text(row["label"]): known_scores(pick(mapping(row["by_seed"]))) for row in rows}
    differences = [paired_difference(scores[first], scores[label]) for label in others]
    adjusted = holm([found.p if found else None for found in differences])
    compared = zip(others, differences, adjusted, strict=True)
    return Lead(first, means[first], tuple(Rival(label, means[label], found, p) for label, found, p in compared))


def known_scores(scores: object) -> SeedScores:
    """The scores by seed that are numbers in a sane range."""
    found = {seed: number(score) for seed, score in mapping(scores).items()}
    return {seed: score for seed, score in found.items() if score is not None and abs(score) <= MAX_SCORE}
