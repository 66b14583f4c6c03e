"""FedDF: averages within each architecture, then distils the ensemble of all clients' models into every average.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
https://arxiv.org/abs/2006.07242. The server holds a model for each architecture. Clients train theirs, and equal
architectures are averaged. Then server-side distillation: each average, as a student, learns the mean logits of *all*
received models on unlabelled rows. Labels of the public set are never used, so it need not be related to the clients'
data. With ``on = "noise"`` there is no public set, and the rows are random inputs.

The paper takes 10^4 steps with early stopping on a validation set; here there is a fixed number of epochs, and the
learning rate is constant within a round. An architecture of which no client took part is a student too. Under
``share = "whole"`` all clients train the full network, and there is one student.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from potluck.core import Arrays, Batch, ContractSettings, Loss, Model, Round
from potluck.learn import DistillationSettings, kl_divergence, mean_logits
from potluck.methods.bases.ensemble import EnsembleDistillation
from potluck.parts import OverlapMean


@dataclass(frozen=True)
class FedDFDistillation(DistillationSettings):
    """Settings of the server-side distillation: Adam, five epochs a round."""

    optimiser: Literal["sgd", "adam"] = "adam"
    lr: float = 1e-3
    epochs: int = 5
    batch: int = 128


@dataclass(frozen=True)
class FedDF(EnsembleDistillation):
    """FedAvg within each architecture; the ensemble of all models teaches every average."""

    contract = ContractSettings(as_fedavg={"teach": {"epochs": 0}}, idle={"teach": {"epochs": 0}})

    teach: FedDFDistillation = FedDFDistillation()

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.train_and_keep(state, now)
        logits = self.ask_teachers(teachers, now)
        if not len(logits):
            return averaged
        return self.distil(averaged, {"scores": mean_logits(logits)}, now)

    def distil(self, state: Any, targets: Arrays, now: Round) -> Any:
        """The state after each architecture's model was trained on these targets."""
        whole, students = state.model.arrays, self.students(now.zoo)
        tasks = (
            self.distil_task(Model(spec, part.take(whole)), targets, now, spec.key) for spec, part in students.items()
        )
        mean = OverlapMean(whole)
        for reply in now.send(tasks):
            mean.add(reply.models["model"].arrays, students[reply.models["model"].spec])
        return replace(state, model=Model(state.model.spec, mean.value()))

    def distillation_loss(self) -> Loss:
        return KLFromTeachers()


@dataclass(frozen=True)
class KLFromTeachers:
    """KL divergence from the teachers' mean logits, without labels."""

    inputs: str = "x"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return kl_divergence(batch[self.target], net(batch[self.inputs])).mean()
