"""FedAvg: train what you were given, average what comes back.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
https://arxiv.org/abs/1602.05629.

Every method that averages weights inherits from here and says only what a client holds (`hand_out`), how much a reply
counts (`weigh`) and how the mean moves the server's model (`server`). Beyond the paper: `share` lets devices with
unequal networks take part. Under ``layerwise`` each tensor is averaged over the clients whose network has one of that
name and shape, as the FedIN paper runs its baselines; under ``per_arch`` only equal networks meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch

from potluck.core import EMPTY, Client, Model, Reply, Round, Spec, Task, Weight, Zoo
from potluck.learn import LocalTraining
from potluck.parts import WHOLE, OverlapMean, Part, Place, Replace, Rule, Slots


@dataclass(frozen=True)
class Averaged:
    """The server's half of a round: one model, and what the server rule remembers."""

    model: Model
    slots: Slots = EMPTY


@dataclass(frozen=True)
class FedAvg(LocalTraining):
    """Average the clients' models."""

    weighting: Literal["samples", "uniform"] = "samples"
    """How much a client counts: by its samples, or all alike."""
    share: Literal["whole", "layerwise", "per_arch"] = "whole"
    """Who trains what: all the full network; each tier its own, meeting by tensor; or only with its equals."""
    server: Rule = Replace()

    def init(self, zoo: Zoo, rng: torch.Generator) -> Averaged:
        full = self.target(zoo)
        arrays = zoo.fresh(full, rng).arrays or {}
        if self.share == "whole":
            return Averaged(Model(full, arrays))
        pool = dict(arrays)
        for tier in zoo.tiers:
            own = zoo.fresh(tier.spec, rng).arrays or {}
            for name, place in holding(self.share, tier.spec, zoo).places.items():
                alike = name in arrays and arrays[name].shape == own[name].shape
                pool.setdefault(place.name, arrays[name] if alike else own[name])
        return Averaged(Model(full, pool))

    def round(self, state: Averaged, now: Round) -> Averaged:
        whole = state.model.arrays or {}
        held = {client.id: self.hand_out(client, now) for client in self.pick(now)}
        mean = OverlapMean(whole)
        tasks = (
            Task("train", id, models={"model": Model(spec, part.take(whole))}) for id, (spec, part) in held.items()
        )
        now.fold(tasks, mean, {id: part for id, (_, part) in held.items()}, self.weigh)
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
        """The network that fits this client, and which part of the server's model that is."""
        if self.share == "whole":
            return self.target(zoo), WHOLE
        return client.tier.spec, holding(self.share, client.tier.spec, zoo)

    def weigh(self, reply: Reply) -> Weight:
        """How much a reply counts."""
        return reply.weight if self.weighting == "samples" else 1.0

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        """The server's tensors that no gradient trains: they take the plain mean under every server rule."""
        if self.share == "whole":
            return zoo.buffers(self.target(zoo))
        places = {tier.spec: holding(self.share, tier.spec, zoo) for tier in zoo.tiers}
        return frozenset(part.place(name).name for spec, part in places.items() for name in zoo.buffers(spec))

    def ready(self, state: Averaged, now: Round) -> Averaged:
        """What must happen before scoring: nothing."""
        return state

    def serve(self, state: Averaged, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today."""
        spec, part = self.fitting(client, zoo)
        return Model(spec, part.take(state.model.arrays or {}))

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that this method cannot train."""


@lru_cache(maxsize=256)
def holding(share: str, spec: Spec, zoo: Zoo) -> Part:
    """Where an unequal network's tensors live on the server: under their name, or apart where that is taken."""
    shapes, full = zoo.shapes(spec), zoo.shapes(zoo.full)
    if share == "per_arch" and spec != zoo.full:
        return Part({name: Place(f"{name} of {spec.key}") for name in shapes})
    return Part(
        {name: Place(name if full.get(name) == shape else f"{name} {list(shape[0])}") for name, shape in shapes.items()}
    )
