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
from typing import Any, Literal, cast

import torch
from torch import Tensor

from potluck.core import (
    SERVER,
    Client,
    Device,
    Examples,
    Expected,
    Model,
    Plain,
    Reply,
    Round,
    Spec,
    Task,
    Zoo,
    on_client,
)  # fmt: skip
from potluck.learn import Follow, Lessons, beside, mean_scores, noise, predicted, told
from potluck.methods.exchange import need_public, refuse_below, scored_rows
from potluck.methods.fedavg import FedAvg
from potluck.parts import OverlapMean, Part


@dataclass(frozen=True)
class Distillation(Lessons):
    """How students are taught: Adam, five epochs a round."""

    optimiser: Literal["sgd", "adam"] = "adam"
    lr: float = 1e-3
    epochs: int = 5
    batch: int = 128


@dataclass(frozen=True)
class FedDF(FedAvg):
    """FedAvg within architectures, and an ensemble of all as everyone's teacher."""

    share: Literal["whole", "layerwise", "per_arch"] = "per_arch"
    teach: Distillation = Distillation()
    on: Literal["public", "noise"] = "public"
    """What teachers are asked about: the public rows, or random inputs, anew in each round."""
    noise: int = 200
    """How many random inputs, where it is these."""

    def __post_init__(self) -> None:
        refuse_below(self, noise=1)

    def round(self, state: Any, now: Round) -> Any:
        averaged, teachers = self.gathered(state, now)
        scores = self.consulted(teachers, now)
        if not len(scores):
            return averaged
        return self.lectured(averaged, {"scores": mean_scores(scores)}, now)

    def gathered(self, state: Any, now: Round) -> tuple[Any, dict[str, Model]]:
        """A round of FedAvg, and the models that came in it, in the order of their clients' names."""
        mean, came = OverlapMean(state.model.arrays or {}), dict[str, Model]()

        def weigh(reply: Reply) -> Any:
            came[reply.task.to] = reply.models["model"]  # a fold keeps none, and all are to teach
            return self.weigh(reply, now.zoo)

        self.folded(mean, state, now, weigh)
        return self.moved(state, mean, now), {client: came[client] for client in sorted(came)}

    def consulted(self, teachers: dict[str, Model], now: Round) -> Tensor:
        """What each of these models says about every row: [models, rows, classes]."""
        config = self.asking(now)
        tasks = (Task("answer", SERVER, name, 0, {"model": model}, config=config) for name, model in teachers.items())
        found = [reply.arrays["scores"] for reply in now.send(tasks)]
        return torch.stack(found) if found else torch.zeros(0)

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

    def students(self, zoo: Zoo) -> dict[Spec, Part]:
        """Every architecture, and where its model lies."""
        return dict(self.fitting(Client("", tier), zoo) for tier in zoo.tiers)

    def asking(self, now: Round) -> dict[str, Plain]:
        """What tells the server's tasks which rows they are about: nothing, or a seed."""
        return {"noise": now.rng("noise").initial_seed()} if self.on == "noise" else {}

    def rows(self, task: Task, device: Device) -> Examples:
        """The rows that a task of the server's is about."""
        if "noise" not in task.config:
            return device.public
        shape = cast("tuple[int, ...]", device.zoo.full.options["input"])
        return noise(self.noise, shape, int(str(task.config["noise"])), device.public)

    @on_client
    def answer(self, task: Task, device: Device) -> Reply:
        """What a received model says; asked of the server."""
        return Reply(arrays={"scores": predicted(device.build(task.models["model"]), self.rows(task, device))})

    @on_client
    def learn(self, task: Task, device: Device) -> Reply:
        """A student follows the ensemble; on the server."""
        net = device.build(task.models["model"])
        fit = device.fit(net, beside(self.rows(task, device), **task.arrays), self.teach, Follow())
        return Reply({"model": Model(task.models["model"].spec, device.rest(net))}, metrics=told(fit))

    def fitting(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """A client's architecture; the server's is the largest that there is among the clients."""
        own = client.id != SERVER or self.share == "whole"
        return super().fitting(client if own else Client(SERVER, zoo.tiers[-1]), zoo)

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb == "answer":
            return Expected(arrays=scored_rows(zoo.public if self.on == "public" else self.noise, zoo))
        return super().expects(replace(task, verb="train") if task.verb == "learn" else task, zoo)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.on == "public":
            need_public(self, zoo)
