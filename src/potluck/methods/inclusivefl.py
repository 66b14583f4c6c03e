"""InclusiveFL: weak devices train shallow networks, strong ones deep; bottom layers meet, top layers teach.

Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices", KDD 2022,
https://arxiv.org/abs/2202.08036. The server keeps a network and an optimiser for each tier. In a round every tier's
clients are averaged; the last layer of a tier borrows a share of what the next larger tier's top layers learnt when
that tier last took part (*momentum distillation*); the tier's optimiser steps; then each layer is averaged over the
tiers that share it. The last layer and the head of a tier, the largest too, are its own; the stem is everybody's.

``profile = "paper"``: local SGD, Adam on the server. ``profile = "code"``: clients send the gradient at the weights
they got (times their learning rate), all samples count alike, and AdamW takes one step. The released code never applies
its momentum and divides by zero when all owners of a layer are absent; here momentum works under both profiles, and
such a layer keeps its value. In residual networks a layer is a block, and only tensors of one shape teach each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch

from potluck.core import (
    EMPTY,
    Arrays,
    Device,
    Model,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.fedsgd import gradient
from potluck.methods.frames.ladder import Aimed, Laddered, blocks, borrowed, lent, met
from potluck.methods.frames.private import HEAD
from potluck.parts import Adam, AdamW, OverlapMean, Rule, Slots

PAPER, CODE = Adam(lr=0.03), AdamW(lr=5e-5)
"""The server's optimisers under either profile, unless another is asked for."""


@dataclass(frozen=True)
class Inclusive(Averaged):
    """The server's half: every tier's network in one model, and what tiers may borrow from the next larger one."""

    momentum: Arrays = EMPTY
    """For each weight of a tier's last layer, the mean step of the larger tier's layers from that depth on."""


@dataclass(frozen=True)
class InclusiveFL(Laddered):
    """A network per tier; tiers share their bottom layers, and small ones learn from the top of larger ones."""

    weighting: Literal["samples", "uniform"] = "uniform"
    """How much a client counts in its tier, and tiers count among each other; by samples under profile "code"."""
    server: Rule = PAPER
    """How each tier's mean moves its network. Left as it is, profile "code" takes AdamW at a rate of 5e-5."""
    profile: Literal["paper", "code"] = "paper"
    """Local training and Adam on the server, or one step of AdamW on everybody's gradients."""
    borrow: float = 0.2  # beta in the paper
    """The share of the larger tier's momentum in the last layer's step; 0: none."""
    source: Literal["post", "pre"] = "post"
    """Momentum is taken of steps after they borrowed (the paper's algorithm, in which it trickles down) or before."""
    share_layers: bool = True
    """Average layers over tiers. Without, tiers learn from each other through momentum alone."""
    rates: tuple[float, ...] = ()
    """The server's learning rate for each tier, smallest first; none: the rule's own for all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))
        if not 0 <= self.borrow <= 1:
            raise ValueError(f"method.borrow = {self.borrow} must be from 0 to 1")
        if self.profile == "code":
            object.__setattr__(self, "weighting", "samples")
            object.__setattr__(self, "server", CODE if self.server == PAPER else self.server)
        if self.profile == "code" and self.private == "head":
            raise ValueError('method.private = "head" needs profile = "paper": under "code" clients take no steps')
        if self.rates and self.server.name == "replace":
            raise ValueError(
                f'method.rates = {list(self.rates)} needs a server rule with a rate, and "replace" has none'
            )

    def init(self, zoo: Zoo, rng: torch.Generator) -> Inclusive:
        *smaller, largest = self.rungs(zoo)
        deep = self.open(zoo.fresh(largest.spec, rng).arrays or {})
        pool = dict(deep)
        for rung in smaller:
            for name, own in self.open(zoo.fresh(rung.spec, rng).arrays or {}).items():
                bottom = name in deep and deep[name].shape == own.shape and not name.startswith(HEAD)
                pool[rung.part.place(name).name] = deep[name] if bottom else own
        taught = [name for rung in smaller for name in rung.lessons]
        return Inclusive(Model(largest.spec, pool), momentum={name: torch.zeros_like(pool[name]) for name in taught})

    def round(self, state: Inclusive, now: Round) -> Inclusive:
        whole = state.model.arrays or {}
        mean = OverlapMean(whole)
        weights: dict[Spec, float] = {}
        for reply in self.train_cohort(mean, state, now)[0]:
            spec, count = reply.models["model"].spec, reply.weight if self.weighting == "samples" else 1.0
            weights[spec] = weights.get(spec, 0.0) + count
        rungs, mine = self.rungs(now.zoo), mean.value()
        target = borrowed(whole, mine, state.momentum, self.borrow, weights, rungs)
        momentum = lent(whole, target if self.source == "post" else mine, state.momentum, weights, rungs)
        arrays, slots = self.stepped(whole, Aimed(mean, target), state.slots, now.zoo)
        arrays = met(arrays, weights, rungs) if self.share_layers else arrays
        return replace(state, model=Model(state.model.spec, arrays), slots=slots, momentum=momentum)

    def stepped(self, whole: Arrays, mean: Aimed, slots: Slots, zoo: Zoo) -> tuple[Arrays, Slots]:
        """Every tier's network after its optimiser's step; that of an absent tier stands still."""
        out = dict(whole)
        for number, rung in enumerate(self.rungs(zoo)):
            rule: Any = self.server
            if self.rates:
                rule = replace(rule, lr=self.rates[number])
            moved, slots = rule({name: whole[name] for name in rung.names}, mean, slots, self.buffers(zoo))
            out |= {name: moved[name] for name in rung.names}
        return out, slots

    @on_client
    def train(self, task: Task, device: Device) -> Reply:
        return gradient(self, task, device) if self.profile == "code" else super().train(task, device)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        rungs, names = self.rungs(zoo), {tier.spec: tier.name for tier in zoo.tiers}
        for small, large in pairwise(rungs):
            if blocks(small.spec, zoo) >= blocks(large.spec, zoo) or not small.shared.keys() & large.shared.keys():
                raise SettingsError(
                    f"InclusiveFL needs tiers of one network that differ in depth alone; '{names[small.spec]}' is not "
                    f"the bottom of '{names[large.spec]}'. Give each [[tier]] a depth of its own, and no width."
                )
        if self.rates and len(self.rates) != len(rungs):
            raise SettingsError(f"method.rates = {list(self.rates)} must hold a rate for each of {len(rungs)} tiers.")
