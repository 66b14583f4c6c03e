"""Label masks: a client trains and averages only the classifier rows of classes that it has.

They come from HeteroFL (Diao et al., ICLR 2021); every method that averages weights can use them. In the client's loss
the logits of the other classes are zero, and the classifier rows of these classes do not count in the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core import Device, Fit, Loss, Model, Plain, Reply, Round, SettingsError, Spec, Task, Weight, Zoo
from potluck.learn import MaskedCrossEntropy, class_mask
from potluck.methods.bases.submodels import SubmodelAssignment, classes
from potluck.parts import Part


@dataclass(frozen=True)
class LabelMask(SubmodelAssignment):
    """Leaves classes that a client does not have out of its loss and of the classifier's mean (`label_mask`)."""

    label_mask: bool = False
    """Leave classes that a client does not have out of its loss and of the classifier's mean."""

    def loss(self, task: Task, device: Device) -> Loss:
        if not self.label_mask:
            return super().loss(task, device)
        return MaskedCrossEntropy(class_mask(device.labels, classes(task.models["model"].spec)))

    def personal_loss(self, model: Model, device: Device) -> Loss:
        if not self.label_mask:
            return super().personal_loss(model, device)
        return MaskedCrossEntropy(class_mask(device.labels, classes(model.spec)))

    def train_task(self, client: str, model: Model, part: Part, state: Any, now: Round) -> Task:
        task = super().train_task(client, model, part, state, now)
        check = self.label_check(model.spec)
        return task if check is None else replace(task, expects=replace(task.expects, metrics=check))

    def label_check(self, spec: Spec) -> Callable[[Mapping[str, Plain]], str | None] | None:
        """What the gate checks of the labels in a reply; None without label masks."""
        return partial(self.odd_labels, count=classes(spec)) if self.label_mask else None

    def odd_labels(self, metrics: Mapping[str, Plain], count: int) -> str | None:
        """Why a reply's labels cannot be used, or None."""
        labels = metrics.get("labels", [])
        fine = isinstance(labels, list) and all(type(label) is int and 0 <= label < count for label in labels)
        return None if fine else f"its labels are not a list of classes below {count}"

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        return replace(reply, metrics={**reply.metrics, "labels": list(device.labels)}) if self.label_mask else reply

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.label_mask and not zoo.class_rows(zoo.full):
            raise SettingsError(
                f"method.label_mask = true needs to know the classifier, but no tensor of {zoo.full.family} has a row "
                "for each class that changes this class's score alone. Set method.label_mask = false."
            )

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        """The weight of a reply: one number or, with label masks, one for each row of the head."""
        return self.mask_weight(super().weigh(reply, zoo), reply, zoo)

    def mask_weight(self, weight: Weight, reply: Reply, zoo: Zoo) -> Weight:
        """The weight, with zero for rows of classes that the client does not have."""
        labels = reply.metrics.get("labels")
        if not self.label_mask or not isinstance(labels, list | tuple):
            return weight
        spec, arrays = reply.models["model"].spec, reply.models["model"].arrays
        weights: dict[str, float | Tensor] = dict(weight) if isinstance(weight, Mapping) else {"": weight}
        mask = class_mask([int(str(label)) for label in labels], classes(spec)).to(torch.float64)
        for name in zoo.class_rows(spec):
            rows = mask.reshape(-1, *[1] * (arrays[name].dim() - 1))
            weights[name] = weights.get(name, weights.get("", 1.0)) * rows
        return weights
