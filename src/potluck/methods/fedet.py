"""Fed-ET: small client models teach a large server model by weighted consensus, and share a layer with it.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning", IJCAI 2022,
https://arxiv.org/abs/2204.12703. Small models are averaged within each architecture. On unlabelled public rows, the
received models form a consensus: each is weighted by its confidence, the variance of its logits. The server's large
model learns the consensus, and a little from the models that predict another class (diversity regularisation). The
representation layer, here the head, is common to all: the server's head starts from the heads of the small models and,
after training, is sent back to them.

A head whose shape differs from the server's takes no part in this: its architecture keeps its own. The server's head
starts from the mean of the averaged heads, each weighted by its number of clients. If no model disagrees on a row, the
regularisation is left out there; other code pulls towards the uniform distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import SERVER, Arrays, Batch, Client, ContractSettings, Facts, Loss, Model, Newborn, Round, Spec, Zoo
from potluck.learn import DistillationSettings, kl_divergence
from potluck.methods.bases.ensemble import EnsembleDistillation
from potluck.methods.fedavg import AveragedState
from potluck.parts import WHOLE, OverlapMean


@dataclass(frozen=True)
class FedETDistillation(DistillationSettings):
    """Settings of the server-side distillation: 128 steps a round, with momentum."""

    lr: float = 5e-3
    momentum: float = 0.9
    steps: int | None = 128
    batch: int = 64


@dataclass(frozen=True)
class FedETState(AveragedState):
    """The server's state: an average for each architecture, and its own large model."""

    large: Model = Newborn(Spec("none"))


@dataclass(frozen=True)
class FedET(EnsembleDistillation):
    """A large server model learns the weighted consensus of small client models."""

    contract = ContractSettings(as_fedavg={"teach": {"steps": 0}}, idle={"teach": {"steps": 0}})

    called: ClassVar[str] = "Fed-ET"
    teach: FedETDistillation = FedETDistillation()
    doubt: float = 0.05  # lambda in the paper
    """Strength of the regularisation: KL divergence from the models that disagree with the consensus."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, larger=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> FedETState:
        model = self.initial_model(zoo, rng)
        return FedETState(model, large=Model(zoo.full, {name: model.arrays[name] for name in zoo.shapes(zoo.full)}))

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.train_and_keep(state, now)
        logits = self.ask_teachers(teachers, now)
        if not len(logits):
            return averaged
        dissent, disputed = dissenting_logits(logits)
        targets = {"agreed": consensus(logits).argmax(-1), "doubts": dissent, "doubted": disputed}
        pool, head = averaged.model.arrays, self.head(averaged, teachers.values(), now.zoo)
        start = Model(now.zoo.full, {**state.large.arrays, **head})
        (*replies,) = now.send([self.distil_task(start, targets, now, "large")])
        large = replies[0].models["model"] if replies else start
        learned = {name: large.arrays[name] for name in head}
        back = {there: learned[name] for places in self.heads(now.zoo).values() for name, there in places.items()}
        return replace(averaged, model=Model(averaged.model.spec, {**pool, **(back if head else {})}), large=large)

    def heads(self, zoo: Zoo) -> dict[Spec, dict[str, str]]:
        """For each architecture whose head has the shape of the server's: the server's names of its tensors."""
        wanted = {name: shape for name, shape in zoo.shapes(zoo.full).items() if name.startswith("head.")}
        return {
            spec: {name: part.place(name).name for name in wanted}
            for spec, part in self.students(zoo).items()
            if all(zoo.shapes(spec).get(name) == shape for name, shape in wanted.items())
        }

    def head(self, averaged: AveragedState, came: Iterable[Model], zoo: Zoo) -> Arrays:
        """The mean of the averaged heads, each weighted by its number of clients; empty if no head fits."""
        counts, pool = Counter(model.spec for model in came), averaged.model.arrays
        present = {spec: places for spec, places in self.heads(zoo).items() if counts[spec]}
        mean = OverlapMean({name: pool[there] for places in present.values() for name, there in places.items()})
        for spec, places in present.items():
            mean.add({name: pool[there] for name, there in places.items()}, WHOLE, float(counts[spec]))
        return mean.value()

    def distillation_loss(self) -> Loss:
        return ConsensusLoss(self.doubt)

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The large model for the server, the average of its architecture for a client."""
        large: Model = state.large
        return large if client.id == SERVER else super().serve(state, client, zoo)


def confidence(logits: Tensor) -> Tensor:
    """Each network's weight in each row, [networks, rows]: the variance of its logits over classes, normalised."""
    return _shares(logits.var(-1))


def consensus(logits: Tensor) -> Tensor:
    """The mean of the networks' logits, weighted by confidence."""
    return (confidence(logits)[..., None] * logits).sum(0)


def dissenting_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The mean logits of networks that disagree with the consensus, weighted by confidence; and which rows have any.

    Rows without any have zeros.
    """
    others = logits.argmax(-1) != consensus(logits).argmax(-1)
    shares = _shares(torch.where(others, confidence(logits), 0.0)) * others
    return (shares[..., None] * logits).sum(0), others.any(0)


def _shares(weights: Tensor) -> Tensor:
    """Weights normalised to sum to one over networks; equal weights if all are zero."""
    total = weights.sum(0)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 1 / len(weights))


@dataclass(frozen=True)
class ConsensusLoss:
    """Cross-entropy with the consensus, plus some KL divergence from the models that disagree, if there are any."""

    strength: float
    inputs: str = "x"
    labels: str = "agreed"
    target: str = "doubts"
    where: str = "doubted"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        logits = net(batch[self.inputs])
        doubts = torch.where(batch[self.where], kl_divergence(batch[self.target], logits), 0.0)
        return functional.cross_entropy(logits, batch[self.labels]) + self.strength * doubts.mean()
