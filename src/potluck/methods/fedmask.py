"""FedMask: weights are frozen, and the same everywhere; what clients learn and share is which of them to use.

Li et al., "FedMask: Joint Computation and Communication-Efficient Personalized Federated Learning via Heterogeneous
Masking", SenSys 2021, https://doi.org/10.1145/3485730.3485929; written from the abstract, third-party code and general
knowledge. A device that is first met is sent the weights once, scores every unit by |weight x gradient| on its data and
keeps the best, as many as its budget allows: the network shrinks in fact. Then it learns a score for each weight of the
last layers; a weight is used where sigmoid(score) is at least a half, and gradients go straight through that step.

Bits go up. What several devices of the round hold is averaged, and comes down as a byte each: the mean in 254 steps, or
255 for "nobody else holds this, keep your own". A device then sets sigmoid(score) to the mean, clipped to [.01, .99].
Biases, norms and the layers before stay as they were sent; batch-norm statistics are the device's own. Little of a
gradient reaches a score, so scores want Adam at a large rate. A client is scored with the bits that it last learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from potluck.core import (
    Arrays,
    Client,
    Device,
    Expected,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import told
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.held import carried_by, chosen, holding
from potluck.methods.frames.masks import Tailored, at_least, within
from potluck.methods.frames.merits import prunable
from potluck.methods.frames.through import Through
from potluck.parts import OverlapMean, Replace, part

ALONE = 255


@dataclass(frozen=True)
class FedMask(Tailored):
    """Clients learn which of the frozen weights to use, and share bits."""

    weighting: Literal["uniform"] = "uniform"
    server: Replace = Replace()
    keep: float = 0.5
    """Units kept of every group, where a client's tier has no width."""
    last: int = 3
    """Layers, counted from the end, whose weights are chosen from."""
    begin: float = 0.1
    """The score that every weight starts with."""

    def __post_init__(self) -> None:
        within(keep=self.keep)
        at_least(1, last=self.last)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return carried_by(client, zoo, self.keep)

    def round(self, state: Averaged, now: Round) -> Averaged:
        zoo, whole = now.zoo, state.model.arrays or {}
        held, names = self.fitted(whole, now), self.layers(zoo.full, zoo)
        parts = {id: part(zoo.axes(zoo.full), chosen(units), names) for id, units in held.items()}
        specs = {id: holding(units, zoo) for id, units in held.items()}
        mean = OverlapMean({name: torch.zeros_like(whole[name]) for name in names})
        back = []
        for reply in now.send(Task("train", id, models={"model": Model(specs[id])}) for id in held):
            mean.add({name: bits.float() for name, bits in reply.arrays.items()}, parts[reply.task.to])
            back.append(reply.task.to)
        agreed = averaged(mean)
        for _ in now.send(Task("merge", id, arrays=parts[id].take(agreed)) for id in back):
            pass
        return replace(state)

    def layers(self, spec: Spec, zoo: Zoo) -> tuple[str, ...]:
        """The tensors whose weights are chosen from."""
        return prunable(spec, zoo)[-self.last :]

    @on_client
    def tailor(self, task: Task, device: Device) -> Reply:
        reply, sent = super().tailor(task, device), task.models["model"]
        spec, zoo = holding(reply.arrays, device.zoo), device.zoo
        cut = part(zoo.axes(sent.spec), chosen(reply.arrays)).take(sent.arrays or {})
        device.memory["weights"] = Model(spec, cut)
        device.memory["scores"] = {name: torch.full_like(cut[name], self.begin) for name in self.layers(spec, zoo)}
        return reply

    def start(self, task: Task, device: Device) -> Model:
        """The network with scores in the place of the weights that are chosen from."""
        weights: Model = device.memory["weights"]
        return Model(weights.spec, {**(weights.arrays or {}), **device.memory["scores"]})

    def loss(self, task: Task, device: Device) -> Loss:
        weights: Model = device.memory["weights"]
        fixed = device.zoo.buffers(weights.spec)
        trained = {name: tensor for name, tensor in (weights.arrays or {}).items() if name not in fixed}
        return Through(super().loss(task, device), trained, tuple(device.memory["scores"]))

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        """Bits; the network that they make is the client's own until it trains again."""
        weights, after = device.memory["weights"], device.rest(net)
        statistics = {name: after[name] for name in device.zoo.buffers(weights.spec)}
        frozen = {**weights.arrays, **statistics}
        bits = {name: after[name] >= 0 for name in device.memory["scores"]}
        device.memory["weights"] = Model(weights.spec, frozen)
        device.memory["scores"] = {name: after[name] for name in bits}
        device.memory["model"] = Model(weights.spec, {**frozen, **{name: frozen[name] * bits[name] for name in bits}})
        return Reply(arrays=bits, weight=float(len(device.data)), metrics=told(fit))

    @on_client
    def merge(self, task: Task, device: Device) -> Reply:
        """Believe of a weight what those who hold it believe on the whole."""
        scores = device.memory["scores"]
        device.memory["scores"] = {name: believed(scores[name], mean) for name, mean in task.arrays.items()}
        return Reply()

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "train":
            return super().expects(task, zoo)
        spec = task.models["model"].spec
        return Expected(arrays={name: (zoo.shapes(spec)[name][0], torch.bool) for name in self.layers(spec, zoo)})


def averaged(bits: OverlapMean) -> Arrays:
    """The mean of each bit as a byte, in 254 steps; `ALONE` where fewer than two hold it."""
    means, owners = bits.value(), bits.sums.weights
    return {
        name: torch.where(torch.as_tensor(owners.get(name, 0.0)) >= 2, (mean * 254).round().to(torch.uint8), ALONE)
        for name, mean in means.items()
    }


def believed(scores: Tensor, mean: Tensor) -> Tensor:
    """Scores whose sigmoid is the mean that was received, clipped to [.01, .99]; one's own where one is alone."""
    return torch.where(mean == ALONE, scores, torch.logit((mean / 254).clamp(0.01, 0.99)))
