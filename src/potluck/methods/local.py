"""Local: every client trains alone, its own tier's network on its own data.

The reference without federation. Clients train in the rounds in which they are sampled, so that every method spends the
same number of local steps; the model lives in the client's memory and nothing crosses the wire but plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from potluck.core import Client, Device, Expected, Facts, Fit, Model, Reply, Round, Skip, Task, Zoo
from potluck.learn import LocalTraining, told


@dataclass(frozen=True)
class Alone:
    """The server knows nothing."""


@dataclass(frozen=True)
class Local(LocalTraining):
    """No communication: each client for itself."""

    facts = Facts(networks="any", memory=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Alone:
        return Alone()

    def round(self, state: Alone, now: Round) -> Alone:
        for _ in now.send(Task("train", c.id, models={"model": Model(c.tier.spec)}) for c in now.cohort):
            pass
        return state

    def start(self, task: Task, device: Device) -> Model:
        kept = device.memory.get("model")
        return kept if kept is not None and kept.spec == task.models["model"].spec else task.models["model"]

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        device.memory["model"] = Model(task.models["model"].spec, device.rest(net))
        return Reply(weight=float(len(device.data)), metrics=told(fit))

    def own(self, device: Device) -> Model:
        if "model" not in device.memory:
            raise Skip("never trained")
        model: Model = device.memory["model"]
        return model

    def ready(self, state: Alone, now: Round) -> Alone:
        return state

    def serve(self, state: Alone, client: Client, zoo: Zoo) -> None:
        return None

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        return Expected()

    def check(self, zoo: Zoo) -> None:
        pass
