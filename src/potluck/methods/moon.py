"""MOON: FedAvg whose clients' features are drawn to the received model's and away from their own previous ones.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, https://arxiv.org/abs/2103.16257. A client keeps its
model of the round in which it last took part; the first time, the received one stands in for it, and the contrast has
no gradient. Received and previous networks are frozen, in evaluation mode.

Features are what the last layer of the head is given. The paper puts a projection of two layers before the classifier:
give the network a head of several layers (an ``nn.Sequential``) for that; with a plain head they are what leaves the
body, as in FedIN's comparison. Unequal networks take part under `share`: each contrasts with networks of its own shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from potluck.core import Client, Device, Facts, Fit, Loss, Model, Reply, SettingsError, Task, Zoo
from potluck.learn import ContrastiveLoss, Frozen
from potluck.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg with a contrast between the model that came and the one that left."""

    mu: float = 1.0
    temperature: float = 0.5

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

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        trained = reply.models["model"]
        device.memory["model"] = Model(trained.spec, trained.arrays)
        return reply

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        for tier in zoo.tiers:
            spec, _ = self.submodel_for(Client("", tier), zoo)
            if not any(name.startswith("head.") for name in zoo.shapes(spec)):
                raise SettingsError(
                    f"MOON contrasts what the head of a network is given; tier '{tier.name}' has a {spec.family}, "
                    "which has no part called head. Name its classifier so."
                )
