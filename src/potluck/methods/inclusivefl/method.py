"""InclusiveFL: weak clients train shallow networks, strong ones deep; tiers share bottom layers; top layers teach.

Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices", KDD 2022,
https://arxiv.org/abs/2202.08036. The server keeps a network and an optimiser for each tier. In a round, the clients of
each tier are averaged. The last layer's step takes a share of the mean step of the next larger tier's top layers, from
the round in which that tier last took part (*momentum distillation*). The tier's optimiser steps. Then each layer is
averaged over the tiers that share it. Every tier, also the largest, has its own last layer and head; all tiers share
the stem.

``profile = "paper"``: local SGD, and Adam on the server. ``profile = "code"``: clients send the gradient at the weights
they received (times their learning rate), all samples have the same weight, and AdamW takes one step. The released code
never applies its momentum, and divides by zero if all owners of a layer are absent. Here momentum works under both
profiles, and such a layer keeps its value. In residual networks a layer is a block, and a tensor learns only from
tensors of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

from potluck.core import (
    EMPTY,
    Arrays,
    ContractSettings,
    Device,
    Fit,
    FitRequest,
    Model,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
)
from potluck.methods.bases.private_head import HEAD
from potluck.methods.fedavg import AveragedState
from potluck.methods.inclusivefl.depth_tiers import (
    DepthTiers,
    MomentumMean,
    add_momentum,
    average_shared,
    block_count,
    next_momentum,
)
from potluck.parts import Adam, AdamW, OverlapMean, Rule, Slots, batches

PAPER, CODE = Adam(lr=0.03), AdamW(lr=5e-5)
"""The default optimiser on the server, under each profile."""


@dataclass(frozen=True)
class InclusiveState(AveragedState):
    """The server's state: the networks of all tiers in one model, and the momentum for each tier's last layer."""

    momentum: Arrays = EMPTY
    """For each weight of a tier's last layer, the mean step of the next larger tier's layers from that depth on."""


@dataclass(frozen=True)
class InclusiveFL(DepthTiers):
    """A network for each tier; tiers share bottom layers, and learn from the top layers of larger tiers."""

    contract = ContractSettings(
        as_fedavg={"profile": "paper", "server": {"name": "replace"}, "weighting": "samples", "private": "none"}
    )

    weighting: Literal["samples", "uniform"] = "uniform"
    """The weight of a client in its tier, and of a tier among tiers; always by samples under profile "code"."""
    server: Rule = PAPER
    """The server rule for each tier; a tier's server_lr replaces its rate. By default, profile "code" takes AdamW with
    a learning rate of 5e-5."""
    profile: Literal["paper", "code"] = "paper"
    """paper: local training, and Adam on the server; code: one step of AdamW on the clients' mean gradient."""
    borrow: float = 0.2  # beta in the paper
    """The share of the larger tier's momentum in the step of the last layer; 0: none."""
    source: Literal["post", "pre"] = "post"
    """Compute momentum from steps with their own momentum share (post, the paper's algorithm), or without it (pre)."""
    share_layers: bool = True
    """Average layers over tiers. If False, tiers learn from each other only through momentum."""

    def __post_init__(self) -> None:
        if not 0 <= self.borrow <= 1:
            raise ValueError(f"method.borrow = {self.borrow} must be from 0 to 1")
        if self.profile == "code":
            object.__setattr__(self, "weighting", "samples")
            object.__setattr__(self, "server", CODE if self.server == PAPER else self.server)
        if self.profile == "code" and self.private == "head":
            raise ValueError(
                'method.private = "head" needs profile = "paper": under "code" clients do not train. '
                'Set method.profile = "paper" or method.private = "none"'
            )

    def init(self, zoo: Zoo, rng: torch.Generator) -> InclusiveState:
        *smaller, largest = self.tiers(zoo)
        deep = self.public_tensors(zoo.fresh(largest.spec, rng).arrays)
        pool = dict(deep)
        for tier in smaller:
            for name, own in self.public_tensors(zoo.fresh(tier.spec, rng).arrays).items():
                bottom = name in deep and deep[name].shape == own.shape and not name.startswith(HEAD)
                pool[tier.part.place(name).name] = deep[name] if bottom else own
        taught = [name for tier in smaller for name in tier.teachers]
        momentum = {name: torch.zeros_like(pool[name]) for name in taught}
        return InclusiveState(Model(largest.spec, pool), momentum=momentum)

    def round(self, state: InclusiveState, now: Round) -> InclusiveState:
        whole = state.model.arrays
        mean = OverlapMean(whole)
        weights: dict[Spec, float] = {}
        for reply in self.train_cohort(mean, state, now)[0]:
            spec, count = reply.models["model"].spec, reply.weight if self.weighting == "samples" else 1.0
            weights[spec] = weights.get(spec, 0.0) + count
        tiers, means = self.tiers(now.zoo), mean.value()
        target = add_momentum(whole, means, state.momentum, self.borrow, weights, tiers)
        source = target if self.source == "post" else means
        momentum = next_momentum(whole, source, state.momentum, weights, tiers)
        arrays, slots = self.step_tiers(whole, MomentumMean(mean, target), state.slots, now.zoo)
        arrays = average_shared(arrays, weights, tiers) if self.share_layers else arrays
        return replace(state, model=Model(state.model.spec, arrays), slots=slots, momentum=momentum)

    def step_tiers(self, whole: Arrays, mean: MomentumMean, slots: Slots, zoo: Zoo) -> tuple[Arrays, Slots]:
        """Every tier's network after its optimiser's step; the network of an absent tier stays."""
        out, buffers = dict(whole), self.buffers(zoo)
        for tier in self.tiers(zoo):
            rule = self.server_rule(tier.spec, zoo)
            stepped, slots = rule({name: whole[name] for name in tier.names}, mean, slots, buffers)
            out |= {name: stepped[name] for name in tier.names}
        return out, slots

    def request(self, task: Task, device: Device) -> FitRequest:
        """Local training; under profile "code", the gradient over one pass at the received weights (FedSGD)."""
        request = super().request(task, device)
        if self.profile == "paper":
            return request
        still = replace(self.local, lr=0.0, epochs=1, optimiser="sgd")
        return replace(request, local=still, want_gradient=True)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """The trained model; under profile "code", the received model minus its gradient times the local learning rate.

        Under Adam on the server, this rate changes nothing. But a larger rate keeps more digits: the server computes
        the gradient as a difference of models, and a small difference loses precision.
        """
        reply = super().report(task, device, fit)
        if self.profile == "paper":
            return reply
        model, rate = reply.models["model"], self.local.rate(device.round)
        gradient, arrays = dict(fit.gradient or {}), dict(model.arrays)
        for names in batches(gradient, arrays):
            steps = torch._foreach_mul([gradient[name] for name in names], rate)
            moved = torch._foreach_sub([arrays[name] for name in names], steps)
            arrays.update(zip(names, moved, strict=True))
        return replace(reply, models={"model": Model(model.spec, arrays)})

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        tiers, names = self.tiers(zoo), {tier.spec: tier.name for tier in zoo.tiers}
        for small, large in pairwise(tiers):
            if (
                block_count(small.spec, zoo) >= block_count(large.spec, zoo)
                or not small.shared.keys() & large.shared.keys()
            ):
                raise SettingsError(
                    f"InclusiveFL needs tiers of one network that differ in depth alone; '{names[small.spec]}' is not "
                    f"the bottom of '{names[large.spec]}'. Give each [[tier]] a depth of its own, and no width."
                )
