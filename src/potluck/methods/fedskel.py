"""FedSkel: in most rounds, a client trains and exchanges only its skeleton, the filters most active on its data.

Luo et al., "FedSkel: Efficient Federated Learning on Heterogeneous Systems with Skeleton Gradients Update", CIKM 2021,
https://arxiv.org/abs/2108.09081. Every `period` rounds, and the first time it takes part, a client trains and exchanges
the whole network. Then it ranks the units of every axis group by importance: the sum of |activation| over its data
(SetSkel). In the other rounds the forward pass uses the whole network, but the outputs of units outside the skeleton
get no gradient, and only the skeleton's filters cross the wire (UpdateSkel). The other filters stay with the client.
Networks do not shrink.

The released code sums activations during training; here, one pass over the data after training does it, and counts as
work. A filter is a row of every tensor that has the group's units as rows, with its bias and norm. The classifier is
always whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import (
    Arrays,
    Batch,
    Client,
    ContractSettings,
    Device,
    Edit,
    Expected,
    Facts,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    Task,
    Zoo,
    shapes_of,
)
from potluck.learn import forward_hooks
from potluck.methods.bases.personal_models import (
    PersonalModels,
    choose_units,
    requested_sizes,
    require_at_least,
    unit_budget,
    unit_counts,
)
from potluck.methods.bases.unit_importance import (
    MaskedGradients,
    layer_of,
    prunable_weights,
    row_axis,
    sum_by_unit,
    top_units,
    unit_entries,
)
from potluck.methods.fedavg import AveragedState
from potluck.parts import WHOLE, OverlapMean, Part, index, place


@dataclass(frozen=True)
class FedSkel(PersonalModels):
    """Clients exchange their most active filters, and every few rounds the whole network."""

    facts = Facts(units=True, memory=True, sums=False)
    contract = ContractSettings(as_fedavg={"cut": 0.0, "weighting": "samples", "label_mask": False}, tiers="width")

    cut: float = 0.5
    """The share of every group's units outside the skeleton, if a client's tier has no width."""
    period: int = 4
    """Rounds from one exchange of the whole network to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.cut < 1:
            raise ValueError(f"method.cut = {self.cut} must be at least 0 and below 1")
        require_at_least(1, period=self.period)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return unit_budget(client, zoo, 1.0 - self.cut)

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        zoo, whole, spec = now.zoo, state.model.arrays, state.model.spec
        sizes = {client.id: dict(self.budget(client, zoo)) for client in self.pick(now)}
        parts = {
            id: skeleton_part(units, zoo)
            if now.index % self.period and unit_counts(units, sizes[id]) == sizes[id]
            else WHOLE
            for id, units in self.ask_masks(now).items()
        }
        mean = OverlapMean(whole)
        tasks = (
            Task(
                "train",
                id,
                models={"model": Model(spec, held.take(whole))},
                config={"sizes": sizes[id], "whole": held.entire},
                expects=Expected({"model": shapes_of(held.take(whole))}, metrics=self.label_check(spec)),
            )
            for id, held in parts.items()
        )
        now.fold(tasks, mean, parts)
        rule = self.server_rule(state.model.spec, zoo)
        arrays, slots = rule(whole, mean, state.slots, self.buffers(zoo))
        return replace(state, model=Model(spec, arrays), slots=slots)

    def start(self, task: Task, device: Device) -> Model:
        """The received model; a received skeleton is put into the client's own model."""
        sent = task.models["model"]
        if task.config["whole"]:
            return sent
        return Model(sent.spec, replace_part(sent.arrays, self.skeleton(device), self.own(device).arrays))

    def skeleton(self, device: Device) -> Part:
        """The part of the whole model that is this client's skeleton."""
        return skeleton_part(device.memory["held"], device.zoo)

    def loss(self, task: Task, device: Device) -> Loss:
        own = super().loss(task, device)
        if task.config["whole"]:
            return own
        masks, zoo = row_masks(device.memory["held"], device.zoo), device.zoo
        # A kernel's mask without its last dimension broadcasts over the output: (units, 1, 1), or (units,) if linear.
        outputs = {layer_of(name): masks[name][..., 0] for name in prunable_weights(zoo.full, zoo) if name in masks}
        return SkeletonLoss(own, outputs)

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        """Norms and biases outside the skeleton do not train either."""
        return () if task.config["whole"] else (MaskedGradients(row_masks(device.memory["held"], device.zoo)),)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        model = reply.models["model"]
        if task.config["whole"]:
            wanted, scores = requested_sizes(task), unit_activity(fit.net, device, self.local.batch)
            device.memory["held"] = {group: top_units(scores[group], count) for group, count in wanted.items()}
            device.memory["model"] = model
            return reply
        part = self.skeleton(device)
        moved = part.take(model.arrays)
        # Weight decay moves weights without a gradient too, so filters outside the skeleton are restored.
        device.memory["model"] = Model(model.spec, replace_part(moved, part, self.start(task, device).arrays))
        return replace(reply, models={"model": Model(model.spec, moved)})


def skeleton_part(units: Arrays, zoo: Zoo) -> Part:
    """The rows of these units in every tensor that has units as rows; all other tensors whole."""
    axes = zoo.axes(zoo.full)
    return Part(
        {name: place(name, (index(row_axis(axes[name]), choose_units(units)),)) for name in zoo.shapes(zoo.full)}
    )


def row_masks(units: Arrays, zoo: Zoo) -> dict[str, Tensor]:
    """For each tensor that has units as rows, a mask of the rows of these units; it has the tensor's dimensions."""
    axes, shapes = zoo.axes(zoo.full), zoo.shapes(zoo.full)
    cut = [name for name in shapes if row_axis(axes[name]) is not None]
    return {
        name: unit_entries(row_axis(axes[name]), units).reshape(-1, *[1] * (len(shapes[name][0]) - 1)) for name in cut
    }


def replace_part(small: Arrays, held: Part, whole: Arrays) -> Arrays:
    """The whole model with one part replaced."""
    mean = OverlapMean(whole)
    mean.add(small, held)
    return mean.value()


def unit_activity(net: nn.Module, device: Device, batch: int) -> dict[str, Tensor]:
    """For each unit, the sum of |activation| over a client's data."""
    zoo = device.zoo
    axes, where = zoo.axes(zoo.full), next(net.parameters()).device
    totals = {group: torch.zeros(size, device=where) for group, size in zoo.full.sizes.items()}

    def add_activity(name: str, _: nn.Module, __: Any, output: Tensor) -> None:
        units = -1 if len(zoo.shapes(zoo.full)[name][0]) == 2 else 1
        for group, found in sum_by_unit(row_axis(axes[name]), output.abs().movedim(units, 0)).items():
            totals[group] += found

    with forward_hooks(
        net,
        {
            layer_of(name): partial(add_activity, name)
            for name in prunable_weights(zoo.full, zoo)
            if row_axis(axes[name])
        },
    ):
        device.gather_statistics(net, device.data, batch)
    return totals


@dataclass(frozen=True, eq=False)
class SkeletonLoss:
    """A loss whose gradients reach only the outputs of some units; the forward pass is unchanged."""

    own: Loss
    live: Arrays
    """For each layer, a mask that broadcasts over its output."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        def block_gradient(live: Tensor, _: nn.Module, __: Any, output: Tensor) -> Tensor:
            return torch.where(live, output, output.detach())

        with forward_hooks(net, {path: partial(block_gradient, live) for path, live in self.live.items()}):
            return self.own(net, batch)
