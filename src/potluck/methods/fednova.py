"""FedNova: clients that take more local steps do not count more; every update is normalised by its number of steps.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
https://arxiv.org/abs/2007.07481. A client's update x - y is divided by a, the distance that its steps go if every
gradient is one: the number of steps, more with momentum, less with a proximal term (`mu`, as in FedProx). The server
takes the mean of these directions, as far as clients went on average. Written as FedAvg: clients weigh p / a
in the mean, and the step towards it is made longer. Server momentum is ``server = {name = "momentum"}``.

With `mu` the average is that of the steps, not of a, as in the released code; under Adam a is the number of steps.
Momentum and `mu` together follow their common recursion, where the code adds the two up. Unequal networks take part
under `share`: each tensor is normalised over the clients that own it. Buffers take the plain mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from potluck.core import Arrays, ContractSettings, Reply, Round, Weight, Zoo
from potluck.learn import displacement
from potluck.methods.bases.tensor_owners import trained_tensors
from potluck.methods.fedavg import AveragedState
from potluck.methods.fedprox import FedProx
from potluck.parts import OverlapMean, Part


@dataclass(frozen=True)
class FedNova(FedProx):
    """FedAvg with normalised local steps."""

    contract = ContractSettings(as_fedavg={"mu": 0.0}, within=1e-6, local={"lr": 0.1, "steps": 3, "batch": 16})

    mu: float = 0.0

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        mean = ScaledMean(state.model.arrays)
        replies, parts = self.train_cohort(mean, state, now)
        mean.factors = self.factors(replies, parts, now.zoo)
        stepped: AveragedState = self.server_step(state, mean, now)
        return stepped

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        share, (_, far) = self.share_of(reply), self.steps(reply)
        buffers = zoo.buffers(reply.models["model"].spec)
        return self.mask_weight({"": share / far, **dict.fromkeys(buffers, share)}, reply, zoo)

    def share_of(self, reply: Reply) -> float:
        """p in the paper, before it is divided by everyone's."""
        return reply.weight if self.weighting == "samples" else 1.0

    def steps(self, reply: Reply) -> tuple[float, float]:
        """The steps that a client took, and how far they carried it; no more than its samples allow are believed."""
        told, most = reply.metrics.get("steps"), self.local.count(int(reply.weight))
        steps = max(min(told, most), 1) if isinstance(told, int) else max(most, 1)
        return float(steps), displacement(self.local, self.local.rate(reply.task.round), steps, self.mu)

    def factors(self, replies: Iterable[Reply], parts: Mapping[str, Part], zoo: Zoo) -> dict[str, float]:
        """How many times as far as to the mean each tensor moves; none where all of its owners went equally far."""
        sums: dict[str, list[float]] = {}
        for reply in replies:
            share, (steps, far) = self.share_of(reply), self.steps(reply)
            for name in trained_tensors(reply.models["model"].spec, parts[reply.task.to], zoo).values():
                had = sums.setdefault(name, [0.0, 0.0, 0.0])
                sums[name] = [had[0] + share, had[1] + share * (steps if self.mu else far), had[2] + share / far]
        found = {name: went * inverse / total**2 for name, (total, went, inverse) in sums.items()}
        return {name: times for name, times in found.items() if not math.isclose(times, 1.0, rel_tol=1e-12)}


class ScaledMean(OverlapMean):
    """A mean of which some tensors move by so many times the step."""

    def __init__(self, start: Arrays) -> None:
        super().__init__(start)
        self.factors: Mapping[str, float] = {}

    def value(self) -> Arrays:
        out = dict(super().value())
        for name, factor in self.factors.items():
            old, far = self.start[name], self.start[name] + factor * (out[name] - self.start[name])
            # Adding nothing loses the sign of -0.0; an entry that did not move keeps its bits.
            out[name] = torch.where(out[name] == old, old, far)
        return out
