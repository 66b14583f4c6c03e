"""Ensembles: the frame of methods whose server asks all received models about rows, and teaches what they say.

Clients train as in FedAvg, and equal networks are averaged. Then the server works for itself: every model that came
answers for each row, public or random, and the models that the server holds learn from the answers.
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
    Facts,
    Loss,
    Model,
    Plain,
    Reply,
    Round,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import DistillationSettings, noise, told, with_columns
from potluck.methods.fedavg import FedAvg
from potluck.methods.frames.exchange import need_public, refuse_below, scored_rows
from potluck.parts import OverlapMean, Part


@dataclass(frozen=True)
class Ensemble(FedAvg):
    """FedAvg within architectures, and the received models as teachers of the server's."""

    share: Literal["whole", "layerwise", "per_arch"] = "per_arch"
    teach: DistillationSettings = DistillationSettings()
    """How the server's models are taught."""
    on: Literal["public", "noise"] = "public"
    """What teachers are asked about: the public rows, or random inputs, anew in each round."""
    noise: int = 200
    """How many random inputs, where it is these."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, public="inputs" if self.on == "public" else "none", sums=False)

    def __post_init__(self) -> None:
        refuse_below(self, noise=1)

    def gathered(self, state: Any, now: Round) -> tuple[Any, dict[str, Model]]:
        """A round of FedAvg, and the models that came in it, in the order of their clients' names."""
        mean, came = OverlapMean(state.model.arrays or {}), dict[str, Model]()

        def weigh(reply: Reply) -> Any:
            came[reply.task.to] = reply.models["model"]  # a fold keeps none, and all are to teach
            return self.weigh(reply, now.zoo)

        self.train_cohort(mean, state, now, weigh)
        return self.server_step(state, mean, now), {client: came[client] for client in sorted(came)}

    def consulted(self, teachers: dict[str, Model], now: Round) -> Tensor:
        """What each of these models says about every row: [models, rows, classes]."""
        config = self.asking(now)
        tasks = (Task("answer", SERVER, name, 0, {"model": model}, config=config) for name, model in teachers.items())
        found = [reply.arrays["scores"] for reply in now.send(tasks)]
        return torch.stack(found) if found else torch.zeros(0)

    def students(self, zoo: Zoo) -> dict[Spec, Part]:
        """Every architecture, and where its model lies."""
        return dict(self.submodel_for(Client("", tier), zoo) for tier in zoo.tiers)

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
        net = device.build(task.models["model"])
        return Reply(arrays={"scores": device.predict(net, self.rows(task, device))})

    @on_client
    def learn(self, task: Task, device: Device) -> Reply:
        """A model learns what the task tells of the rows; on the server."""
        net = device.build(task.models["model"])
        fit = device.fit(net, with_columns(self.rows(task, device), **task.arrays), self.teach, self.lesson_loss())
        return Reply({"model": Model(task.models["model"].spec, device.rest(net))}, metrics=told(fit))

    def lesson_loss(self) -> Loss:
        """What a model descends that is taught."""
        raise NotImplementedError

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """A client's architecture; the server's is the largest that there is among the clients."""
        own = client.id != SERVER or self.share == "whole"
        return super().submodel_for(client if own else Client(SERVER, zoo.tiers[-1]), zoo)

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb == "answer":
            return Expected(arrays=scored_rows(zoo.public if self.on == "public" else self.noise, zoo))
        return super().expects(replace(task, verb="train") if task.verb == "learn" else task, zoo)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.on == "public":
            need_public(self, zoo)
