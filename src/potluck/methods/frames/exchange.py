"""What methods share whose models stay on the clients: scores of public rows cross the wire, weights do not."""

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
    Loss,
    Model,
    Reply,
    Round,
    SettingsError,
    Shapes,
    Task,
    Zoo,
    display_name,
)
from potluck.learn import told
from potluck.methods.frames.averaging import classes
from potluck.methods.local import Local


@dataclass(frozen=True)
class Taught:
    """What the server keeps: a model of its own, which only outputs have taught."""

    model: Model


@dataclass(frozen=True)
class Exchange(Local):
    """Clients keep their models, of any architecture, and tell what these say about public rows."""

    rows: int | None = None
    """Public rows that a round is about, drawn anew each time; None: all of them."""

    facts = Facts(networks="any", public="inputs", memory=True)

    def __post_init__(self) -> None:
        refuse_below(self, rows=1)

    def about(self, now: Round) -> Arrays:
        """Which public rows this round is about; nothing: all of them."""
        if self.rows is None or self.rows >= now.zoo.public:
            return {}
        return {"rows": torch.randperm(now.zoo.public, generator=now.rng("rows"))[: self.rows]}

    def heard(self, verb: str, now: Round, about: Arrays) -> dict[str, Tensor]:
        """What each client that answers says about these rows, in the order of their names."""
        tasks = (Task(verb, c.id, models={"model": Model(c.tier.spec)}, arrays=about) for c in now.cohort)
        found = {reply.task.to: reply.arrays["scores"] for reply in now.send(tasks)}
        return {client: found[client] for client in sorted(found)}

    def tell(self, verb: str, now: Round, clients: Iterable[str], arrays: Arrays) -> None:
        """Sends the same to those of the cohort who are named."""
        named = [c for c in now.cohort if c.id in clients]
        for _ in now.send(Task(verb, c.id, models={"model": Model(c.tier.spec)}, arrays=arrays) for c in named):
            pass

    def ask_server(self, model: Model, now: Round, arrays: Arrays) -> Reply | None:
        """Has a model of the server's learn from this; None: it failed or diverged, and the ledger says how."""
        (*replies,) = now.send([Task("learn", SERVER, models={"model": model}, arrays=arrays)])
        return replies[0] if replies else None

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        """Keeps the model, and says what it makes of the public rows."""
        reply = super().report(task, device, net, fit)
        return replace(reply, arrays={"scores": self.says(net, task, device)})

    def says(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        """What a client uploads about the task's rows: its scores, before softmax."""
        return device.predict(net, spoken_of(task, device))

    def study(
        self, task: Task, device: Device, examples: Examples, epochs: int | None, loss: Loss
    ) -> tuple[nn.Module, Fit]:
        """The device's network after so many epochs on these examples, trained as clients train."""
        net, epochs = device.build(self.start(task, device)), self.local.epochs if epochs is None else epochs
        return net, device.fit(net, examples, replace(self.local, epochs=epochs, steps=None), loss)

    def kept(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        """Keeps the model in the client's memory; nothing goes back but plain numbers."""
        device.memory["model"] = Model(task.models["model"].spec, device.rest(net))
        return Reply(metrics=told(fit))

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb in ("train", "answer"):
            rows = len(task.arrays["rows"]) if "rows" in task.arrays else zoo.public
            return Expected(arrays=scored_rows(rows, zoo))
        if task.to == SERVER:
            return Expected({"model": zoo.shapes(task.models["model"].spec)})
        return Expected()

    def check(self, zoo: Zoo) -> None:
        need_public(self, zoo)


@dataclass(frozen=True)
class ServerTaught(Exchange):
    """An exchange in which the server has a model too: the full network. Clients' models are theirs."""

    facts = Facts(networks="any", public="inputs", memory=True, larger=True)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return Taught(zoo.fresh(zoo.full, rng))

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:  # type: ignore[override]
        """The server's own model to the server; a client's lives with the client."""
        own: Model = state.model
        return own if client.id == SERVER else None


def spoken_of(task: Task, device: Device) -> Examples:
    """The public rows that a task is about."""
    rows, public = task.arrays.get("rows"), device.public
    return public if rows is None else public.pick(rows.to(next(iter(public.columns.values())).device))


def scored_rows(rows: int, zoo: Zoo) -> Shapes:
    """What scores of so many rows look like."""
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
