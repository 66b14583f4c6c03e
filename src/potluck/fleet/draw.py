"""Cohorts: how clients are drawn for a round, and how likely each of them is to be drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeAlias

Draw: TypeAlias = Literal["uniform", "by_tier", "poisson"]


class Odds(NamedTuple):
    """What is known of a tier's part in a cohort before it is drawn."""

    expected: float
    """How many clients of the tier take part on average."""
    rate: float
    """The probability that one given client of the tier is drawn."""


def tier_sizes(counts: Sequence[int], size: int) -> list[int]:
    """How many clients of each tier a cohort has that takes the same share of each tier.

    The running sum is rounded, so that they add up to the cohort. If there are enough places, every tier has one.

    >>> tier_sizes([50, 30, 20], 10), tier_sizes([98, 1, 1], 10), tier_sizes([5, 5], 1)
    ([5, 3, 2], [8, 1, 1], [1, 0])
    """
    total = sum(counts)
    size = min(max(size, 0), total)
    if not size:
        return [0] * len(counts)
    ends = [math.floor(end * size / total + 0.5) for end in accumulate(counts)]
    sizes = [after - before for before, after in pairwise([0, *ends])]
    sizes = [min(taken, count) for taken, count in zip(sizes, counts, strict=True)]
    while sum(sizes) < size:  # a tier had fewer clients than its rounded share
        sizes[max(range(len(counts)), key=lambda tier: counts[tier] - sizes[tier])] += 1
    for tier, count in enumerate(counts):
        if count and not sizes[tier] and max(sizes) > 1:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[tier] = 1
    return sizes


def odds(draw: Draw, counts: Mapping[str, int], size: int) -> dict[str, Odds]:
    """The odds of each tier, by its name, for the numbers of clients from which cohorts of this size are drawn."""
    total = sum(counts.values())
    if draw == "by_tier":
        sizes = dict(zip(counts, tier_sizes(list(counts.values()), size), strict=True))
        return {name: Odds(sizes[name], sizes[name] / count if count else 0.0) for name, count in counts.items()}
    rate = min(size / total, 1.0) if total else 0.0
    return {name: Odds(rate * count, rate) for name, count in counts.items()}
