"""Noise that clients add together under the masks, so that the server never sees a sum without it.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021, https://arxiv.org/abs/2102.06387. An update is cut to whole numbers, towards zero, so that it grows no longer
than its clip. Then each client adds a discrete Gaussian to every entry (Canonne, Kamath and Steinke, NeurIPS 2020,
https://arxiv.org/abs/2004.00010). A block is opened only if `min_holders` clients have contributed to it. So each of
them adds the wanted variance divided by `min_holders`, and every sum has at least the whole of it.

A sum of discrete Gaussians is not quite a discrete Gaussian. By Theorem 1 of the paper, n shares of a standard
deviation of s steps each are off by at most 10 n exp(-pi^2 s^2) in each entry: with `LEAST_STEPS` = 4, this is less
than n * 1e-67. Fewer steps are refused. The noise is drawn in float64, and no share is further from zero than 8.6
standard deviations. The paper also flattens updates by a random rotation, so that few bits suffice; here the ring has
32 or 64 bits, and it is left out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core import SecretNoise, SettingsError
from potluck.secure.blocks import segments
from potluck.secure.client import Update
from potluck.secure.ring import Ring, Values, check_bits
from potluck.secure.settings import Secure

LEAST_STEPS = 4.0
"""The least standard deviation of a client's share, in steps of the ring."""
FURTHEST = 9.0
"""No number that is drawn is further from zero, in standard deviations."""


@dataclass(frozen=True)
class NoiseShare:
    """A client's share of the noise on a sum."""

    clip: float
    """The largest norm of a client's update."""
    noise: float
    """The standard deviation of the noise on a sum of the fewest clients that are opened, as a multiple of `clip`."""
    least: int
    """How many clients these are."""

    @property
    def deviation(self) -> float:
        """The standard deviation of the share."""
        return self.noise * self.clip / math.sqrt(self.least)

    def longest(self, count: int, entries: int) -> float:
        """The largest norm of a sum of so many clients over so many entries: of their updates, and of the noise."""
        return self.clip * count + self.deviation * math.sqrt(count) * (math.sqrt(entries) + FURTHEST)

    def settings(self, wanted: Secure, cohort: int) -> Secure:
        """The settings of a ring in which updates with noise do not overflow; refuses one that is too coarse."""
        made = replace(wanted, clip=min(max(self.clip + FURTHEST * self.deviation, 1e-6), 1e9))
        check_bits(made.bits, made.clip, cohort)
        steps = self.deviation * Ring(made.bits).scale(made.clip, cohort)
        if steps < LEAST_STEPS:
            bits = " Set secure.bits = 64." if made.bits == 32 else ""
            raise SettingsError(
                f"[secure] with noise of {self.noise:.3g} clips: a client's share is {steps:.2g} steps of the ring, "
                f"and {LEAST_STEPS:g} are needed.{bits} More noise helps, too."
            )
        return made

    def cover(self, update: Update, heaviest: float, fixed: frozenset[str], key: Callable[[str], bytes]) -> Update:
        """The update, which is encoded with noise. `fixed`: tensors that are not trained, and have not changed; `key`
        gives the secret key for a purpose."""
        if update.weight != 1 or update.rows or heaviest != 1:
            raise PermissionError("[privacy] gives all clients the weight 1 in a secure sum")
        trained = {name: scale for name, scale in update.scales.items() if name not in fixed}
        if any(self.deviation * scale < LEAST_STEPS for scale in trained.values()):
            raise PermissionError("the server asks for numbers so coarse that noise would be lost in them")
        tensors = dict(update.tensors)
        for name, scale in trained.items():
            tensors[name] = (tensors[name] * scale).trunc() / scale
        return NoisyUpdate(**(vars(update) | {"tensors": tensors}), share=self, fixed=fixed, key=key)


@dataclass(frozen=True)
class NoisyUpdate(Update):
    """An update that is encoded with a client's share of the noise."""

    share: NoiseShare
    fixed: frozenset[str]
    key: Callable[[str], bytes]

    def encode(self, block: int, ring: Ring) -> Values:
        values = super().encode(block, ring)
        # Other values have other noise, whatever the server asks for: equal noise would show how they differ.
        told = hashlib.sha256(values.tobytes()).hexdigest()
        source, at = SecretNoise(self.key(f"{block} {told}")), 0
        for tensor, rows in segments(self.layout, block):
            flat = tensor.ordered(self.tensors[tensor.name])
            count = int(np.size(flat if rows is None else flat[rows]))
            if tensor.name not in self.fixed:
                drawn = discrete_gaussian(self.share.deviation * self.scales[tensor.name], count, source)
                values[at : at + count] += drawn.astype(np.int64).astype(ring.dtype)
            at += count
        return values


def discrete_gaussian(deviation: float, count: int, source: SecretNoise) -> NDArray[Any]:
    """Whole numbers k with probabilities that are proportional to exp(-k^2 / (2 deviation^2)).

    A normal number is rounded to k, and lies u away from it. It is accepted with a probability proportional to
    exp(((k + u)^2 - k^2) / (2 deviation^2)). Nearly all are: the largest such factor is near one, for a large
    deviation.
    """
    found = np.empty(count)
    left = np.arange(count)
    double = 2 * deviation**2
    most = (FURTHEST * deviation + 0.25) / double
    while len(left):
        drawn = deviation * source.normal((len(left),)).numpy()
        whole = np.rint(drawn)
        accepted = source.uniform(len(left)) < np.exp((drawn**2 - whole**2) / double - most)
        found[left[accepted]] = whole[accepted]
        left = left[~accepted]
    return found
