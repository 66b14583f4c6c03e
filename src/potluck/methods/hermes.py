"""Hermes: every client prunes filters until its network fits, and shares only what others have kept too.

Li et al., "Hermes: An Efficient Federated Learning Framework for Heterogeneous Mobile Clients", MobiCom 2021,
https://doi.org/10.1145/3447993.3483278; written from the abstract and general knowledge, no code being public. A client
whose network does well on its validation split removes the units with the smallest weights (L1), a share of each axis
group, until it fits; a penalty on whole filters prepares that. Units of the first group and the classes are never
pruned. Networks shrink in fact, so computing and traffic shrink with them.

After training, entries that several clients of the round hold are averaged and go back to them; what one holds alone
stays its own. There is no global model: the server keeps the mean only for newcomers to start from. A client is scored,
and decides whether to prune, with its network as it last trained it, before it met the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from potluck.core import (
    Axis,
    Client,
    Device,
    Edit,
    Fit,
    Model,
    Reply,
    Round,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.held import asked_for, carried_by, chosen, counts, filled, holding, spread
from potluck.methods.frames.masks import Personal, within
from potluck.methods.frames.merits import accuracy, prunable, rows, top, unit_scores
from potluck.methods.frames.through import Shrink
from potluck.parts import WHOLE, OverlapMean, Replace, part


@dataclass(frozen=True)
class Hermes(Personal):
    """Every client prunes its own network, unit by unit; overlapping entries are averaged."""

    keep: float = 0.5
    """Units kept of every group in the end, where a client's tier has no width."""
    prune: float = 0.2
    """The share of a group's units that goes each time."""
    threshold: float = 0.5
    """Prune only a network whose validation accuracy is above this."""
    sparsity: float = 1e-4
    """Strength of the penalty on whole filters."""
    server: Replace = Replace()

    def __post_init__(self) -> None:
        within(keep=self.keep, prune=self.prune)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        sizes, first = zoo.full.sizes, first_group(zoo)
        return {**carried_by(client, zoo, self.keep), **({first: sizes[first]} if first else {})}

    def round(self, state: Averaged, now: Round) -> Averaged:
        zoo, whole = now.zoo, state.model.arrays or {}
        held = self.shown(now)
        units = {id: held[id] if all(counts(held[id], zoo.full.sizes).values()) else None for id in held}
        specs = {id: holding(had, zoo) if had else zoo.full for id, had in units.items()}
        parts = {id: part(zoo.axes(zoo.full), chosen(had)) if had else WHOLE for id, had in units.items()}
        mean = OverlapMean(whole)
        tasks = (Task("train", id, models={"model": Model(specs[id], None if units[id] else whole)}) for id in units)
        replies = now.fold(tasks, mean, parts, partial(self.weigh, zoo=zoo))
        means = mean.value()
        back = [reply.task.to for reply in replies]
        for _ in now.send(Task("merge", id, models={"model": Model(specs[id], parts[id].take(means))}) for id in back):
            pass
        return replace(state, model=Model(state.model.spec, means))

    @on_client
    def show(self, task: Task, device: Device) -> Reply:
        """What this client holds, after a step of pruning where it is due."""
        if "model" in device.memory:
            self.shrink(asked_for(task), device)
        return super().show(task, device)

    def shrink(self, goal: Mapping[str, int], device: Device) -> None:
        """Removes the weakest units of every group that still has too many, from a network that does well enough."""
        own = self.own(device)
        sizes, axes = own.spec.sizes, device.zoo.axes(own.spec)
        keep = {group: fewer(size, goal[group], self.prune) for group, size in sizes.items()}
        if keep == dict(sizes) or accuracy(device.build(own), device) <= self.threshold:
            return
        weights = {name: (own.arrays or {})[name].abs() for name in prunable(own.spec, device.zoo)}
        scores = unit_scores(weights, axes, own.spec)
        left = {group: top(scores[group], count) for group, count in keep.items()}
        for key in ("model", "met"):
            cut = part(axes, chosen(left)).take(device.memory[key].arrays)
            device.memory[key] = Model(replace(own.spec, sizes=keep), cut)
        device.memory["held"] = {group: spread(left[group], had) for group, had in device.memory["held"].items()}

    def start(self, task: Task, device: Device) -> Model:
        """A newcomer's is sent; any other goes on from its own, as the others left it."""
        sent = task.models["model"]
        met: Model = device.memory["met"] if sent.arrays is None else sent
        return met

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        spec, zoo = task.models["model"].spec, device.zoo
        names = tuple(name for name in prunable(spec, zoo) if rows(zoo.axes(spec)[name]) is not None)
        return (Shrink(names, self.sparsity),) if self.sparsity else ()

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        device.memory["model"] = device.memory["met"] = reply.models["model"]
        device.memory["held"] = filled(self.held(device))
        return reply

    @on_client
    def merge(self, task: Task, device: Device) -> Reply:
        """Take what came of meeting the others."""
        device.memory["met"] = task.models["model"]
        return Reply()


def fewer(size: int, goal: int, share: float) -> int:
    """Units of a group that stay when this share of them, at least one, goes; never fewer than the goal."""
    return size if size <= goal else max(goal, size - max(1, int(share * size)))


def first_group(zoo: Zoo) -> str | None:
    """The group of the first layer's units."""
    axes = zoo.axes(zoo.full)
    found = (rows(axes[name]) for name in prunable(zoo.full, zoo))
    return next((axis.group for axis in found if isinstance(axis, Axis)), None)
