"""Epsilon of sums with noise: how much the models of a run reveal of one client, by `dp-accounting`.

A round's sum is a Gaussian mechanism on a random cohort. Which data sets count as neighbours depends on how cohorts are
drawn:

- *poisson*: each client takes part by itself. Neighbours differ in one client that is there or not (add-or-remove). Two
  sums are one clip apart. Composition is by privacy loss distributions. Replace-one, as below, if it is asked for.
- *uniform*, *by_tier*: so many of all clients, or of a tier's. Neighbours differ in one client's data set, for any
  other (replace-one), and two sums are two clips apart. Composition is by Renyi divergence (Wang et al., 2019).

With noise on prefix sums (`tree`; Kairouz et al., 2021, without Honaker's estimator), nothing is assumed of who takes
part. Neighbours differ in one client whose updates are all zero or not (zero-out), or are all other ones, if that is
asked for. Each round is a leaf of a binary
tree, and each node gets noise. A client reaches several nodes, some of them several times. The whole is one Gaussian
mechanism, and its sensitivity is counted from the rounds in which the client took part. There are no restarts.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, Literal, TypeAlias

import numpy as np

from potluck.core import SettingsError
from potluck.fleet import Draw

MISSING = "[privacy] needs the package dp-accounting: pip install 'potluck[privacy]'"
ORDERS = (*range(2, 65), 72, 80, 96, 112, 128)
"""The orders of Renyi divergence that are tried for cohorts of a fixed size."""
FINE_ORDERS = (*(1 + step / 20 for step in range(1, 200)), *ORDERS[10:], *(2**power for power in range(8, 21)))
"""The same, where no sampling is counted."""
GRID = 1e-3
"""The step in which privacy losses are rounded, always up."""
HARDLY = 0.3
"""With less noise than this times the clip, sampling brings next to nothing, and is not counted."""

Neighbours: TypeAlias = Literal["add-or-remove", "replace-one", "zero-out"]
Rounds: TypeAlias = "tuple[tuple[tuple[float, int], int], ...]"
"""Released rounds: ((the rate at which clients were drawn, how often the round was released), how many such rounds)."""


def accountant() -> Any:
    """The package dp_accounting, which is an optional dependency."""
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise SettingsError(MISSING) from None


def neighbours(draw: Draw, asked: str = "auto") -> Neighbours:
    """Which data sets the epsilon of cohorts that are drawn like this compares."""
    return "add-or-remove" if draw == "poisson" and asked == "auto" else "replace-one"


def group(released: Iterable[Sequence[float]]) -> Rounds:
    """Equal rounds together; each is given as its rate and how often it was released."""
    return tuple(sorted(Counter((rate, int(times)) for rate, times in released).items()))


@lru_cache(maxsize=1024)
def epsilon_of_sums(draw: Draw, noise: float, delta: float, rounds: Rounds, asked: str = "auto") -> float:
    """The epsilon of these rounds. A round that was released several times had the same cohort each time.

    `asked`: "replace-one" to compare data sets in which one client's is another; auto: as it suits the draw.
    """
    rounds = tuple((key, count) for key, count in rounds if key[0] > 0 and key[1] > 0 and count > 0)
    if not rounds:
        return 0.0
    relation = neighbours(draw, asked)
    apart = 1.0 if relation == "add-or-remove" else 2.0
    releases = sum(times * count for (_, times), count in rounds)
    with np.errstate(all="ignore"):
        every = float(accountant().get_epsilon_gaussian(noise / apart / math.sqrt(releases), delta))
        if noise / apart / math.sqrt(max(times for (_, times), _ in rounds)) < HARDLY:
            return every
        if all(rate >= 1 for (rate, _), _ in rounds):
            return every
        compose = partial(_poisson, relation) if draw == "poisson" else _fixed
        return min(every, compose(noise, delta, rounds))


def _poisson(relation: Neighbours, noise: float, delta: float, rounds: Rounds) -> float:
    losses = (
        _loss(relation, noise / math.sqrt(times), min(rate, 1.0)).self_compose(count) for (rate, times), count in rounds
    )
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))


def _fixed(noise: float, delta: float, rounds: Rounds) -> float:
    rdp = importlib.import_module("dp_accounting.rdp")
    # The accountant takes noise for a distance of one, and two sums are two clips apart.
    total = sum(count * _divergence(noise / 2 / math.sqrt(times), min(rate, 1.0)) for (rate, times), count in rounds)
    return float(rdp.compute_epsilon(np.array(ORDERS), total, delta)[0])


@lru_cache(maxsize=64)
def _loss(relation: Neighbours, noise: float, rate: float) -> Any:
    """The privacy loss of one round with a Poisson cohort, for clipped updates: it knows of two clips by itself."""
    kinds = accountant().NeighboringRelation
    kind = kinds.ADD_OR_REMOVE_ONE if relation == "add-or-remove" else kinds.REPLACE_ONE
    made = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    return made.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=GRID, neighboring_relation=kind
    )


@lru_cache(maxsize=64)
def _divergence(noise: float, rate: float) -> Any:
    """The Renyi divergences of one round with a cohort of fixed size, by order."""
    dp, rdp = accountant(), importlib.import_module("dp_accounting.rdp")
    found = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    found.compose(dp.SampledWithoutReplacementDpEvent(1.0, rate, dp.GaussianDpEvent(noise)))
    return found.rdp


@lru_cache(maxsize=256)
def noise_for_sums(draw: Draw, wanted: float, delta: float, rate: float, rounds: int, asked: str = "auto") -> float:
    """The least noise, to a thousandth, for which so many rounds have at most this epsilon."""
    once: Rounds = (((rate, 1), rounds),)
    return _least(lambda noise: epsilon_of_sums(draw, noise, delta, once, asked), wanted)


def _least(spent: Callable[[float], float], wanted: float) -> float:
    """The least noise from 1e-6 to 1e6 for which what is spent is at most what is wanted; to a thousandth, and rather
    above. More noise never costs more."""
    low = high = 1.0
    most = least = spent(1.0)
    while least > wanted and high < 1e6:
        low, most, high = high, least, high * 2
        least = spent(high)
    while low == high or (most <= wanted and low > 1e-6):
        high, least, low = low, most, low / 2
        most = spent(low)
    nudge = 1.0004
    while high / low > 1.001:
        # On logarithmic scales, epsilon is nearly a line in the noise. Guess alternately a little above and below.
        slope = math.log(most / least) if 0 < least < most < math.inf else 0.0
        share = min(max(math.log(most / wanted) / slope, 0.0), 1.0) if slope else 0.5
        guess = min(max(low * (high / low) ** share * nudge, low * 1.0002), high / 1.0002)
        found = spent(guess)
        if found <= wanted:
            high, least, nudge = guess, found, 1 / 1.0004
        else:
            low, most, nudge = guess, found, 1.0004
    return high


@lru_cache(maxsize=1024)
def epsilon_of_shares(noise: float, delta: float, times: int) -> float:
    """The epsilon of `times` sums to which clients added noise together (discrete Gaussians), for a client with any
    other data. Sampling is not counted: the server knows whom it asked.

    By Renyi divergence, which is for discrete Gaussians no more than for continuous ones. The exact epsilon of these is
    a little smaller, but is not known to hold.
    """
    if not times:
        return 0.0
    rdp, orders = importlib.import_module("dp_accounting.rdp"), np.array(FINE_ORDERS)
    with np.errstate(all="ignore"):
        return float(rdp.compute_epsilon(orders, orders * times / 2 * (2 / noise) ** 2, delta)[0])


@lru_cache(maxsize=256)
def noise_for_shares(wanted: float, delta: float, times: int) -> float:
    """The least noise, to a thousandth, for which so many sums have at most this epsilon."""
    return _least(lambda noise: epsilon_of_shares(noise, delta, times), wanted)


def epsilon_of_tree(noise: float, delta: float, sensitivity: float) -> float:
    """The epsilon of prefix sums with noise in a tree; the sensitivity is in clips."""
    if not sensitivity:
        return 0.0
    with np.errstate(all="ignore"):
        return float(accountant().get_epsilon_gaussian(noise / sensitivity, delta))


def noise_for_tree(wanted: float, delta: float, sensitivity: float) -> float:
    """The noise on each node for which prefix sums with this sensitivity have this epsilon."""
    with np.errstate(all="ignore"):
        return float(accountant().get_sigma_gaussian(wanted, delta)) * sensitivity


def tree_sensitivity(took: Sequence[int], done: int, again: Mapping[int, int] | None = None) -> float:
    """How far, in clips, the nodes of the tree move together if one client's updates are left out.

    `took`: the rounds in which it took part, from 1. `done`: the rounds so far, of which the complete nodes are made.
    `again`: how often a round was released in vain; each time, another node like the round's own came out.

    >>> tree_sensitivity([1], 1), round(tree_sensitivity([1], 4) ** 2), round(tree_sensitivity([1, 2], 4) ** 2)
    (1.0, 3, 10)
    """
    total = 0
    for level in range(done.bit_length()):
        nodes = Counter((number - 1) >> level for number in took)
        total += sum(count**2 for node, count in nodes.items() if (node + 1) << level <= done)
    for number, times in (again or {}).items():
        covers = number & -number  # the round's node covers this many rounds, up to it
        total += times * sum(number - covers < other <= number for other in took) ** 2
    return math.sqrt(total)


def largest_sensitivity(took: Mapping[str, Sequence[int]], done: int, again: Mapping[int, int] | None = None) -> float:
    """The largest sensitivity of any client."""
    best = 0.0
    for rounds in sorted(took.values(), key=len, reverse=True):
        times, vain = len(rounds), sum((again or {}).values())
        most = sum(times * min(1 << level, times) for level in range(done.bit_length())) + vain * times**2
        if math.sqrt(most) <= best:
            break
        best = max(best, tree_sensitivity(rounds, done, again))
    return best
