"""Local: every client trains its own tier's network on its own data, alone.

The baseline without federation. Clients train in the rounds in which they are sampled, so that every method takes the
same number of local steps. The model lives in the client's memory; only plain numbers cross the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from potluck.core import Client, ContractSettings, Device, Facts, Fit, Model, Newborn, Reply, Round, Skip, Task, Zoo
from potluck.learn import LocalTraining, fit_metrics


@dataclass(frozen=True)
class EmptyState:
    """The server's state: nothing."""


@dataclass(frozen=True)
class LocalOnly(LocalTraining):
    """No communication: each client trains alone."""

    contract = ContractSettings(why_not="nothing is shared: there is no model to compare with FedAvg's")

    called: ClassVar[str] = "Local"

    facts = Facts(networks="any", memory=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> EmptyState:
        return EmptyState()

    def round(self, state: EmptyState, now: Round) -> EmptyState:
        for _ in now.send(Task("train", c.id, models={"model": Newborn(c.tier.spec)}) for c in now.cohort):
            pass
        return state

    def start(self, task: Task, device: Device) -> Model:
        kept = device.memory.get("model")
        return kept if kept is not None and kept.spec == task.models["model"].spec else task.models["model"]

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        device.memory["model"] = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply(weight=float(len(device.data)), metrics=fit_metrics(fit))

    def own(self, device: Device) -> Model:
        if "model" not in device.memory:
            raise Skip("never trained")
        model: Model = device.memory["model"]
        return model

    def serve(self, state: EmptyState, client: Client, zoo: Zoo) -> None:
        return None
