"""The tiers' average: the mean of the tiers' models, by which papers on unequal networks judge."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.records import LearningCurve, ModelScore, RoundScores, RunRecord, TierRecord

MOST = 1e9
"""No tier's share is larger than this: a larger one is a broken line."""


def average(run: RunRecord) -> LearningCurve:
    """The mean of the tiers' test scores over the rounds, each tier weighted by its share of clients.

    A round has none where some tier has no score on the test set.
    """
    tiers = _devices(run)
    if not tiers:
        return LearningCurve()
    weights, found = _weights(tiers), [_tests(tier) for tier in tiers]
    common = [point.round for point in tiers[0].curve.points if all(point.round in scores for scores in found)]
    return LearningCurve(
        tuple(RoundScores(index, test=ModelScore(_mean(weights, [s[index] for s in found]))) for index in common)
    )


def telling(runs: Sequence[RunRecord]) -> bool:
    """Whether the average says something that the global score does not: some run's tiers differ at its end."""
    return any(_apart(run) for run in runs)


def _apart(run: RunRecord) -> bool:
    final = average(run).final
    return final is not None and len({_tests(tier)[final.round] for tier in _devices(run)}) > 1


def _devices(run: RunRecord) -> list[TierRecord]:
    """The tiers that devices belong to; what the server does for itself is none of them."""
    return [tier for tier in run.tiers if tier.curve.points or tier.share is not None or tier.clients is not None]


def _tests(tier: TierRecord) -> dict[int, float]:
    """A tier's scores on the test set, by round."""
    return {point.round: point.test.value for point in tier.curve.points if point.test.value is not None}


def _weights(tiers: Sequence[TierRecord]) -> list[float]:
    """The tiers' shares of one; equal where not all shares are recorded."""
    shares = [tier.share for tier in tiers if tier.share is not None and 0 < tier.share <= MOST]
    shares = shares if len(shares) == len(tiers) else [1.0] * len(tiers)
    return [share / sum(shares) for share in shares]


def _mean(weights: Sequence[float], scores: Sequence[float]) -> float:
    return sum(weight * score for weight, score in zip(weights, scores, strict=True))
