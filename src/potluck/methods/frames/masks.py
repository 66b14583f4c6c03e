"""Masks: the frame of methods whose clients keep a structure and a model of their own.

What a client holds lives in its memory: a bit for each unit of every axis group (or for each weight, in LotteryFL). A
round begins with the question what that is, answered in bits; then only what a client holds crosses the wire. The
server remembers nothing of any client, and one that lost its memory is a newcomer. Every client scores its own model,
on its own split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from potluck.core import (
    Arrays,
    Client,
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
from potluck.methods.frames.averaging import Averaging
from potluck.methods.frames.held import asked_for, counts
from potluck.methods.frames.merits import taylor, top


@dataclass(frozen=True)
class Personal(Averaging):
    """Clients hold structures and models of their own, which the server asks for and never serves."""

    weighting: Literal["samples", "uniform"] = "uniform"
    bn_eval: Literal["batch"] = "batch"
    """Static batch norm is scored with each batch's own statistics."""

    facts = Facts(memory=True, sums=False)

    def shown(self, now: Round) -> dict[str, Arrays]:
        """What each client of the cohort holds, as far as they answer."""
        asked = (Task("show", c.id, config={"sizes": dict(self.budget(c, now.zoo))}) for c in self.pick(now))
        return {reply.task.to: reply.arrays for reply in now.send(asked)}

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        """How many units of each group a client is to hold in the end: all."""
        return zoo.full.sizes

    @on_client
    def show(self, task: Task, device: Device) -> Reply:
        """A bit for everything that this client holds; none is set where it has not chosen yet."""
        if not len(device.data):
            raise Skip("no samples")
        return Reply(arrays=self.held(device))

    def held(self, device: Device) -> Arrays:
        """What this client holds, by its memory."""
        kept: Arrays | None = device.memory.get("held")
        return kept or {
            name: torch.zeros(shape, dtype=torch.bool) for name, (shape, _) in self.bits(device.zoo).items()
        }

    def bits(self, zoo: Zoo) -> Shapes:
        """What a client may hold: the units of every axis group."""
        return {group: ((size,), torch.bool) for group, size in zoo.full.sizes.items()}

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        return Expected(arrays=self.bits(zoo)) if task.verb == "show" else super().expects(task, zoo)

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
class Tailored(Personal):
    """Clients choose the units that matter to their data when they are first met, and hold to them."""

    facts = Facts(networks="width", memory=True, sums=False)

    def fitted(self, whole: Arrays, now: Round) -> dict[str, Arrays]:
        """What each client of the cohort holds, once newcomers, who are sent everything, have chosen."""
        sizes = {client.id: dict(self.budget(client, now.zoo)) for client in self.pick(now)}
        frames = {client.id: self.frame(client, now.zoo) for client in self.pick(now)}
        held = self.shown(now)
        newcomers = [id for id, units in held.items() if counts(units, sizes[id]) != sizes[id]]
        tasks = (
            Task(
                "tailor",
                id,
                models={"model": Model(frames[id], {name: whole[name] for name in now.zoo.shapes(frames[id])})},
                config={"sizes": sizes[id]},
            )
            for id in newcomers
        )
        held |= {reply.task.to: reply.arrays for reply in now.send(tasks)}
        return {id: units for id, units in held.items() if counts(units, sizes[id]) == sizes[id]}

    def frame(self, client: Client, zoo: Zoo) -> Spec:
        """The network that a client's is cut out of."""
        return zoo.full

    @on_client
    def tailor(self, task: Task, device: Device) -> Reply:
        """Choose the units that matter most to this client's data, as many as the task says."""
        wanted, scores = asked_for(task), taylor(task.models["model"], device)
        device.memory["importance"] = scores
        device.memory["held"] = {
            group: top(scores[group], wanted[group]) if group in wanted else torch.zeros(size, dtype=torch.bool)
            for group, size in device.zoo.full.sizes.items()
        }
        return Reply(arrays=device.memory["held"])

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        return Expected(arrays=self.bits(zoo)) if task.verb == "tailor" else super().expects(task, zoo)


def within(**shares: float) -> None:
    """Refuses settings that are no share: above 0, at most 1."""
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise ValueError(f"method.{name} = {value} must be above 0 and at most 1")


def at_least(low: int, **numbers: int) -> None:
    """Refuses settings that are too small."""
    for name, value in numbers.items():
        if value < low:
            raise ValueError(f"method.{name} = {value} is below {low}")
