"""Which client trains which part of the server's model, and how much its reply counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from potluck.core import EMPTY, Arrays, Client, Expected, Facts, Model, Reply, Round, Spec, Task, Weight, Zoo
from potluck.learn import LocalTraining
from potluck.parts import WHOLE, Part


@dataclass(frozen=True)
class SubmodelAssignment(LocalTraining):
    """Hooks of a round that averages weights: as they stand, everyone trains the whole of the server's model."""

    weighting: Literal["samples", "uniform"] = "samples"
    """How much a client counts: by its samples, or all alike."""

    @property
    def facts(self) -> Facts:
        """What this method needs and allows: one network for all, and no more than sums."""
        return Facts()

    def target(self, zoo: Zoo) -> Spec:
        """The server's network."""
        return zoo.full

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        """The server's model before the first round."""
        return Model(self.target(zoo), zoo.fresh(self.target(zoo), rng).arrays)

    def pick(self, now: Round) -> Sequence[Client]:
        """Who takes part: the cohort."""
        return now.cohort

    def assign(self, client: Client, now: Round) -> tuple[Spec, Part]:
        """The network a client trains in this round, and which part of the server's model that is."""
        return self.submodel_for(client, now.zoo)

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """The network that a client uses, in any round, and which part of the server's model that is."""
        return self.target(zoo), WHOLE

    def train_task(self, client: str, model: Model, part: Part, state: Any, now: Round) -> Task:
        """What a client is asked to train, and what its reply must hold: the model as it was sent."""
        arrays = self.extra_payload(client, model.spec, part, state, now)
        return Task("train", client, models={"model": model}, arrays=arrays, expects=self.expected(model, arrays, now))

    def extra_payload(self, client: str, spec: Spec, part: Part, state: Any, now: Round) -> Arrays:
        """What a client is sent beside its model: nothing."""
        return EMPTY

    def expected(self, model: Model, arrays: Arrays, now: Round) -> Expected:
        """What comes back of a model that was sent with these arrays: the model alone."""
        return Expected({"model": model.shapes})

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        """How much a reply counts."""
        return reply.weight if self.weighting == "samples" else 1.0

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        """The server's tensors that no gradient trains: they take the plain mean under every server rule."""
        return zoo.buffers(self.target(zoo))

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today."""
        spec, part = self.submodel_for(client, zoo)
        return Model(spec, part.take(state.model.arrays))


def classes(spec: Spec) -> int:
    """How many classes (or tokens) a network tells apart."""
    return int(str(spec.options["classes"]))
