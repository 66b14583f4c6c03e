"""FedNova: normalises each client's update by its number of local steps, so that clients with more steps count no more.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
https://arxiv.org/abs/2007.07481. A client's update x - y is divided by a: the distance that its steps go if every
gradient is one. This is the number of steps; with momentum it is more, with a proximal term (`mu`, as in FedProx) less.
The server takes the mean of the normalised updates, times the clients' average distance. It is written as FedAvg: a
client's weight in the mean is p / a, and the step towards the mean is made longer. Server momentum is
``server = {name = "momentum"}``.

With `mu`, the average is over the numbers of steps, not over a, as in the released code. Under Adam, a is the number of
steps. Momentum and `mu` together follow their common recursion; the code adds the two. Unequal networks take part under
`share`: each tensor is normalised over the clients that own it. Buffers take the plain mean.
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
from potluck.parts import OverlapMean, Part, Weighted


@dataclass(frozen=True)
class FedNova(FedProx):
    """FedAvg with updates normalised by the number of local steps."""

    contract = ContractSettings(as_fedavg={"mu": 0.0}, within=1e-6, local={"lr": 0.1, "steps": 3, "batch": 16})

    mu: float = 0.0
    mean: Weighted = Weighted()
    """Weighted: updates are normalised in the weights of the mean, which robust means ignore."""

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
        """The client's weight (p in the paper), before it is divided by the sum over clients."""
        return reply.weight if self.weighting == "samples" else 1.0

    def steps(self, reply: Reply) -> tuple[float, float]:
        """A client's number of local steps, and their distance (a in the paper).

        A number above what the client's samples allow is lowered to that.
        """
        reported, most = reply.metrics.get("steps"), self.local.count(int(reply.weight))
        steps = max(min(reported, most), 1) if isinstance(reported, int) else max(most, 1)
        return float(steps), displacement(self.local, self.local.rate(reply.task.round), steps, self.mu)

    def factors(self, replies: Iterable[Reply], parts: Mapping[str, Part], zoo: Zoo) -> dict[str, float]:
        """By how much to multiply each tensor's step to the mean; left out where that is one."""
        sums: dict[str, list[float]] = {}
        for reply in replies:
            share, (steps, far) = self.share_of(reply), self.steps(reply)
            for name in trained_tensors(reply.models["model"].spec, parts[reply.task.to], zoo).values():
                had = sums.setdefault(name, [0.0, 0.0, 0.0])
                sums[name] = [had[0] + share, had[1] + share * (steps if self.mu else far), had[2] + share / far]
        found = {name: went * inverse / total**2 for name, (total, went, inverse) in sums.items()}
        return {name: times for name, times in found.items() if not math.isclose(times, 1.0, rel_tol=1e-12)}


class ScaledMean(OverlapMean):
    """A mean in which the steps of some tensors are multiplied by a factor."""

    def __init__(self, start: Arrays) -> None:
        super().__init__(start)
        self.factors: Mapping[str, float] = {}

    def value(self) -> Arrays:
        out = dict(super().value())
        for name, factor in self.factors.items():
            old, far = self.start[name], self.start[name] + factor * (out[name] - self.start[name])
            # Adding zero loses the sign of -0.0. An entry that did not move keeps its exact value.
            out[name] = torch.where(out[name] == old, old, far)
        return out
