"""A method: its settings, its server side, and the functions that run on clients."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from potluck.core.device import ClientWork, Device, Zoo
from potluck.core.facts import Facts
from potluck.core.model import Model
from potluck.core.plain import to_plain
from potluck.core.round import Client, Reply, Round, Task

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., "Reply | ClientWork"])


class Method(Protocol[S]):
    """A frozen dataclass of settings with these functions. What changes is in the state and in client memories.

    The state is a frozen dataclass whose fields are Model, Arrays, plain values or mappings of these.
    """

    @property
    def facts(self) -> Facts:
        """What the method needs from a federation and what it allows."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> S:
        """The state before the first round."""

    def round(self, state: S, now: Round) -> S:
        """The state after a round."""

    def ready(self, state: S, now: Round) -> S:
        """The state to score. It may need tasks of its own; it is scored and then discarded."""

    def serve(self, state: S, client: Client, zoo: Zoo) -> Model | None:
        """The model that this client would use now, or the server's part of it. None: only the client has it."""

    def can_train(self, client: Client, zoo: Zoo) -> bool:
        """Whether this client can train the model that it is served. If not, it only uses it."""

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """The served model, completed with the client's memory. None: the client has no model."""

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that the method cannot train."""


def display_name(method: object) -> str:
    """A method's name for people: its class attribute `called`, or else the name of its class."""
    kind = type(method)
    return str(vars(kind).get("called", kind.__name__))


def on_client(verb: F) -> F:
    """Marks a function of a method as a client verb: the server may ask a client to run it.

    It returns a `Reply`. A verb that trains is a generator: it yields a `FitRequest` and receives a `Fit` for each.
    """
    verb.on_client = True  # type: ignore[attr-defined]
    return verb


def answer(method: object, task: Task, device: Device) -> Reply | ClientWork:
    """Runs the verb of a task; refuses a function that is not marked with `on_client`."""
    verb = getattr(method, task.verb, None)
    if verb is None or not getattr(verb, "on_client", False):
        raise PermissionError(f"{type(method).__name__} has no client verb '{task.verb}'")
    work = verb(task, device)
    if not isinstance(work, Reply | Generator):
        raise TypeError(f"{type(method).__name__}.{task.verb} returned {type(work).__name__}, not a Reply")
    return work


def trains(method: object, verb: str) -> bool:
    """Whether this verb trains, that is, yields fit requests."""
    return inspect.isgeneratorfunction(getattr(method, verb, None))


def settings(method: Any) -> dict[str, Any]:
    """A method's settings as plain values, which survive JSON unchanged."""
    plain: dict[str, Any] = to_plain(dataclasses.asdict(method))
    return plain
