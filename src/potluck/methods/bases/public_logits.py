"""What FedMD, DS-FL and FedGEMS share: models stay with the clients, and only logits of public rows cross the wire."""

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
    """The server's state: a model of its own, which only outputs have taught."""

    model: Model


@dataclass(frozen=True)
class PublicLogits(LocalOnly):
    """Clients keep their models, of any architecture, and upload what these predict for public rows."""

    rows: int | None = None
    """Public rows that a round is about, drawn anew each time; None: all of them."""

    facts = Facts(networks="any", public="inputs", memory=True)

    def __post_init__(self) -> None:
        refuse_below(self, rows=1)

    def draw_rows(self, now: Round) -> Arrays:
        """Which public rows this round is about; nothing: all of them."""
        if self.rows is None or self.rows >= now.zoo.public:
            return {}
        return {"rows": torch.randperm(now.zoo.public, generator=now.rng("rows"))[: self.rows]}

    def collect_logits(self, verb: str, now: Round, rows: Arrays) -> dict[str, Tensor]:
        """What each client that answers predicts for these rows, in the order of their names."""
        count = len(rows["rows"]) if "rows" in rows else now.zoo.public
        expects = Expected(arrays=logits_shapes(count, now.zoo))
        tasks = (Task(verb, c.id, models=newborn(c), arrays=rows, expects=expects) for c in now.cohort)
        found = {reply.task.to: reply.arrays["scores"] for reply in now.send(tasks)}
        return {client: found[client] for client in sorted(found)}

    def send_to(self, clients: Iterable[str], verb: str, now: Round, arrays: Arrays) -> None:
        """Sends the same to those of the cohort who are named."""
        named = [c for c in now.cohort if c.id in clients]
        for _ in now.send(Task(verb, c.id, models=newborn(c), arrays=arrays) for c in named):
            pass

    def train_server(self, model: Model, now: Round, arrays: Arrays, returns: Shapes | None = None) -> Reply | None:
        """Trains the server's own model; None: that failed or diverged, and the ledger says how."""
        expects = Expected({"model": now.zoo.shapes(model.spec)}, returns or {})
        (*replies,) = now.send([Task("learn", SERVER, models={"model": model}, arrays=arrays, expects=expects)])
        return replies[0] if replies else None

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """Keeps the model, and uploads what it predicts for the public rows."""
        reply = super().report(task, device, fit)
        return replace(reply, arrays={"scores": self.upload(fit.net, task, device)})

    def upload(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        """What a client uploads about the task's rows: its logits."""
        return device.predict(net, task_rows(task, device))

    def distil_request(
        self, task: Task, device: Device, examples: Examples, epochs: int | None, loss: Loss
    ) -> FitRequest:
        """A fit of the device's model to these examples for so many epochs, trained as clients train."""
        epochs = self.local.epochs if epochs is None else epochs
        return FitRequest(self.start(task, device), examples, replace(self.local, epochs=epochs, steps=None), loss)

    def keep(self, task: Task, device: Device, fit: Fit) -> Reply:
        """Keeps the model in the client's memory; nothing goes back but plain numbers."""
        device.memory["model"] = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply(metrics=fit_metrics(fit))

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        need_public(self, zoo)


@dataclass(frozen=True)
class PublicLogitsWithServer(PublicLogits):
    """The server has a model too: the full network. Clients' models are theirs."""

    facts = Facts(networks="any", public="inputs", memory=True, larger=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return ServerModelState(zoo.fresh(zoo.full, rng))

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:  # type: ignore[override]
        """The server's own model to the server; a client's lives with the client."""
        own: Model = state.model
        return own if client.id == SERVER else None


def newborn(client: Client) -> dict[str, Model]:
    """The network of a client's tier, without numbers: the client has its own."""
    return {"model": Newborn(client.tier.spec)}


def task_rows(task: Task, device: Device) -> Examples:
    """The public rows that a task is about."""
    rows, public = task.arrays.get("rows"), device.public
    return public if rows is None else public.pick(rows.to(next(iter(public.columns.values())).device))


def logits_shapes(rows: int, zoo: Zoo) -> Shapes:
    """What logits of so many rows look like."""
    return {"scores": ((rows, classes(zoo.full)), torch.float32)}


def need_public(method: Any, zoo: Zoo) -> None:
    """Refuses a federation without a public set."""
    if not zoo.public:
        raise SettingsError(
            f"{display_name(method)} learns from what networks say about public rows, and there are none; "
            "set data.public to some, such as 100."
        )


def refuse_below(method: Any, **least: float) -> None:
    """Refuses settings that are too small; None is never."""
    for name, low in least.items():
        if (value := getattr(method, name)) is not None and value < low:
            raise ValueError(f"method.{name} = {value} is below {low}")
