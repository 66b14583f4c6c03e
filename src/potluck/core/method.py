"""A method: settings, a server's half, and functions that clients may be asked to run."""

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
    """A frozen dataclass of settings with these functions. What changes lives in the state and in client memories.

    State fields are Model, Arrays, plain values or mappings of these, in a frozen dataclass.
    """

    @property
    def facts(self) -> Facts:
        """What the method needs of a federation and what it allows."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> S:
        """The state before the first round."""

    def round(self, state: S, now: Round) -> S:
        """The state after a round."""

    def ready(self, state: S, now: Round) -> S:
        """The state to score: made with tasks of its own where needed, scored, then discarded."""

    def serve(self, state: S, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today, as far as the server has it; None: it lives with the client."""

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """What the server serves, completed by what the client remembers; None: the client has no model."""

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that the method cannot train."""


def display_name(method: object) -> str:
    """What people call a method: the `called` of its class where that has one, as for names that no class can have."""
    kind = type(method)
    return str(vars(kind).get("called", kind.__name__))


def on_client(verb: F) -> F:
    """Marks a method's function as one that a client may be asked to run.

    It returns a `Reply`. One that trains is a generator: it yields a `FitRequest` for each fit, and gets back a `Fit`.
    """
    verb.on_client = True  # type: ignore[attr-defined]
    return verb


def answer(method: object, task: Task, device: Device) -> Reply | ClientWork:
    """The client's whole program: look the verb up, refuse one that is not marked, call it."""
    verb = getattr(method, task.verb, None)
    if verb is None or not getattr(verb, "on_client", False):
        raise PermissionError(f"{type(method).__name__} has no client verb '{task.verb}'")
    work = verb(task, device)
    if not isinstance(work, Reply | Generator):
        raise TypeError(f"{type(method).__name__}.{task.verb} returned {type(work).__name__}, not a Reply")
    return work


def trains(method: object, verb: str) -> bool:
    """Whether a client that runs this verb may ask for fits."""
    return inspect.isgeneratorfunction(getattr(method, verb, None))


def settings(method: Any) -> dict[str, Any]:
    """A method's settings as plain values: JSON in, JSON out, equal again."""
    plain: dict[str, Any] = to_plain(dataclasses.asdict(method))
    return plain
