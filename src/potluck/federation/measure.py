"""What a machine can carry: seconds a training step and peak memory of each tier's network, measured here."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from potluck.core import Newborn, SettingsError, Tier, stream
from potluck.engines import SimulationContext
from potluck.federation.charter import CharterError
from potluck.run.measuring import peak_memory, reset_peak, usual_memory
from potluck.run.settings import Experiment

STEPS = 4
"""Steps that are measured; the first one is slower and does not count."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NUMBER = re.compile(r"([0-9.]+(?:e[0-9]+)?) *([kmgt]i?)?b?")
_WRITE = "write memory=2GB,seconds=30"


@dataclass(frozen=True)
class Measured:
    """What training a tier's network takes on this machine."""

    seconds: float
    """A step."""
    memory: int
    """Bytes at the peak, besides what the process takes anyway."""
    steps: int
    """Steps in a round."""

    @property
    def round(self) -> float:
        """Seconds of a round's training."""
        return self.seconds * self.steps


@dataclass(frozen=True)
class DeviceBudget:
    """What a round may take on this machine."""

    memory: int
    """Bytes."""
    seconds: float = float("inf")


def read_budget(text: str) -> DeviceBudget:
    """The budget in a text such as ``memory=2GB,seconds=30``."""
    found: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in ("memory", "seconds"):
            raise SettingsError(f"--budget {text}: '{name}' is neither memory nor seconds; {_WRITE}.")
        if name in found:
            raise SettingsError(f"--budget {text}: {name} is there twice.")
        found[name] = _amount(value, name, text)
    return DeviceBudget(int(found.get("memory", usual_memory())), found.get("seconds", float("inf")))


def _amount(value: str, name: str, text: str) -> float:
    """Bytes or seconds, above 0."""
    plain = value.lower().removesuffix("s") if name == "seconds" else value.lower()
    read = _NUMBER.fullmatch(plain)
    try:
        if read is None or (name == "seconds" and plain != read[1]):
            raise ValueError
        amount = float(read[1]) * _UNITS[read[2] or ""]
    except ValueError:
        raise SettingsError(f"--budget {text}: '{value}' is no amount of {name}; {_WRITE}.") from None
    if not (1 if name == "memory" else 0) <= amount < float("inf") or not amount:
        raise SettingsError(f"--budget {text}: {name} must be above 0.")
    return amount


def measure(
    context: SimulationContext, experiment: Experiment, tiers: Sequence[Tier], client: str
) -> dict[str, Measured]:
    """Trains each tier's network for a few steps on the node's own rows; nothing of it is kept. A network that is
    larger than this machine's memory is not built: it takes for ever."""
    train, local = context.datasets.shard(client).train, experiment.local
    rows = torch.arange(min(local.batch, len(train)))
    steps = max(1, local.count(len(train)))
    found: dict[str, Measured] = {}
    for tier in tiers:
        work = context.zoo.cost(tier.spec, len(rows))
        modelled = 3 * work.parameter_bytes + work.activation_bytes
        if modelled > 2 * usual_memory():
            found[tier.name] = Measured(math.inf, modelled, steps)
            continue
        net = context.zoo.build(Newborn(tier.spec), stream(0, "blank")).to(context.hardware).train()
        batch = {name: column.to(context.hardware) for name, column in train[rows].items()}
        optimiser = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
        before, seconds = 0, []
        for number in range(STEPS):
            before = reset_peak() if number == 1 else before  # the first step also loads libraries
            started = time.perf_counter()
            optimiser.zero_grad()
            context.problem.loss(net, batch).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            seconds.append(time.perf_counter() - started)
        peak = max(peak_memory() - before, modelled) if before else modelled
        found[tier.name] = Measured(statistics.median(seconds[1:]), peak, steps)
        del net, optimiser, batch
    return found


def largest_that_fits(measured: Mapping[str, Measured], budget: DeviceBudget) -> str:
    """The last tier, in this order, that fits the budget; tiers are given smallest first."""
    fitting = [name for name, one in measured.items() if one.memory <= budget.memory and one.round <= budget.seconds]
    if fitting:
        return fitting[-1]
    name, least = next(iter(measured.items()))
    limit = "" if budget.seconds == float("inf") else f" and {budget.seconds:g} s"
    raise CharterError(
        f"no tier fits this machine: the smallest, '{name}', takes {least.memory / 1e6:,.0f} MB and "
        f"{least.round:,.1f} s a round; the budget is {budget.memory / 1e6:,.0f} MB{limit}."
    )
