"""Which part of the server's model each client trains, and how much its reply counts."""

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
    """Hooks of a round that averages weights. By default, every client trains the server's whole model."""

    weighting: Literal["samples", "uniform"] = "samples"
    """A client's weight in the mean: its number of samples, or the same for all."""

    @property
    def facts(self) -> Facts:
        """What this method needs and allows: one network for all, and a server that needs only sums of replies."""
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
        """The network that a client trains in this round, and which part of the server's model it is."""
        return self.submodel_for(client, now.zoo)

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """The network that a client uses in any round, and which part of the server's model it is."""
        return self.target(zoo), WHOLE

    def train_task(self, client: str, model: Model, part: Part, state: Any, now: Round) -> Task:
        """The task to train a model, with what the reply must hold."""
        arrays = self.extra_payload(client, model.spec, part, state, now)
        return Task(
            "train", client, models={"model": model}, arrays=arrays, expects=self.expected_reply(model, arrays, now)
        )

    def extra_payload(self, client: str, spec: Spec, part: Part, state: Any, now: Round) -> Arrays:
        """Tensors sent to a client beside its model: here, none."""
        return EMPTY

    def expected_reply(self, model: Model, arrays: Arrays, now: Round) -> Expected:
        """What the reply must hold, if a client gets this model and these arrays: here, the model alone."""
        return Expected({"model": model.shapes})

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        """The weight of a reply in the mean."""
        return reply.weight if self.weighting == "samples" else 1.0

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        """The server's tensors without a gradient: they take the plain mean under every server rule."""
        return zoo.buffers(self.target(zoo))

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today."""
        spec, part = self.submodel_for(client, zoo)
        return Model(spec, part.take(state.model.arrays))


def classes(spec: Spec) -> int:
    """The number of classes (or tokens) of a network."""
    return int(str(spec.options["classes"]))
