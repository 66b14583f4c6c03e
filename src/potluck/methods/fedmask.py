"""FedMask: weights are frozen and the same on all clients; clients learn and share binary masks over them.

Li et al., "FedMask: Joint Computation and Communication-Efficient Personalized Federated Learning via Heterogeneous
Masking", SenSys 2021, https://doi.org/10.1145/3485730.3485929. This is written from the abstract, third-party code and
general knowledge. The first time it takes part, a client gets the weights once, computes each unit's importance,
|weight x gradient| on its data, and keeps the best units, as many as its budget allows: the network really shrinks.
Then it learns a score for each weight of the last layers. A weight is used if sigmoid(score) is at least a half;
gradients go straight through this step (straight-through estimator).

Clients upload bits. Bits that several clients of the round hold are averaged, and come back as one byte each: the mean
in 254 steps, or 255 for "nobody else holds this, keep your own". A client then sets sigmoid(score) to the mean, clipped
to [.01, .99]. Biases, norms and earlier layers stay as they were sent; batch-norm statistics are the client's own. The
gradients of scores are small, so scores need Adam with a large learning rate. A client is scored with the bits that it
last learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.core import (
    Arrays,
    Batch,
    Client,
    ClientWork,
    ContractSettings,
    Device,
    Expected,
    Fit,
    Loss,
    Model,
    Newborn,
    Reply,
    Round,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import fit_metrics
from potluck.methods.bases.personal_models import (
    SelectedUnits,
    choose_units,
    require_at_least,
    require_share,
    spec_of_units,
    unit_budget,
)
from potluck.methods.bases.unit_importance import prunable_weights
from potluck.methods.fedavg import AveragedState
from potluck.parts import OverlapMean, Replace, part

ALONE = 255


@dataclass(frozen=True)
class FedMask(SelectedUnits):
    """Clients learn binary masks over frozen weights, and share only bits."""

    contract = ContractSettings(why_not="weights never change: only bits are learned")

    weighting: Literal["uniform"] = "uniform"
    server: Replace = Replace()
    keep: float = 0.5
    """The share of every group's units to keep, if a client's tier has no width."""
    last: int = 3
    """Number of layers, counted from the end, whose weights are masked."""
    begin: float = 0.1
    """The initial score of every weight."""

    def __post_init__(self) -> None:
        require_share(keep=self.keep)
        require_at_least(1, last=self.last)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return unit_budget(client, zoo, self.keep)

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        zoo, whole = now.zoo, state.model.arrays
        held, names = self.ask_selections(whole, now), self.layers(zoo.full, zoo)
        parts = {id: part(zoo.axes(zoo.full), choose_units(units), names) for id, units in held.items()}
        specs = {id: spec_of_units(units, zoo) for id, units in held.items()}
        mean = OverlapMean({name: torch.zeros_like(whole[name]) for name in names})
        back = []
        for reply in now.send(self.bits_task(id, specs[id], zoo) for id in held):
            mean.add({name: bits.float() for name, bits in reply.arrays.items()}, parts[reply.task.to])
            back.append(reply.task.to)
        agreed = mean_bits(mean)
        for _ in now.send(Task("merge", id, arrays=parts[id].take(agreed)) for id in back):
            pass
        return replace(state)

    def bits_task(self, client: str, spec: Spec, zoo: Zoo) -> Task:
        """The task to train; the reply holds a bit for each weight of the last layers."""
        bits = {name: (zoo.shapes(spec)[name][0], torch.bool) for name in self.layers(spec, zoo)}
        return Task("train", client, models={"model": Newborn(spec)}, expects=Expected(arrays=bits))

    def layers(self, spec: Spec, zoo: Zoo) -> tuple[str, ...]:
        """The tensors whose weights are masked."""
        return prunable_weights(spec, zoo)[-self.last :]

    @on_client
    def tailor(self, task: Task, device: Device) -> ClientWork:
        reply, sent = (yield from super().tailor(task, device)), task.models["model"]
        spec, zoo = spec_of_units(reply.arrays, device.zoo), device.zoo
        cut = part(zoo.axes(sent.spec), choose_units(reply.arrays)).take(sent.arrays)
        device.memory["weights"] = Model(spec, cut)
        device.memory["scores"] = {name: torch.full_like(cut[name], self.begin) for name in self.layers(spec, zoo)}
        return reply

    def start(self, task: Task, device: Device) -> Model:
        """The network, with scores in the place of the masked weights."""
        weights: Model = device.memory["weights"]
        return Model(weights.spec, {**weights.arrays, **device.memory["scores"]})

    def loss(self, task: Task, device: Device) -> Loss:
        weights: Model = device.memory["weights"]
        fixed = device.zoo.buffers(weights.spec)
        trained = {name: tensor for name, tensor in weights.arrays.items() if name not in fixed}
        return MaskedWeightsLoss(super().loss(task, device), trained, tuple(device.memory["scores"]))

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """Replies with the bits. The masked network is the client's own model until it trains again."""
        weights, after = device.memory["weights"], device.snapshot(fit.net)
        statistics = {name: after[name] for name in device.zoo.buffers(weights.spec)}
        frozen = {**weights.arrays, **statistics}
        bits = {name: after[name] >= 0 for name in device.memory["scores"]}
        device.memory["weights"] = Model(weights.spec, frozen)
        device.memory["scores"] = {name: after[name] for name in bits}
        device.memory["model"] = Model(weights.spec, {**frozen, **{name: frozen[name] * bits[name] for name in bits}})
        return Reply(arrays=bits, weight=float(len(device.data)), metrics=fit_metrics(fit))

    @on_client
    def merge(self, task: Task, device: Device) -> Reply:
        """Set the scores to the mean bits of all clients that hold the weights."""
        scores = device.memory["scores"]
        device.memory["scores"] = {name: score_for(scores[name], mean) for name, mean in task.arrays.items()}
        return Reply()


def mean_bits(bits: OverlapMean) -> Arrays:
    """The mean of each bit as a byte, in 254 steps; `ALONE` if fewer than two clients hold it."""
    means, owners = bits.value(), bits.sums.weights
    return {
        name: torch.where(torch.as_tensor(owners.get(name, 0.0)) >= 2, (mean * 254).round().to(torch.uint8), ALONE)
        for name, mean in means.items()
    }


def score_for(scores: Tensor, mean: Tensor) -> Tensor:
    """Scores whose sigmoid is the received mean, clipped to [.01, .99]; where it is `ALONE`, the old scores."""
    return torch.where(mean == ALONE, scores, torch.logit((mean / 254).clamp(0.01, 0.99)))


@dataclass(frozen=True, eq=False)
class MaskedWeightsLoss:
    """The loss of the network with masked weights: zero where the live score is negative."""

    own: Loss
    weights: Arrays
    """Every trainable tensor of the network, frozen."""
    masked: tuple[str, ...]
    """The tensors for which the live network holds scores."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        live = dict(net.named_parameters())
        weights = {
            name: w * straight_through(live[name]) if name in self.masked else w for name, w in self.weights.items()
        }
        masked_net: Any = partial(functional_call, net, weights)
        return self.own(masked_net, batch)


def straight_through(scores: Tensor) -> Tensor:
    """1 where sigmoid(score) is at least a half, else 0; the gradient is that of the sigmoid."""
    soft = torch.sigmoid(scores)
    return (scores >= 0).to(scores.dtype) + (soft - soft.detach())
