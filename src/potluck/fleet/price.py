"""The price of work on a device: modelled seconds and joules, and the widest network that fits at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from potluck.core import Cost, SettingsError, Work
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


@dataclass(frozen=True)
class Budget:
    """What a round may ask of a device."""

    steps: int = 1
    """Training steps of a round."""
    slots: int = 1
    """The optimiser's numbers per parameter: 0 for plain SGD, 1 with momentum, 2 for Adam."""
    memory: float = 0.5
    """The share of its memory that training may take; the rest belongs to the system and to other programs."""
    seconds: float = math.inf
    """From the first byte down to the last byte up."""


@dataclass(frozen=True)
class Need:
    """What a round asks of a device."""

    memory: int
    """Bytes held at once: weights, gradients, the optimiser's slots, activations."""
    seconds: float
    """Model down, steps, model up."""


def need(work: Work, profile: Profile, budget: Budget) -> Need:
    """What a round of such steps asks of this device."""
    cost = Cost(work.parameter_bytes, work.parameter_bytes, budget.steps * work.flops)
    memory = (2 + budget.slots) * work.parameter_bytes + work.activation_bytes
    return Need(memory, price(cost, profile).seconds)


def fits(work: Work, profile: Profile, budget: Budget) -> bool:
    """Whether a device can do a round of such steps within the budget."""
    asked = need(work, profile, budget)
    return asked.memory <= budget.memory * profile.memory and asked.seconds <= budget.seconds


def fit(widths: Iterable[float], work: Callable[[float], Work], profile: Profile, budget: Budget) -> float:
    """The largest of these widths with which a device does a round within the budget; `work` prices a width's step."""
    ranked = sorted(widths, reverse=True)
    for width in ranked:
        if fits(work(width), profile, budget):
            return width
    least = need(work(ranked[-1]), profile, budget)
    time = "" if math.isinf(budget.seconds) else f" and {budget.seconds:g} s"
    raise SettingsError(
        f"no width fits the profile '{profile.name}': the narrowest, {ranked[-1]:g}, takes "
        f"{least.memory / 1e6:,.1f} MB and {least.seconds:,.1f} s "
        f"of {budget.memory * profile.memory / 1e6:,.1f} MB{time}; "
        "add a narrower one to fleet.widths or raise fleet.seconds or fleet.memory."
    )
