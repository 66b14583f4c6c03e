"""The price of work on a device: modelled seconds and joules, and the widest network that a device can train."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from potluck.core import Cost, SettingsError, Work
from potluck.fleet.profiles import Profile


@dataclass(frozen=True)
class Price:
    """The modelled price of a task on a device."""

    seconds: float
    joules: float


def price(cost: Cost, profile: Profile) -> Price:
    """The price of this cost on this device: download, compute and upload, one after the other."""
    transfer = 8 * cost.bytes_down / profile.down + 8 * cost.bytes_up / profile.up
    compute = cost.flops / profile.flops
    return Price(transfer + compute, profile.radio_watts * transfer + profile.train_watts * compute)


@dataclass(frozen=True)
class Budget:
    """The limits of a round on a device."""

    steps: int = 1
    """Training steps in a round."""
    slots: int = 1
    """Numbers that the optimiser keeps per parameter: 0 for plain SGD, 1 with momentum, 2 for Adam."""
    memory: float = 0.5
    """The share of the memory that training may take; the rest is for the system and other programs."""
    seconds: float = math.inf
    """From the first byte of the download to the last byte of the upload."""


@dataclass(frozen=True)
class Requirements:
    """What a round needs on a device."""

    memory: int
    """Bytes held at once: weights, gradients, optimiser state and activations."""
    seconds: float
    """Download of the model, training steps, upload."""


def requirements(work: Work, profile: Profile, budget: Budget) -> Requirements:
    """What a round with such steps needs on this device."""
    cost = Cost(work.parameter_bytes, work.parameter_bytes, budget.steps * work.flops)
    memory = (2 + budget.slots) * work.parameter_bytes + work.activation_bytes
    return Requirements(memory, price(cost, profile).seconds)


def fits(work: Work, profile: Profile, budget: Budget) -> bool:
    """Whether a device can do a round with such steps within the budget."""
    needed = requirements(work, profile, budget)
    return needed.memory <= budget.memory * profile.memory and needed.seconds <= budget.seconds


def widest_that_fits(widths: Iterable[float], work: Callable[[float], Work], profile: Profile, budget: Budget) -> float:
    """The largest of these widths with which a round fits the budget; `work(width)` is the work of one step."""
    ranked = sorted(widths, reverse=True)
    for width in ranked:
        if fits(work(width), profile, budget):
            return width
    least = requirements(work(ranked[-1]), profile, budget)
    time = "" if math.isinf(budget.seconds) else f" and {budget.seconds:g} s"
    raise SettingsError(
        f"no width fits the profile '{profile.name}': the narrowest, {ranked[-1]:g}, takes "
        f"{least.memory / 1e6:,.1f} MB and {least.seconds:,.1f} s "
        f"of {budget.memory * profile.memory / 1e6:,.1f} MB{time}; "
        "add a narrower one to fleet.widths or raise fleet.seconds or fleet.memory."
    )
