"""FedNova: clients that take more steps do not pull harder; every step is normalised by how far it was carried.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020,
https://arxiv.org/abs/2007.07481. A client's way x - y is divided by a, the distance that its steps would have carried
it under unit gradients: the number of steps, more with momentum, less with a pull to the start (`mu`, as in FedProx).
The server walks the mean of these directions, as far as clients went on average. Written as FedAvg: clients weigh p / a
in the mean, and the step towards it is made longer. Server momentum is ``server = {name = "momentum"}``.

With `mu` the average is that of the steps, not of a, as in the released code; under Adam a is the number of steps.
Momentum and `mu` together follow their common recursion, where the code adds the two up. Unequal networks take part
under `share`: each tensor is normalised over the clients that own it. Buffers take the plain mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.core import Reply, Round, Weight, Zoo
from potluck.learn import carried
from potluck.methods.fedprox import FedProx
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.means import Lengthened
from potluck.methods.frames.owners import trained
from potluck.parts import Part


@dataclass(frozen=True)
class FedNova(FedProx):
    """FedAvg with normalised local steps."""

    mu: float = 0.0

    def round(self, state: Averaged, now: Round) -> Averaged:
        mean = Lengthened(state.model.arrays or {})
        replies, parts = self.train_cohort(mean, state, now)
        mean.by = self.lengths(replies, parts, now.zoo)
        moved: Averaged = self.server_step(state, mean, now)
        return moved

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        share, (_, far) = self.share_of(reply), self.steps(reply)
        buffers = zoo.buffers(reply.models["model"].spec)
        return self.masked({"": share / far, **dict.fromkeys(buffers, share)}, reply, zoo)

    def share_of(self, reply: Reply) -> float:
        """p in the paper, before it is divided by everyone's."""
        return reply.weight if self.weighting == "samples" else 1.0

    def steps(self, reply: Reply) -> tuple[float, float]:
        """The steps that a client took, and how far they carried it; no more than its samples allow are believed."""
        told, most = reply.metrics.get("steps"), self.local.count(int(reply.weight))
        steps = max(min(told, most), 1) if isinstance(told, int) else max(most, 1)
        return float(steps), carried(self.local, self.local.rate(reply.task.round), steps, self.mu)

    def lengths(self, replies: Iterable[Reply], parts: Mapping[str, Part], zoo: Zoo) -> dict[str, float]:
        """How many times as far as to the mean each tensor moves; none where all of its owners went equally far."""
        sums: dict[str, list[float]] = {}
        for reply in replies:
            share, (steps, far) = self.share_of(reply), self.steps(reply)
            for name in trained(reply.models["model"].spec, parts[reply.task.to], zoo).values():
                had = sums.setdefault(name, [0.0, 0.0, 0.0])
                sums[name] = [had[0] + share, had[1] + share * (steps if self.mu else far), had[2] + share / far]
        found = {name: went * inverse / total**2 for name, (total, went, inverse) in sums.items()}
        return {name: times for name, times in found.items() if not math.isclose(times, 1.0, rel_tol=1e-12)}
