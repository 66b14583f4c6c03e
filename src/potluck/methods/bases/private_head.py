"""A head of its own for every client: what its network says of its data stays with it.

After the hospitals of Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices", KDD
2022, https://arxiv.org/abs/2202.08036, whose corpora name different kinds of entity: their heads cannot be averaged. A
private head lives in its client's memory, has rows for the labels among the client's own training rows only, and never
crosses the wire; the server has stem and body alone. So no model is scored but on clients that have trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from potluck.core import (
    Arrays,
    Device,
    Facts,
    Fit,
    Model,
    Newborn,
    Reply,
    SettingsError,
    Skip,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.bases.label_mask import class_rows
from potluck.methods.fedavg import Averaging

HEAD = "head."
NEVER = -1e4
"""The score of a label that is not the client's: its softmax is zero, and so is every gradient through it."""


@dataclass(frozen=True)
class PrivateHead(Averaging):
    """Averaging in which clients may keep the heads of their networks to themselves."""

    private: Literal["none", "head"] = "none"
    """What stays in a client's memory: nothing, or its head, which then knows the client's own labels only."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, memory=self.private == "head")

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        model = super().initial_model(zoo, rng)
        return Model(model.spec, self.public_tensors(model.arrays))

    def public_tensors(self, arrays: Arrays) -> Arrays:
        """What of these tensors may leave a client."""
        return headless(arrays) if self.private == "head" else arrays

    def start(self, task: Task, device: Device) -> Model:
        sent = super().start(task, device)
        if self.private == "none":
            return sent
        if "head" not in device.memory:
            initial = device.zoo.build(Newborn(sent.spec), device.rng).state_dict()
            device.memory["head"] = copy_head(initial, sent.spec, device.labels, device.zoo)
        return self.add_head(sent, device.memory, device.labels, device.zoo)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        if self.private == "none":
            return reply
        model = reply.models["model"]
        device.memory["head"] = copy_head(model.arrays, model.spec, device.labels, device.zoo)
        return replace(reply, models={"model": Model(model.spec, headless(model.arrays))})

    @on_client
    def score(self, task: Task, device: Device) -> Reply:
        if self.private == "none":
            return super().score(task, device)
        if "head" not in device.memory or "model" not in task.models:
            raise Skip("no head of its own")
        return super().score(replace(task, models={"model": self.start(task, device)}), device)

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """A model as the server has it, with the head of a client's memory; it never predicts labels that it lacks."""
        if served is None or self.private == "none" or "head" not in memory:
            return super().complete(served, memory, labels, zoo)
        return self.add_head(served, memory, labels, zoo)

    def add_head(self, served: Model, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo) -> Model:
        """A model without a head, with the one of a client's memory."""
        head = dict(memory["head"])
        for name in label_rows(served.spec, zoo):
            shape, dtype = zoo.shapes(served.spec)[name]
            rows = torch.full(shape, NEVER if len(shape) == 1 else 0.0, dtype=dtype, device=head[name].device)
            rows[list(labels) or slice(None)] = head[name]
            head[name] = rows
        return Model(served.spec, {**served.arrays, **head})

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.private == "none":
            return
        asks = 'method.private = "head"'
        if self.label_mask:
            raise SettingsError(f"{asks} goes without method.label_mask: such a head knows its own labels only.")
        if self.bn_eval != "batch" and zoo.counting(zoo.full) != zoo.full:
            raise SettingsError(f'{asks} asks static batch norm to be scored by batches: method.bn_eval = "batch".')
        for spec in {zoo.full, *(tier.spec for tier in zoo.tiers)}:
            if not any(len(zoo.shapes(spec)[name][0]) == 1 for name in label_rows(spec, zoo)):
                raise SettingsError(f"{asks} needs a head with a bias for each score; {spec.family} has none.")


def headless(arrays: Arrays) -> Arrays:
    """All but the head."""
    return {name: tensor for name, tensor in arrays.items() if not name.startswith(HEAD)}


def label_rows(spec: Spec, zoo: Zoo) -> list[str]:
    """Tensors of a head that have a row for each label."""
    return [name for name in class_rows(spec, zoo) if name.startswith(HEAD)]


def copy_head(arrays: Arrays, spec: Spec, labels: Sequence[int], zoo: Zoo) -> Arrays:
    """A copy of the head, with the rows of these labels only; without any, where numbers are learned, of all."""
    rows = label_rows(spec, zoo)
    own = list(labels) or slice(None)
    head = {name: tensor for name, tensor in arrays.items() if name.startswith(HEAD)}
    return {name: (tensor[own] if name in rows else tensor).detach().clone() for name, tensor in head.items()}
