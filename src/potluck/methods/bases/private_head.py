"""Private heads: every client keeps its own head, which never crosses the wire.

The case is that of the hospitals in Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous
Devices", KDD 2022, https://arxiv.org/abs/2202.08036: their corpora name different kinds of entity, so their heads
cannot be averaged. A private head lives in its client's memory, and has rows only for the labels among the client's own
training rows. The server has stem and body alone. So a model is scored only on clients that have trained.
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
from potluck.methods.fedavg import Averaging

HEAD = "head."
NEVER = -1e4
"""The logit of a label that the client does not have: its softmax is zero, and so is every gradient through it."""


@dataclass(frozen=True)
class PrivateHead(Averaging):
    """Averaging in which clients may keep the heads of their networks private."""

    private: Literal["none", "head"] = "none"
    """What stays in a client's memory: nothing, or its head, which then has only the client's own labels."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, memory=self.private == "head")

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        model = super().initial_model(zoo, rng)
        return Model(model.spec, self.public_tensors(model.arrays))

    def public_tensors(self, arrays: Arrays) -> Arrays:
        """Those of these tensors that may leave a client."""
        return drop_head(arrays) if self.private == "head" else arrays

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
        return replace(reply, models={"model": Model(model.spec, drop_head(model.arrays))})

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
        """The server's model with the head in a client's memory; it never predicts labels that the client lacks."""
        if served is None or self.private == "none" or "head" not in memory:
            return super().complete(served, memory, labels, zoo)
        return self.add_head(served, memory, labels, zoo)

    def add_head(self, served: Model, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo) -> Model:
        """A model without a head, completed with the head in a client's memory."""
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
            raise SettingsError(
                f"{asks} excludes method.label_mask = true: a private head has only the client's own labels. "
                "Set method.label_mask = false."
            )
        if self.bn_eval != "batch" and zoo.counting(zoo.full) != zoo.full:
            raise SettingsError(
                f'{asks} with static batch norm cannot use method.bn_eval = "{self.bn_eval}"; '
                'set method.bn_eval = "batch".'
            )
        for spec in {zoo.full, *(tier.spec for tier in zoo.tiers)}:
            if not any(len(zoo.shapes(spec)[name][0]) == 1 for name in label_rows(spec, zoo)):
                raise SettingsError(
                    f"{asks} needs a head with a bias for each class; {spec.family} has none. Add this bias, or set "
                    'method.private = "none".'
                )


def drop_head(arrays: Arrays) -> Arrays:
    """All tensors but those of the head."""
    return {name: tensor for name, tensor in arrays.items() if not name.startswith(HEAD)}


def label_rows(spec: Spec, zoo: Zoo) -> list[str]:
    """The head's tensors that have a row for each label."""
    return [name for name in zoo.class_rows(spec) if name.startswith(HEAD)]


def copy_head(arrays: Arrays, spec: Spec, labels: Sequence[int], zoo: Zoo) -> Arrays:
    """A copy of the head with only the rows of these labels; with all rows if there are no labels (regression)."""
    rows = label_rows(spec, zoo)
    own = list(labels) or slice(None)
    head = {name: tensor for name, tensor in arrays.items() if name.startswith(HEAD)}
    return {name: (tensor[own] if name in rows else tensor).detach().clone() for name, tensor in head.items()}
