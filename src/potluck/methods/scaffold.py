"""SCAFFOLD: every gradient is shifted by what the client's usually has too much of, compared with everyone's.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
https://arxiv.org/abs/1910.06378. Server and clients keep control variates, the gradients they expect, zero at first;
clients keep theirs in memory. They cross the wire beside the model, so traffic doubles. The paper's global step size is
``server = {name = "momentum", lr = ..., beta = 0}``.

Beyond the paper: momentum is reckoned with where a variate is estimated from the way that weights travelled; under Adam
the shift comes before Adam, and the variate is the mean of the raw gradients. Unequal networks take part under `share`:
each tensor has a variate, the mean over the clients that own it; how many these are is reckoned from the tiers'
shares. Buffers have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from potluck.core import (
    EMPTY,
    Arrays,
    Device,
    Edit,
    Expected,
    Facts,
    Fit,
    Local,
    Reply,
    Round,
    SettingsError,
    Skip,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import Shift, carried, recalled
from potluck.methods.fedavg import FedAvg
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.owners import owners, summed, trained
from potluck.parts import OverlapMean, Part


@dataclass(frozen=True)
class Controlled(Averaged):
    """What the server keeps: the averaged model, and the mean of all clients' control variates."""

    control: Arrays = EMPTY


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """FedAvg with control variates against drift."""

    weighting: Literal["samples", "uniform"] = "uniform"
    variate: Literal["auto", "travel", "start", "mean"] = "auto"
    """What a client takes for its gradient: the way its weights travelled (the paper's option II); the full-batch
    gradient where it started (option I); the mean of its raw gradients. auto: travel, but mean under Adam."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, memory=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Controlled:
        model = super().init(zoo, rng).model
        whole, owned = model.arrays or {}, owners(self, zoo)
        return Controlled(model, control={name: torch.zeros_like(whole[name]) for name in whole if name in owned})

    def round(self, state: Controlled, now: Round) -> Controlled:
        mean = OverlapMean(state.model.arrays or {})
        replies, parts = self.train_cohort(mean, state, now)
        moved: Controlled = self.server_step(state, mean, now)
        return replace(moved, control=self.steered(state.control, summed(replies, parts), now))

    def extra_payload(self, client: str, spec: Spec, part: Part, state: Controlled, now: Round) -> Arrays:
        return {name: state.control[there] for name, there in trained(spec, part, now.zoo).items()}

    def steered(self, control: Arrays, moves: Mapping[str, Tensor], now: Round) -> dict[str, Tensor]:
        """The mean of all owners' variates, once some of them have moved theirs."""
        counts = {name: max(share * now.population, 1.0) for name, share in owners(self, now.zoo).items()}
        return {
            name: old + (moves[name] / counts[name]).to(old.dtype) if name in moves else old
            for name, old in control.items()
        }

    @on_client
    def train(self, task: Task, device: Device) -> Reply:
        """Fit with shifted gradients; their raw mean is asked for where it will be the variate."""
        if not len(device.data):
            raise Skip("no samples")
        net, loss = device.build(self.start(task, device)), self.loss(task, device)
        wanted = self.estimate == "mean"
        fit = device.fit(net, device.data, self.local, loss, self.edits(task, device), wanted)
        return self.report(task, device, net, fit)

    @property
    def estimate(self) -> str:
        """How variates are estimated, once "auto" is settled."""
        if self.variate != "auto":
            return self.variate
        return "mean" if self.local.optimiser == "adam" else "travel"

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        mine = recalled(device.memory, "control", task.arrays)
        return (Shift({name: control - mine[name] for name, control in task.arrays.items()}),)

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply, old = super().report(task, device, net, fit), recalled(device.memory, "control", task.arrays)
        if not fit.steps or not fit.lr:  # nothing was learned, of the gradient neither
            return replace(reply, arrays={name: torch.zeros_like(mine) for name, mine in old.items()})
        found = self.gradient(task, device, reply.models["model"].arrays or {}, fit)
        new = {name: found.get(name, mine) for name, mine in old.items()}
        # A client whose tier is redrawn keeps the variates of tensors that it does not train today.
        device.memory["control"] = {**device.memory.get("control", {}), **new}
        return replace(reply, arrays={name: new[name] - mine for name, mine in old.items()})

    def gradient(self, task: Task, device: Device, after: Arrays, fit: Fit) -> Arrays:
        """What this client takes for its gradient."""
        if self.estimate == "mean":
            return fit.gradient or {}
        if self.estimate == "start":
            still = Local(lr=0.0, steps=1, batch=len(device.data))
            net, loss = device.build(self.start(task, device)), self.loss(task, device)
            return device.fit(net, device.data, still, loss, want_gradient=True).gradient or {}
        before, mine = self.start(task, device).arrays or {}, recalled(device.memory, "control", task.arrays)
        way = fit.lr * carried(self.local, fit.lr, fit.steps)
        return {name: mine[name] - sent + (before[name] - after[name]) / way for name, sent in task.arrays.items()}

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "train":
            return super().expects(task, zoo)
        shapes = {name: (tuple(sent.shape), sent.dtype) for name, sent in task.arrays.items()}
        return replace(super().expects(task, zoo), arrays=shapes)

    def check(self, zoo: Zoo) -> None:
        if self.variate == "travel" and self.local.optimiser == "adam":
            raise SettingsError(
                "SCAFFOLD cannot tell a gradient from the way that weights travel under Adam; with local.optimiser = "
                '"adam", set method.variate = "mean" or "auto".'
            )
