"""MOON: FedAvg with a contrastive loss, features go near the received model's and away from the previous one's.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, https://arxiv.org/abs/2103.16257. A client keeps the
model that it trained when it last took part. The first time, the received model takes its place, and the contrastive
loss has no gradient. The received and the previous network are frozen and in evaluation mode.

Features are the input of the head's last layer. The paper puts a projection of two layers before the classifier: for
that, give the network a head of several layers (an ``nn.Sequential``). With a plain head, features are the output of
the body, as in FedIN's comparison. Unequal networks take part under `share`: each contrasts with networks of its own
shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional

from potluck.core import (
    Batch,
    Client,
    ContractSettings,
    Device,
    Facts,
    Fit,
    Loss,
    Model,
    Reply,
    SettingsError,
    Task,
    Zoo,
)
from potluck.learn import Frozen, forward_hooks
from potluck.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg with a contrastive loss between the received model and the client's last one."""

    contract = ContractSettings(as_fedavg={"mu": 0.0})

    mu: float = 1.0
    """The weight of the contrastive loss; 0: none."""
    temperature: float = 0.5
    """The temperature of the contrastive loss; above 0."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, memory=True)

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"method.temperature = {self.temperature} must be above 0")

    def loss(self, task: Task, device: Device) -> Loss:
        own = super().loss(task, device)
        if not self.mu:
            return own
        received, previous = self.start(task, device), device.memory.get("model")
        if previous is None or previous.spec != received.spec:
            previous = received
        near, far = (Frozen(device.build(model)) for model in (received, previous))
        return ContrastiveLoss(own, near, far, self.mu, self.temperature)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        trained = reply.models["model"]
        device.memory["model"] = Model(trained.spec, trained.arrays)
        return reply

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        for tier in zoo.tiers:
            spec, _ = self.submodel_for(Client("", tier), zoo)
            if not any(name.startswith("head.") for name in zoo.shapes(spec)):
                raise SettingsError(
                    f"MOON contrasts the features that enter a network's head; tier '{tier.name}' has a {spec.family}, "
                    "which has no part called head. Give its classifier this name."
                )


@dataclass(frozen=True, eq=False)
class ContrastiveLoss:
    """A loss plus the contrastive term: features go towards one network's and away from another's.

    Features are the input of the head's last layer: with a projection in the head, the projected features.
    """

    own: Loss
    towards: Frozen
    away: Frozen
    strength: float
    temperature: float
    inputs: str = "x"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        with head_inputs(net) as features:
            own = self.own(net, batch)
        near, far = (self.features(other, batch) for other in (self.towards, self.away))
        return own + self.strength * contrast(features[0], near, far, self.temperature)

    def features(self, other: Frozen, batch: Batch) -> Tensor:
        with head_inputs(other.net) as features:
            other(batch[self.inputs])
        return features[0]


def contrast(features: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """The mean of -log(e^(cos(z, near) / T) / (e^(cos(z, near) / T) + e^(cos(z, far) / T))) over all z."""
    gap = functional.cosine_similarity(features, far, dim=-1) - functional.cosine_similarity(features, near, dim=-1)
    return functional.softplus(gap / temperature).mean()


@contextmanager
def head_inputs(net: nn.Module) -> Iterator[list[Tensor]]:
    """Collects the inputs of the last layer of a network's head, one for each forward pass in this context."""
    head = net.get_submodule("head")
    path = f"head.{len(head) - 1}" if isinstance(head, nn.Sequential) else "head"
    seen: list[Tensor] = []
    with forward_hooks(net, before={path: lambda _, given: seen.append(given[0])}):
        yield seen
