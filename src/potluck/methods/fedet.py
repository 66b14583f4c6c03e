"""Fed-ET: small client models teach a large server model, each as much as it is sure, and share a layer with it.

Cho et al., "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated Learning", IJCAI 2022,
https://arxiv.org/abs/2204.12703. Small models are averaged within each architecture. On unlabelled public rows the
received models agree by confidence, the variance of their scores; the server's large model learns what they agree on,
and a little of what those say who would have chosen otherwise. The representation layer, here the head, is common to
all: the server's starts from the small ones' and, once it has learned, goes back to them.

A head that is shaped unlike the server's takes no part in that: its architecture keeps its own. The server's starts
from the mean of the averages, each by the number of its clients. Where nobody dissents there is no term for it; other
code pulls towards uniform answers there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from potluck.core import SERVER, Arrays, Client, Facts, Loss, Model, Round, Spec, Task, Zoo
from potluck.learn import DistillationSettings, Doubt, agreed, dissenting
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.ensemble import Ensemble
from potluck.parts import WHOLE, OverlapMean


@dataclass(frozen=True)
class Transfer(DistillationSettings):
    """How the large model is taught: 128 steps a round, with momentum."""

    lr: float = 5e-3
    momentum: float = 0.9
    steps: int | None = 128
    batch: int = 64


@dataclass(frozen=True)
class Transferred(Averaged):
    """What the server keeps: an average for each architecture, and a large model of its own."""

    large: Model = Model(Spec("none"))


@dataclass(frozen=True)
class FedET(Ensemble):
    """A weighted consensus of small models, with room for doubt, taught to a large one."""

    called: ClassVar[str] = "Fed-ET"
    teach: Transfer = Transfer()
    doubt: float = 0.05  # lambda in the paper
    """How much those count that disagree with the consensus."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, larger=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Transferred:
        born = super().init(zoo, rng).model
        full = {name: (born.arrays or {})[name] for name in zoo.shapes(zoo.full)}
        return Transferred(born, large=Model(zoo.full, full))

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.gathered(state, now)
        scores = self.consulted(teachers, now)
        if not len(scores):
            return averaged
        doubts, doubted = dissenting(scores)
        lesson = {"agreed": agreed(scores).argmax(-1), "doubts": doubts, "doubted": doubted}
        pool, head = averaged.model.arrays or {}, self.head(averaged, teachers.values(), now.zoo)
        start = Model(now.zoo.full, {**(state.large.arrays or {}), **head})
        (*replies,) = now.send([Task("learn", SERVER, "large", 0, {"model": start}, lesson, self.asking(now))])
        large = replies[0].models["model"] if replies else start
        learned = {name: (large.arrays or {})[name] for name in head}
        back = {there: learned[name] for places in self.heads(now.zoo).values() for name, there in places.items()}
        return replace(averaged, model=Model(averaged.model.spec, {**pool, **(back if head else {})}), large=large)

    def heads(self, zoo: Zoo) -> dict[Spec, dict[str, str]]:
        """For each architecture whose head is shaped like the server's: where the head's tensors lie."""
        wanted = {name: shape for name, shape in zoo.shapes(zoo.full).items() if name.startswith("head.")}
        return {
            spec: {name: part.place(name).name for name in wanted}
            for spec, part in self.students(zoo).items()
            if all(zoo.shapes(spec).get(name) == shape for name, shape in wanted.items())
        }

    def head(self, averaged: Averaged, came: Iterable[Model], zoo: Zoo) -> Arrays:
        """The mean of the averages' heads, each by how many clients it is of; nothing where none is like another."""
        counts, pool = Counter(model.spec for model in came), averaged.model.arrays or {}
        present = {spec: places for spec, places in self.heads(zoo).items() if counts[spec]}
        mean = OverlapMean({name: pool[there] for places in present.values() for name, there in places.items()})
        for spec, places in present.items():
            mean.add({name: pool[there] for name, there in places.items()}, WHOLE, float(counts[spec]))
        return mean.value()

    def lesson_loss(self) -> Loss:
        return Doubt(self.doubt)

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The large model to the server, an architecture's average to a client."""
        large: Model = state.large
        return large if client.id == SERVER else super().serve(state, client, zoo)
