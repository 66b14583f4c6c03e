"""The round that every weight-averaging method shares: hand parts out, train, put them back together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from potluck.core import EMPTY, Client, Model, Reply, Round, Spec, Task, Weight, Zoo
from potluck.learn import LocalTraining
from potluck.parts import WHOLE, OverlapMean, Part, Replace, Rule, Slots


@dataclass(frozen=True)
class Averaged:
    """The server's half of a round: one model, and what the server rule remembers."""

    model: Model
    slots: Slots = EMPTY


@dataclass(frozen=True)
class Averaging(LocalTraining):
    """Clients train the server's network, or parts of it; the server averages whatever overlaps."""

    weighting: Literal["samples", "uniform"] = "samples"
    """How much a client counts: by its samples, or all alike."""
    server: Rule = Replace()
    """How the mean moves the server's model."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return Averaged(Model(self.target(zoo), zoo.fresh(self.target(zoo), rng).arrays))

    def round(self, state: Any, now: Round) -> Any:
        whole = state.model.arrays or {}
        held = {client.id: self.hand_out(client, now) for client in self.pick(now)}
        mean = OverlapMean(whole)
        tasks = (
            Task("train", id, models={"model": Model(spec, part.take(whole))}) for id, (spec, part) in held.items()
        )
        now.fold(tasks, mean, {id: part for id, (_, part) in held.items()}, partial(self.weigh, zoo=now.zoo))
        arrays, slots = self.server(whole, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def target(self, zoo: Zoo) -> Spec:
        """The server's network."""
        return zoo.full

    def pick(self, now: Round) -> Sequence[Client]:
        """Who takes part: the cohort."""
        return now.cohort

    def hand_out(self, client: Client, now: Round) -> tuple[Spec, Part]:
        """The network a client trains this round, and which part of the server's model that is."""
        return self.fitting(client, now.zoo)

    def fitting(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """The network that fits this client on any day, and which part of the server's model that is."""
        return self.target(zoo), WHOLE

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        """How much a reply counts."""
        return reply.weight if self.weighting == "samples" else 1.0

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        """The server's tensors that no gradient trains: they take the plain mean under every server rule."""
        return zoo.buffers(self.target(zoo))

    def ready(self, state: Any, now: Round) -> Any:
        """What must happen before scoring: nothing."""
        return state

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today."""
        spec, part = self.fitting(client, zoo)
        return Model(spec, part.take(state.model.arrays or {}))

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that this method cannot train."""
