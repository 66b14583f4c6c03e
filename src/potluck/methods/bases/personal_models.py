"""Personal models: every client has its own structure (masks) and its own model.

A client's masks are in its memory: a bit for each unit of every axis group (or for each weight, in LotteryFL). A round
begins with a question: the server asks for the masks, and clients answer in bits. After that, only what a client holds
crosses the wire. The server stores nothing about clients; a client that lost its memory is a newcomer. Every client
scores its own model, on its own split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from potluck.core import (
    Arrays,
    Client,
    ClientWork,
    Device,
    Expected,
    Facts,
    Model,
    Reply,
    Round,
    Shapes,
    Skip,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.bases.unit_importance import taylor_importance, top_units
from potluck.methods.fedavg import Averaging
from potluck.parts import Choose


@dataclass(frozen=True)
class PersonalModels(Averaging):
    """Every client has its own masks and model; the server asks for the masks, and serves no model."""

    weighting: Literal["samples", "uniform"] = "uniform"
    bn_eval: Literal["batch"] = "batch"
    """Score static batch norm with each batch's own statistics."""

    facts = Facts(memory=True, sums=False)

    def ask_masks(self, now: Round) -> dict[str, Arrays]:
        """The masks of each client of the cohort that answers."""
        expects = Expected(arrays=self.bits(now.zoo))
        asked = (
            Task("show", c.id, config={"sizes": dict(self.budget(c, now.zoo))}, expects=expects) for c in self.pick(now)
        )
        return {reply.task.to: reply.arrays for reply in now.send(asked)}

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        """How many units of each group a client holds in the end: here, all."""
        return zoo.full.sizes

    @on_client
    def show(self, task: Task, device: Device) -> Reply:
        """This client's masks; all bits are zero if it has not chosen yet."""
        if not len(device.data):
            raise Skip("no samples")
        return Reply(arrays=self.own_masks(device))

    def own_masks(self, device: Device) -> Arrays:
        """This client's masks, from its memory; zeros if there are none."""
        kept: Arrays | None = device.memory.get("held")
        return kept or {
            name: torch.zeros(shape, dtype=torch.bool) for name, (shape, _) in self.bits(device.zoo).items()
        }

    def bits(self, zoo: Zoo) -> Shapes:
        """Names and shapes of the masks: here, a bit for each unit of every axis group."""
        return {group: ((size,), torch.bool) for group, size in zoo.full.sizes.items()}

    def own(self, device: Device) -> Model:
        if "model" not in device.memory:
            raise Skip("never trained")
        model: Model = device.memory["model"]
        return model

    def ready(self, state: Any, now: Round) -> Any:
        return state

    def serve(self, state: Any, client: Client, zoo: Zoo) -> None:
        return None


@dataclass(frozen=True)
class SelectedUnits(PersonalModels):
    """In its first round, each client chooses the units most important to its data, and keeps them."""

    facts = Facts(networks="width", memory=True, sums=False)

    def ask_selections(self, whole: Arrays, now: Round) -> dict[str, Arrays]:
        """The masks of each client of the cohort. Newcomers get the whole model and choose first."""
        sizes = {client.id: dict(self.budget(client, now.zoo)) for client in self.pick(now)}
        frames = {client.id: self.frame(client, now.zoo) for client in self.pick(now)}
        held = self.ask_masks(now)
        newcomers = [id for id, units in held.items() if unit_counts(units, sizes[id]) != sizes[id]]
        tasks = (
            Task(
                "tailor",
                id,
                models={"model": Model(frames[id], {name: whole[name] for name in now.zoo.shapes(frames[id])})},
                config={"sizes": sizes[id]},
                expects=Expected(arrays=self.bits(now.zoo)),
            )
            for id in newcomers
        )
        held |= {reply.task.to: reply.arrays for reply in now.send(tasks)}
        return {id: units for id, units in held.items() if unit_counts(units, sizes[id]) == sizes[id]}

    def frame(self, client: Client, zoo: Zoo) -> Spec:
        """The network that a client's sub-model is cut out of."""
        return zoo.full

    @on_client
    def tailor(self, task: Task, device: Device) -> ClientWork:
        """Choose the units most important to this client's data, as many as the task asks for."""
        wanted = requested_sizes(task)
        scores = yield from taylor_importance(task.models["model"], device)
        device.memory["importance"] = scores
        device.memory["held"] = {
            group: top_units(scores[group], wanted[group]) if group in wanted else torch.zeros(size, dtype=torch.bool)
            for group, size in device.zoo.full.sizes.items()
        }
        return Reply(arrays=device.memory["held"])


def require_share(**shares: float) -> None:
    """Refuses settings that are not above 0 and at most 1."""
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise ValueError(f"method.{name} = {value} must be above 0 and at most 1")


def require_at_least(low: int, **numbers: int) -> None:
    """Refuses settings below `low`."""
    for name, value in numbers.items():
        if value < low:
            raise ValueError(f"method.{name} = {value} is below {low}")


def unit_budget(client: Client, zoo: Zoo, share: float) -> Mapping[str, int]:
    """Units of each group that a client can train: by its tier's width or, if it has none, this share of all."""
    sizes = client.tier.spec.sizes
    fits = client.tier.width is not None and sizes.keys() == zoo.full.sizes.keys()
    return sizes if fits else zoo.narrow(zoo.full, share).sizes


def requested_sizes(task: Task) -> dict[str, int]:
    """How many units of each group a task's config asks for."""
    sizes = task.config["sizes"]
    assert isinstance(sizes, Mapping)
    return {group: int(str(size)) for group, size in sizes.items()}


def unit_counts(units: Arrays, groups: Mapping[str, int]) -> dict[str, int]:
    """How many units of each of these groups the masks hold."""
    return {group: int(units[group].sum()) for group in groups}


def spec_of_units(units: Arrays, zoo: Zoo) -> Spec:
    """The full network with only these units."""
    return replace(zoo.full, sizes=unit_counts(units, zoo.full.sizes))


def choose_units(units: Arrays) -> Choose:
    """Chooses the units that the masks hold, in ascending order."""
    return lambda axis: units[axis.group].nonzero().flatten()


def is_newcomer(masks: Arrays) -> bool:
    """Whether a client holds nothing yet."""
    return not any(bool(mask.any()) for mask in masks.values())


def all_if_new(masks: Arrays) -> Arrays:
    """The masks; for a newcomer, masks that hold everything."""
    return {name: torch.ones_like(mask) for name, mask in masks.items()} if is_newcomer(masks) else masks


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """The values at the entries where the mask is true; zero (or false) elsewhere."""
    return torch.zeros_like(mask, dtype=values.dtype).masked_scatter_(mask, values)
