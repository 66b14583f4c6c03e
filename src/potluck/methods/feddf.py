"""FedDF: average within each architecture, then teach every average what all clients' models say together.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.07242. The server holds a model for each architecture. Clients train theirs; equal ones are
averaged; then each average, as a student, follows the mean scores of *all* received models on unlabelled rows. Labels
of the public set are never used, so it need not be related to the clients' data: ``on = "noise"`` does without one and
asks the teachers about random inputs.

A fixed number of epochs stands for the paper's 10^4 steps with early stopping on a validation set, and the rate is
constant within a round. An architecture of which no client took part is taught too. Under ``share = "whole"`` all train
the full network, and there is one student.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from potluck.core import SERVER, Loss, Model, Round, Task
from potluck.learn import DistillationSettings, Follow, mean_scores
from potluck.methods.frames.ensemble import Ensemble
from potluck.parts import OverlapMean


@dataclass(frozen=True)
class Distillation(DistillationSettings):
    """How students are taught: Adam, five epochs a round."""

    optimiser: Literal["sgd", "adam"] = "adam"
    lr: float = 1e-3
    epochs: int = 5
    batch: int = 128


@dataclass(frozen=True)
class FedDF(Ensemble):
    """FedAvg within architectures, and an ensemble of all as everyone's teacher."""

    teach: Distillation = Distillation()

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.gathered(state, now)
        scores = self.consulted(teachers, now)
        if not len(scores):
            return averaged
        return self.lectured(averaged, {"scores": mean_scores(scores)}, now)

    def lectured(self, state: Any, lesson: dict[str, Tensor], now: Round) -> Any:
        """The state after each architecture's model has learned this lesson."""
        whole, students = state.model.arrays or {}, self.students(now.zoo)
        tasks = (
            Task("learn", SERVER, spec.key, 0, {"model": Model(spec, part.take(whole))}, lesson, self.asking(now))
            for spec, part in students.items()
        )
        mean = OverlapMean(whole)
        for reply in now.send(tasks):
            mean.add(reply.models["model"].arrays or {}, students[reply.models["model"].spec])
        return replace(state, model=Model(state.model.spec, mean.value()))

    def lesson_loss(self) -> Loss:
        return Follow()
