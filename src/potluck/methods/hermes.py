"""Hermes: every client prunes filters until its network fits its budget, and shares only what other clients keep too.

Li et al., "Hermes: An Efficient Federated Learning Framework for Heterogeneous Mobile Clients", MobiCom 2021,
https://doi.org/10.1145/3447993.3483278. No code is public: this is written from the abstract and general knowledge. If
a client's network is accurate enough on its validation split, the client removes the units with the smallest weights
(L1), a share of each axis group, until the network fits. A penalty on whole filters (group sparsity) prepares this.
Units of the first group and the classes are never pruned. Networks really shrink, and with them computation and
traffic.

After training, entries that several clients of the round hold are averaged and sent back to them. Entries that one
client holds alone stay its own. There is no global model: the server keeps the mean only as a start for newcomers. A
client is scored, and decides whether to prune, with its network as it last trained it, before the averaging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from potluck.core import (
    Axis,
    Client,
    ContractSettings,
    Device,
    Edit,
    Expected,
    Facts,
    Fit,
    Grads,
    Model,
    Newborn,
    Reply,
    Round,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.bases.personal_models import (
    PersonalModels,
    all_if_new,
    choose_units,
    requested_sizes,
    require_share,
    scatter,
    spec_of_units,
    unit_budget,
    unit_counts,
)
from potluck.methods.bases.unit_importance import prunable_weights, row_axis, top_units, unit_scores, validation_score
from potluck.methods.fedavg import AveragedState
from potluck.parts import WHOLE, OverlapMean, Replace, part


@dataclass(frozen=True)
class Hermes(PersonalModels):
    """Every client prunes its own network, unit by unit; overlapping entries are averaged."""

    facts = Facts(units=True, memory=True, sums=False)
    contract = ContractSettings(as_fedavg={"threshold": 2.0, "sparsity": 0.0, "weighting": "samples"}, tiers="width")

    keep: float = 0.5
    """The share of every group's units kept in the end, if a client's tier has no width."""
    prune: float = 0.2
    """The share of a group's units that one pruning removes."""
    threshold: float = 0.5
    """Prune only a network whose validation accuracy is above this."""
    sparsity: float = 1e-4
    """Strength of the penalty on whole filters (group sparsity)."""
    server: Replace = Replace()

    def __post_init__(self) -> None:
        require_share(keep=self.keep, prune=self.prune)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        sizes, first = zoo.full.sizes, first_group(zoo)
        return {**unit_budget(client, zoo, self.keep), **({first: sizes[first]} if first else {})}

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        zoo, whole = now.zoo, state.model.arrays
        held = self.ask_masks(now)
        units = {id: held[id] if all(unit_counts(held[id], zoo.full.sizes).values()) else None for id in held}
        specs = {id: spec_of_units(had, zoo) if had else zoo.full for id, had in units.items()}
        parts = {id: part(zoo.axes(zoo.full), choose_units(had)) if had else WHOLE for id, had in units.items()}
        mean = OverlapMean(whole)
        tasks = (
            Task(
                "train",
                id,
                models={"model": Newborn(specs[id]) if units[id] else Model(specs[id], whole)},
                expects=Expected({"model": zoo.shapes(specs[id])}, metrics=self.label_check(zoo.full)),
            )
            for id in units
        )
        replies = now.fold(tasks, mean, parts)
        means = mean.value()
        back = [reply.task.to for reply in replies]
        for _ in now.send(Task("merge", id, models={"model": Model(specs[id], parts[id].take(means))}) for id in back):
            pass
        return replace(state, model=Model(state.model.spec, means))

    @on_client
    def show(self, task: Task, device: Device) -> Reply:
        """This client's masks, after a step of pruning if one is due."""
        if "model" in device.memory:
            self.shrink(requested_sizes(task), device)
        return super().show(task, device)

    def shrink(self, goal: Mapping[str, int], device: Device) -> None:
        """Removes the weakest units of every group that has too many, if the network is accurate enough."""
        own = self.own(device)
        sizes, axes = own.spec.sizes, device.zoo.axes(own.spec)
        keep = {group: size_after_pruning(size, goal[group], self.prune) for group, size in sizes.items()}
        if keep == dict(sizes) or validation_score(own, device) <= self.threshold:
            return
        weights = {name: own.arrays[name].abs() for name in prunable_weights(own.spec, device.zoo)}
        scores = unit_scores(weights, axes, own.spec)
        left = {group: top_units(scores[group], count) for group, count in keep.items()}
        for key in ("model", "met"):
            cut = part(axes, choose_units(left)).take(device.memory[key].arrays)
            device.memory[key] = Model(replace(own.spec, sizes=keep), cut)
        device.memory["held"] = {group: scatter(left[group], had) for group, had in device.memory["held"].items()}

    def start(self, task: Task, device: Device) -> Model:
        """A newcomer starts from the received model; any other client from its own, as last averaged."""
        sent = task.models["model"]
        met: Model = device.memory["met"] if isinstance(sent, Newborn) else sent
        return met

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        spec, zoo = task.models["model"].spec, device.zoo
        names = tuple(name for name in prunable_weights(spec, zoo) if row_axis(zoo.axes(spec)[name]) is not None)
        return (GroupSparsity(names, self.sparsity),) if self.sparsity else ()

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        device.memory["model"] = device.memory["met"] = reply.models["model"]
        device.memory["held"] = all_if_new(self.own_masks(device))
        return reply

    @on_client
    def merge(self, task: Task, device: Device) -> Reply:
        """Keep the averaged model as the start of the next training."""
        device.memory["met"] = task.models["model"]
        return Reply()


def size_after_pruning(size: int, goal: int, share: float) -> int:
    """A group's size after removing this share of its units, at least one; never below the goal."""
    return size if size <= goal else max(goal, size - max(1, int(share * size)))


def first_group(zoo: Zoo) -> str | None:
    """The group of the first layer's units."""
    axes = zoo.axes(zoo.full)
    found = (row_axis(axes[name]) for name in prunable_weights(zoo.full, zoo))
    return next((axis.group for axis in found if isinstance(axis, Axis)), None)


@dataclass(frozen=True, eq=False)
class GroupSparsity:
    """Group sparsity: adds the gradient of strength x the sum of the norms of these tensors' rows."""

    names: tuple[str, ...]
    strength: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        pulls = {name: self.strength * normalise_rows(weights[name]) for name in self.names}
        return {name: grad + pulls[name] if name in pulls else grad for name, grad in grads.items()}


def normalise_rows(weight: Tensor) -> Tensor:
    """A tensor with each row scaled to norm one; a row of zeros stays zero."""
    lengths: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1).clamp(min=1e-12)
    return weight / lengths.reshape(-1, *[1] * (weight.dim() - 1))
