"""Logits on public rows, shared by FedMD, DS-FL and FedGEMS: models stay on the clients, only logits cross the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import (
    SERVER,
    Arrays,
    Client,
    Device,
    Examples,
    Expected,
    Facts,
    Fit,
    FitRequest,
    Loss,
    Model,
    Newborn,
    Reply,
    Round,
    SettingsError,
    Shapes,
    Task,
    Zoo,
    display_name,
)
from potluck.learn import fit_metrics
from potluck.methods.bases.submodels import classes
from potluck.methods.local import LocalOnly


@dataclass(frozen=True)
class ServerModelState:
    """The server's state: its own model, trained by distillation on public rows."""

    model: Model


@dataclass(frozen=True)
class PublicLogits(LocalOnly):
    """Clients keep their models, of any architecture, and upload logits of public rows."""

    rows: int | None = None
    """Number of public rows that a round uses, drawn anew each round; None: all of them."""

    facts = Facts(networks="any", public="inputs", memory=True)

    def __post_init__(self) -> None:
        refuse_below(self, rows=1)

    def draw_rows(self, now: Round) -> Arrays:
        """The indices of the public rows that this round uses; empty: all of them."""
        if self.rows is None or self.rows >= now.zoo.public:
            return {}
        return {"rows": torch.randperm(now.zoo.public, generator=now.rng("rows"))[: self.rows]}

    def collect_logits(self, verb: str, now: Round, rows: Arrays) -> dict[str, Tensor]:
        """The logits of each client that answers, for these rows, in the order of the client names."""
        count = len(rows["rows"]) if "rows" in rows else now.zoo.public
        expects = Expected(arrays=logits_shapes(count, now.zoo))
        tasks = (Task(verb, c.id, models=newborn(c), arrays=rows, expects=expects) for c in now.cohort)
        found = {reply.task.to: reply.arrays["scores"] for reply in now.send(tasks)}
        return {client: found[client] for client in sorted(found)}

    def send_to(self, clients: Iterable[str], verb: str, now: Round, arrays: Arrays) -> None:
        """Sends the same arrays to the named clients of the cohort."""
        named = [c for c in now.cohort if c.id in clients]
        for _ in now.send(Task(verb, c.id, models=newborn(c), arrays=arrays) for c in named):
            pass

    def train_server(self, model: Model, now: Round, arrays: Arrays, returns: Shapes | None = None) -> Reply | None:
        """Trains the server's own model. None: training failed or diverged; the ledger says how."""
        expects = Expected({"model": now.zoo.shapes(model.spec)}, returns or {})
        (*replies,) = now.send([Task("learn", SERVER, models={"model": model}, arrays=arrays, expects=expects)])
        return replies[0] if replies else None

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """Keeps the model, and uploads its logits of the public rows."""
        reply = super().report(task, device, fit)
        return replace(reply, arrays={"scores": self.upload(fit.net, task, device)})

    def upload(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        """What a client uploads for the task's rows: its logits."""
        return device.predict(net, task_rows(task, device))

    def distil_request(
        self, task: Task, device: Device, examples: Examples, epochs: int | None, loss: Loss
    ) -> FitRequest:
        """A fit of the device's model to these examples, for this many epochs, with the settings of [local]."""
        epochs = self.local.epochs if epochs is None else epochs
        return FitRequest(self.start(task, device), examples, replace(self.local, epochs=epochs, steps=None), loss)

    def keep(self, task: Task, device: Device, fit: Fit) -> Reply:
        """Keeps the model in the client's memory; the reply has only plain numbers."""
        device.memory["model"] = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply(metrics=fit_metrics(fit))

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        need_public(self, zoo)


@dataclass(frozen=True)
class PublicLogitsWithServer(PublicLogits):
    """The server has a model too, the full network; clients keep their own."""

    facts = Facts(networks="any", public="inputs", memory=True, larger=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return ServerModelState(zoo.fresh(zoo.full, rng))

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:  # type: ignore[override]
        """The server's own model for the server; none for clients, who have their own."""
        own: Model = state.model
        return own if client.id == SERVER else None


def newborn(client: Client) -> dict[str, Model]:
    """The network of a client's tier, without weights: the client has its own."""
    return {"model": Newborn(client.tier.spec)}


def task_rows(task: Task, device: Device) -> Examples:
    """The public rows that a task uses."""
    rows, public = task.arrays.get("rows"), device.public
    return public if rows is None else public.pick(rows.to(next(iter(public.columns.values())).device))


def logits_shapes(rows: int, zoo: Zoo) -> Shapes:
    """The name, shape and type of logits for this many rows."""
    return {"scores": ((rows, classes(zoo.full)), torch.float32)}


def need_public(method: Any, zoo: Zoo) -> None:
    """Refuses a federation without a public set."""
    if not zoo.public:
        raise SettingsError(
            f"{display_name(method)} learns from logits of public rows, and there are none; "
            "set data.public to some, such as 100."
        )


def refuse_below(method: Any, **least: float) -> None:
    """Refuses settings below these values; None is allowed."""
    for name, low in least.items():
        if (value := getattr(method, name)) is not None and value < low:
            raise ValueError(f"method.{name} = {value} is below {low}")
