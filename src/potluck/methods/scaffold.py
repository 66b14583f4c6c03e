"""SCAFFOLD: corrects client drift: adds the server's control variate to every gradient and subtracts the client's.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
https://arxiv.org/abs/1910.06378. A control variate is an estimate of the gradient, the server's or a client's; it is
zero at first. Clients keep theirs in memory. Control variates cross the wire beside the model, so traffic doubles. The
paper's global step size is ``server = {name = "momentum", lr = ..., beta = 0}``.

Beyond the paper: option II, which estimates the control variate from how far the weights moved, takes momentum into
account. Under Adam the correction comes before Adam, and the control variate is the mean of the raw gradients. Unequal
networks take part under `share`: each tensor has a control variate, the mean over the clients that own it; the number
of owners follows from the tiers' shares. Buffers have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from potluck.core import (
    EMPTY,
    Arrays,
    ClientWork,
    ContractSettings,
    Device,
    Edit,
    Expected,
    Facts,
    Fit,
    FitRequest,
    Grads,
    Local,
    Memory,
    Model,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
    on_client,
    shapes_of,
)
from potluck.learn import displacement
from potluck.methods.bases.tensor_owners import owner_shares, sum_arrays, trained_tensors
from potluck.methods.fedavg import AveragedState, FedAvg
from potluck.parts import OverlapMean, Part, Weighted


@dataclass(frozen=True)
class ScaffoldState(AveragedState):
    """The server's state: the averaged model, and the mean of all clients' control variates."""

    control: Arrays = EMPTY


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """FedAvg with control variates against client drift."""

    contract = ContractSettings(as_fedavg={"weighting": "samples"}, rounds=1)

    weighting: Literal["samples", "uniform"] = "uniform"
    mean: Weighted = Weighted()
    """Weighted: control variates are summed, so a robust mean of the models alone would protect nothing."""
    variate: Literal["auto", "travel", "start", "mean"] = "auto"
    """How a client estimates its gradient. travel: from how far its weights moved (the paper's option II); start: the
    full-batch gradient at the start (option I); mean: the mean of its raw gradients. auto: travel, but mean under Adam.
    """

    @property
    def facts(self) -> Facts:
        return replace(super().facts, memory=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> ScaffoldState:
        model, owned = self.initial_model(zoo, rng), owner_shares(self, zoo)
        return ScaffoldState(model, control={n: torch.zeros_like(t) for n, t in model.arrays.items() if n in owned})

    def round(self, state: ScaffoldState, now: Round) -> ScaffoldState:
        mean = OverlapMean(state.model.arrays)
        replies, parts = self.train_cohort(mean, state, now)
        stepped: ScaffoldState = self.server_step(state, mean, now)
        return replace(stepped, control=self.move_control(state.control, sum_arrays(replies, parts), now))

    def extra_payload(self, client: str, spec: Spec, part: Part, state: ScaffoldState, now: Round) -> Arrays:
        """The server's control variates for the client's tensors."""
        return {name: state.control[there] for name, there in trained_tensors(spec, part, now.zoo).items()}

    def expected_reply(self, model: Model, arrays: Arrays, now: Round) -> Expected:
        """The model, and the change of the client's control variates."""
        return Expected({"model": model.shapes}, shapes_of(arrays))

    def move_control(self, control: Arrays, moves: Mapping[str, Tensor], now: Round) -> dict[str, Tensor]:
        """The mean of all owners' control variates, after some owners changed theirs."""
        counts = {name: max(share * now.population, 1.0) for name, share in owner_shares(self, now.zoo).items()}
        return {
            name: old + (moves[name] / counts[name]).to(old.dtype) if name in moves else old
            for name, old in control.items()
        }

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Fit with corrected gradients; then estimate the client's new control variate."""
        fit = yield self.request(task, device)
        reply, old = self.report(task, device, fit), client_variates(device.memory, task.arrays)
        if not fit.steps or not fit.lr:  # no step, so no new estimate of the gradient
            return replace(reply, arrays={name: torch.zeros_like(mine) for name, mine in old.items()})
        if self.estimate == "start":
            still, loss = Local(lr=0.0, steps=1, batch=len(device.data)), self.loss(task, device)
            fit = yield FitRequest(self.start(task, device), device.data, still, loss, want_gradient=True)
        found = self.gradient(task, device, reply.models["model"].arrays, fit)
        new = {name: found.get(name, mine) for name, mine in old.items()}
        # A client whose tier is redrawn keeps the control variates of tensors that it does not train now.
        device.memory["control"] = {**device.memory.get("control", {}), **new}
        return replace(reply, arrays={name: new[name] - mine for name, mine in old.items()})

    def request(self, task: Task, device: Device) -> FitRequest:
        return replace(super().request(task, device), want_gradient=self.estimate == "mean")

    @property
    def estimate(self) -> str:
        """How control variates are estimated, after "auto" is resolved."""
        if self.variate != "auto":
            return self.variate
        return "mean" if self.local.optimiser == "adam" else "travel"

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        mine = client_variates(device.memory, task.arrays)
        return (DriftCorrection({name: control - mine[name] for name, control in task.arrays.items()}),)

    def gradient(self, task: Task, device: Device, after: Arrays, fit: Fit) -> Arrays:
        """This client's estimate of its gradient."""
        if self.estimate != "travel":
            return fit.gradient or {}
        before, mine = self.start(task, device).arrays, client_variates(device.memory, task.arrays)
        distance = fit.lr * displacement(self.local, fit.lr, fit.steps)
        return {name: mine[name] - sent + (before[name] - after[name]) / distance for name, sent in task.arrays.items()}

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.variate == "travel" and self.local.optimiser == "adam":
            raise SettingsError(
                'method.variate = "travel" cannot estimate a gradient under Adam, and local.optimiser = "adam"; '
                'set method.variate = "mean" or "auto".'
            )


@dataclass(frozen=True, eq=False)
class DriftCorrection:
    """Adds the server's control variate and subtracts the client's, at every step."""

    by: Arrays

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        corrected = torch._foreach_add(list(grads.values()), [self.by[name] for name in grads])
        return dict(zip(grads, corrected, strict=True))


def client_variates(memory: Memory, like: Arrays) -> dict[str, Tensor]:
    """The client's control variates, where they have the shape of these tensors; zeros for the others."""
    kept = memory.get("control", {})
    return {
        name: kept[name] if name in kept and kept[name].shape == tensor.shape else torch.zeros_like(tensor)
        for name, tensor in like.items()
    }
