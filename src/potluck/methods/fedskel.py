"""FedSkel: most rounds, a client trains and exchanges only its skeleton, the filters that speak loudest on its data.

Luo et al., "FedSkel: Efficient Federated Learning on Heterogeneous Systems with Skeleton Gradients Update", CIKM 2021,
https://arxiv.org/abs/2108.09081. Every `period` rounds, and when it is first met, a client trains and exchanges the
whole network, and then ranks the units of every axis group by the sum of |activation| over its data (SetSkel). In the
other rounds the forward pass is whole, but no gradient enters the outputs of units outside the skeleton, and only the
skeleton's filters cross the wire (UpdateSkel); the others stay the client's own. Networks do not shrink.

The released code sums activations during training; here it is one pass over the data after it, counted as work. A
filter is a row of whatever has the group's units as rows, its bias and norm with it; the classifier is always whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from potluck.core import (
    Arrays,
    Client,
    Device,
    Edit,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    Task,
    Zoo,
)
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.held import asked_for, carried_by, chosen, counts
from potluck.methods.frames.masks import Personal, at_least
from potluck.methods.frames.merits import activity, entries, layer, prunable, rows, top
from potluck.methods.frames.through import Only, Skeletal
from potluck.parts import WHOLE, OverlapMean, Part, index, place


@dataclass(frozen=True)
class FedSkel(Personal):
    """Clients exchange their most active filters, and everything every few rounds."""

    cut: float = 0.5
    """The share of every group's units outside the skeleton, where a client's tier has no width."""
    period: int = 4
    """Rounds from one whole exchange to the next."""

    def __post_init__(self) -> None:
        if not 0 <= self.cut < 1:
            raise ValueError(f"method.cut = {self.cut} must be at least 0 and below 1")
        at_least(1, period=self.period)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return carried_by(client, zoo, 1.0 - self.cut)

    def round(self, state: Averaged, now: Round) -> Averaged:
        zoo, whole, spec = now.zoo, state.model.arrays or {}, state.model.spec
        sizes = {client.id: dict(self.budget(client, zoo)) for client in self.pick(now)}
        parts = {
            id: skeleton(units, zoo) if now.index % self.period and counts(units, sizes[id]) == sizes[id] else WHOLE
            for id, units in self.shown(now).items()
        }
        mean = OverlapMean(whole)
        tasks = (
            Task(
                "train",
                id,
                models={"model": Model(spec, held.take(whole))},
                config={"sizes": sizes[id], "whole": held.entire},
            )
            for id, held in parts.items()
        )
        now.fold(tasks, mean, parts, partial(self.weigh, zoo=zoo))
        arrays, slots = self.server(whole, mean, state.slots, self.buffers(zoo))
        return replace(state, model=Model(spec, arrays), slots=slots)

    def start(self, task: Task, device: Device) -> Model:
        """What was sent; where that is a skeleton, within the client's own model."""
        sent = task.models["model"]
        if task.config["whole"]:
            return sent
        return Model(sent.spec, put(sent.arrays or {}, self.bones(device), self.own(device).arrays or {}))

    def bones(self, device: Device) -> Part:
        """Where this client's skeleton lies in the whole."""
        return skeleton(device.memory["held"], device.zoo)

    def loss(self, task: Task, device: Device) -> Loss:
        own = super().loss(task, device)
        if task.config["whole"]:
            return own
        masks, zoo = row_masks(device.memory["held"], device.zoo), device.zoo
        # A kernel's mask less its last dimension fits over the layer's output: (units, 1, 1) on maps, (units,) on rows.
        outputs = {layer(name): masks[name][..., 0] for name in prunable(zoo.full, zoo) if name in masks}
        return Skeletal(own, outputs)

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        """Norms and biases outside the skeleton stand still too."""
        return () if task.config["whole"] else (Only(row_masks(device.memory["held"], device.zoo)),)

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        model = reply.models["model"]
        if task.config["whole"]:
            wanted, scores = asked_for(task), activity(net, device, self.local.batch)
            device.memory["held"] = {group: top(scores[group], count) for group, count in wanted.items()}
            device.memory["model"] = model
            return reply
        bones = self.bones(device)
        moved = bones.take(model.arrays or {})
        # Weight decay moves what has no gradient; the client's own filters are put back as they were.
        device.memory["model"] = Model(model.spec, put(moved, bones, self.start(task, device).arrays or {}))
        return replace(reply, models={"model": Model(model.spec, moved)})


def skeleton(units: Arrays, zoo: Zoo) -> Part:
    """The rows of these units, in every tensor that has units as rows; all other tensors are whole."""
    axes = zoo.axes(zoo.full)
    return Part({name: place(name, (index(rows(axes[name]), chosen(units)),)) for name in zoo.shapes(zoo.full)})


def row_masks(units: Arrays, zoo: Zoo) -> dict[str, Tensor]:
    """For tensors that have units as rows, which rows belong to these units; of as many dimensions as the tensor."""
    axes, shapes = zoo.axes(zoo.full), zoo.shapes(zoo.full)
    cut = [name for name in shapes if rows(axes[name]) is not None]
    return {name: entries(rows(axes[name]), units).reshape(-1, *[1] * (len(shapes[name][0]) - 1)) for name in cut}


def put(small: Arrays, held: Part, whole: Arrays) -> Arrays:
    """A whole with a part of it replaced."""
    mean = OverlapMean(whole)
    mean.add(small, held)
    return mean.value()
