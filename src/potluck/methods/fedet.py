"""Fed-ET: small client models teach a large server model by weighted consensus, and share a layer with it.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning", IJCAI 2022,
https://arxiv.org/abs/2204.12703. Small models are averaged within each architecture. On unlabelled public rows, the
received models form a consensus: each is weighted by its confidence, the variance of its logits. The server's large
model learns the consensus, and a little from the models that predict another class (diversity regularisation). The
representation layer is common to all: the server's starts from the mean of those of the small models and, after
training, is sent back to all of them.

The representation layer is here the classifier, the last linear layer of the head, and has the shape of the server's
classifier unless `representation` gives another size. A network with more or fewer features gets a linear projection in
front of it, which its type trains as its own. The mean is weighted by each architecture's number of clients. If no
model disagrees on a row, the regularisation is left out there; other code pulls towards the uniform distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import (
    SERVER,
    Arrays,
    Batch,
    Client,
    ContractSettings,
    Facts,
    Loss,
    Model,
    Newborn,
    Round,
    SettingsError,
    Spec,
    Tier,
    Zoo,
)
from potluck.learn import DistillationSettings, kl_divergence
from potluck.methods.bases.ensemble import EnsembleDistillation
from potluck.methods.bases.public_logits import refuse_below
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
    representation: int | None = None
    """Number of features that the common representation layer reads; None: as many as the server's network has."""
    doubt: float = 0.05  # lambda in the paper
    """Strength of the regularisation: KL divergence from the models that disagree with the consensus."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, larger=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, representation=1)

    def target(self, zoo: Zoo) -> Spec:
        return zoo.projected(zoo.full, self.features(zoo))

    def network(self, tier: Tier, zoo: Zoo) -> Spec:
        return zoo.projected(tier.spec, self.features(zoo))

    def features(self, zoo: Zoo) -> int:
        """The number of features that the representation layer reads."""
        return self.representation or zoo.shapes(zoo.full)[f"{zoo.classifier(zoo.full)}.weight"][0][1]

    def init(self, zoo: Zoo, rng: torch.Generator) -> FedETState:
        model, target = self.initial_model(zoo, rng), self.target(zoo)
        large = Model(target, {name: model.arrays[name] for name in zoo.shapes(target)})
        layer = {name: large.arrays[name] for name in layer_names(target, zoo)}
        return FedETState(self.copy_back(model, layer, zoo), large=large)

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.train_and_keep(state, now)
        logits = self.ask_teachers(teachers, now)
        if not len(logits):
            return averaged
        dissent, disputed = dissenting_logits(logits)
        targets = {"agreed": consensus(logits).argmax(-1), "doubts": dissent, "doubted": disputed}
        layer = self.mean_layer(averaged, teachers.values(), now.zoo)
        start = Model(state.large.spec, {**state.large.arrays, **layer})
        (*replies,) = now.send([self.distil_task(start, targets, now, "large")])
        large = replies[0].models["model"] if replies else start
        learned = {name: large.arrays[name] for name in layer}
        return replace(averaged, model=self.copy_back(averaged.model, learned, now.zoo), large=large)

    def layers(self, zoo: Zoo) -> dict[Spec, dict[str, str]]:
        """The representation layer of each architecture: for its tensors in the server's model, the names in the pool.

        The pool is the model of the state, which holds the averages of all architectures.
        """
        servers = layer_names(self.target(zoo), zoo)
        return {
            spec: {name: part.place(own).name for name, own in zip(servers, layer_names(spec, zoo), strict=True)}
            for spec, part in self.students(zoo).items()
        }

    def mean_layer(self, averaged: AveragedState, came: Iterable[Model], zoo: Zoo) -> Arrays:
        """The mean of the architectures' representation layers, each weighted by its number of clients."""
        counts, pool = Counter(model.spec for model in came), averaged.model.arrays
        present = {spec: places for spec, places in self.layers(zoo).items() if counts[spec]}
        mean = OverlapMean({name: pool[there] for places in present.values() for name, there in places.items()})
        for spec, places in present.items():
            mean.add({name: pool[there] for name, there in places.items()}, WHOLE, float(counts[spec]))
        return mean.value()

    def copy_back(self, model: Model, layer: Arrays, zoo: Zoo) -> Model:
        """The averages of all architectures, with this representation layer in each."""
        back = {there: layer[name] for places in self.layers(zoo).values() for name, there in places.items()}
        return Model(model.spec, {**model.arrays, **back})

    def distillation_loss(self) -> Loss:
        return ConsensusLoss(self.doubt)

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The large model for the server, the average of its architecture for a client."""
        large: Model = state.large
        return large if client.id == SERVER else super().serve(state, client, zoo)

    def check(self, zoo: Zoo) -> None:
        networks = {"the server": zoo.full, **{f"tier '{tier.name}'": tier.spec for tier in zoo.tiers}}
        for who, spec in networks.items():
            if not zoo.classifier(spec):
                raise SettingsError(
                    f"Fed-ET shares the last layer of every network's head; {who} has a {spec.family}, which has no "
                    "linear layer in a part called head. Give its classifier this name."
                )
            if len(layer_names(spec, zoo)) != len(layer_names(zoo.full, zoo)):
                raise SettingsError(
                    f"Fed-ET shares the last layer of every network's head; {who} has a {spec.family}, and only one of "
                    "this layer and the server's has a bias. Give both one."
                )
        super().check(zoo)


def layer_names(spec: Spec, zoo: Zoo) -> list[str]:
    """The tensors of a network's classifier: its weight and its bias."""
    names = (f"{zoo.classifier(spec)}.{tensor}" for tensor in ("weight", "bias"))
    return [name for name in names if name in zoo.shapes(spec)]


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
