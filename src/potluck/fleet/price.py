"""The price of work on a device: modelled seconds and joules, and the largest network that a device can train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.core import Cost, Depth, SettingsError, Work
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
    memory = needed_memory((2 + budget.slots) * work.parameter_bytes + work.activation_bytes, profile)
    return Requirements(memory, price(cost, profile).seconds)


def fits(work: Work, profile: Profile, budget: Budget) -> bool:
    """Whether a device can do a round with such steps within the budget."""
    needed = requirements(work, profile, budget)
    return needed.memory <= budget.memory * profile.memory and needed.seconds <= budget.seconds


def needed_memory(modelled: int, profile: Profile) -> int:
    """The bytes that training takes on this device, by the modelled ones."""
    return modelled if profile.memory_factor == 1 else round(modelled * profile.memory_factor)


@dataclass(frozen=True)
class Cut:
    """A part of a network that a device may train. None: all of it."""

    width: float | None = None
    depth: Depth = None

    @property
    def words(self) -> tuple[str, str]:
        """What it limits, and what to call the least of it."""
        if self.depth is None:
            return "width fits", f"the narrowest, {self.width:g},"
        if self.width is None:
            return "depth fits", f"the shallowest, {self.depth},"
        return "width and depth fit", f"the smallest, width {self.width:g} and depth {self.depth},"


def largest_that_fits(
    cuts: Sequence[Cut], work: Callable[[Cut], Work], device: Callable[[Cut], Profile], budget: Budget
) -> Cut:
    """The first of these cuts, largest first, with which a round fits the budget.

    `work(cut)` is the work of one step, and `device(cut)` the device as it is for such steps.
    """
    for cut in cuts:
        if fits(work(cut), device(cut), budget):
            return cut
    profile = device(cuts[-1])
    least = requirements(work(cuts[-1]), profile, budget)
    time = "" if math.isinf(budget.seconds) else f" and {budget.seconds:g} s"
    none, last = cuts[-1].words
    remedy = "raise" if cuts[-1].width is None else "add a narrower one to fleet.widths or raise"
    raise SettingsError(
        f"no {none} the profile '{profile.name}': {last} takes "
        f"{least.memory / 1e6:,.1f} MB and {least.seconds:,.1f} s "
        f"of {budget.memory * profile.memory / 1e6:,.1f} MB{time}; "
        f"{remedy} fleet.seconds or fleet.memory."
    )
