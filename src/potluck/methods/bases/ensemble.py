"""Ensemble distillation on the server, which FedDF and Fed-ET share.

Clients train as in FedAvg, and equal networks are averaged. Then comes server-side distillation, without clients: every
received model predicts logits for each row, public or random, and the server's models learn from these logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from potluck.core import (
    SERVER,
    Arrays,
    Client,
    ClientWork,
    Device,
    Examples,
    Expected,
    Facts,
    FitRequest,
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
from potluck.learn import DistillationSettings, fit_metrics, random_inputs, with_columns
from potluck.methods.bases.public_logits import logits_shapes, need_public, refuse_below
from potluck.methods.fedavg import FedAvg
from potluck.parts import OverlapMean, Part, Weighted


@dataclass(frozen=True)
class EnsembleDistillation(FedAvg):
    """FedAvg within each architecture, then server-side distillation from the received models."""

    share: Literal["whole", "layerwise", "per_arch"] = "per_arch"
    mean: Weighted = Weighted()
    """Weighted: every received model teaches, so a robust mean alone would protect nothing."""
    teach: DistillationSettings = DistillationSettings()
    """Training settings of the server-side distillation."""
    on: Literal["public", "noise"] = "public"
    """Rows for the distillation: the public rows, or random inputs, which are new in each round."""
    noise: int = 200
    """Number of random inputs, with on = "noise"."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, public="inputs" if self.on == "public" else "none", sums=False)

    def __post_init__(self) -> None:
        refuse_below(self, noise=1)

    def train_and_keep(self, state: Any, now: Round) -> tuple[Any, dict[str, Model]]:
        """A round of FedAvg. Returns the new state, and the received models in the order of the client names."""
        mean, received = OverlapMean(state.model.arrays), dict[str, Model]()

        def weigh(reply: Reply) -> Any:
            received[reply.task.to] = reply.models["model"]  # a fold does not keep models, and all of them teach
            return self.weigh(reply, now.zoo)

        self.train_cohort(mean, state, now, weigh)
        return self.server_step(state, mean, now), {client: received[client] for client in sorted(received)}

    def ask_teachers(self, teachers: dict[str, Model], now: Round) -> Tensor:
        """The logits of each of these models for every row: [models, rows, classes]."""
        config = self.row_config(now)
        expects = Expected(arrays=logits_shapes(now.zoo.public if self.on == "public" else self.noise, now.zoo))
        tasks = (
            Task("answer", SERVER, name, 0, {"model": model}, config=config, expects=expects)
            for name, model in teachers.items()
        )
        found = [reply.arrays["scores"] for reply in now.send(tasks)]
        return torch.stack(found) if found else torch.zeros(0)

    def distil_task(self, model: Model, arrays: Arrays, now: Round, key: str = "") -> Task:
        """A task for the server: train one of its own models on the teachers' logits."""
        expects = Expected({"model": model.shapes})
        return Task("learn", SERVER, key, 0, {"model": model}, arrays, self.row_config(now), expects=expects)

    def students(self, zoo: Zoo) -> dict[Spec, Part]:
        """Every architecture, and its part of the server's model."""
        return dict(self.submodel_for(Client("", tier), zoo) for tier in zoo.tiers)

    def row_config(self, now: Round) -> dict[str, Plain]:
        """The config that tells a server task which rows to use: empty for public rows, else a seed."""
        return {"noise": now.rng("noise").initial_seed()} if self.on == "noise" else {}

    def rows(self, task: Task, device: Device) -> Examples:
        """The rows that a server task uses."""
        if "noise" not in task.config:
            return device.public
        shape = cast("tuple[int, ...]", device.zoo.full.options["input"])
        return random_inputs(self.noise, shape, int(str(task.config["noise"])), device.public)

    @on_client
    def answer(self, task: Task, device: Device) -> Reply:
        """The logits of a received model; runs on the server."""
        net = device.build(task.models["model"])
        return Reply(arrays={"scores": device.predict(net, self.rows(task, device))})

    @on_client
    def learn(self, task: Task, device: Device) -> ClientWork:
        """Train a model on the targets in the task; runs on the server."""
        examples = with_columns(self.rows(task, device), **task.arrays)
        fit = yield FitRequest(task.models["model"], examples, self.teach, self.distillation_loss())
        model = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply({"model": model}, metrics=fit_metrics(fit))

    def distillation_loss(self) -> Loss:
        """The loss that a student minimises."""
        raise NotImplementedError

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """A client's architecture; for the server, the largest architecture among the clients."""
        own = client.id != SERVER or self.share == "whole"
        return super().submodel_for(client if own else Client(SERVER, zoo.tiers[-1]), zoo)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if self.on == "public":
            need_public(self, zoo)
