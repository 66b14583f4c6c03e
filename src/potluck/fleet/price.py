"""The price of work on a device: modelled seconds and joules, and whether it fits at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from potluck.core import Cost, Work
from potluck.fleet.profiles import Profile


@dataclass(frozen=True)
class Price:
    """What a task takes on a device, modelled."""

    seconds: float
    joules: float


def price(cost: Cost, profile: Profile) -> Price:
    """What this cost takes on this device: transfer down, compute, transfer up, one after the other."""
    transfer = 8 * cost.bytes_down / profile.down + 8 * cost.bytes_up / profile.up
    compute = cost.flops / profile.flops
    return Price(transfer + compute, profile.radio_watts * transfer + profile.train_watts * compute)


def footprint(work: Work, slots: int = 1) -> int:
    """Bytes that training holds at once: weights, gradients, the optimiser's slots, activations."""
    return (2 + slots) * work.parameter_bytes + work.activation_bytes


def fits(
    work: Work,
    profile: Profile,
    slots: int = 1,
    share: float = 0.5,
    steps: int = 1,
    seconds: float = math.inf,
) -> bool:
    """Whether a device can train this: in a share of its memory and, for so many steps, in so many seconds.

    `slots` counts the optimiser's numbers per parameter: 0 for plain SGD, 1 with momentum, 2 for Adam. The rest of the
    memory belongs to the system and to other programs.
    """
    return footprint(work, slots) <= share * profile.memory and steps * work.flops / profile.flops <= seconds
