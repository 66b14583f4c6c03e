"""A method: settings, a server's half, and functions that clients may be asked to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch

from potluck.core.device import Device, Zoo
from potluck.core.model import Model
from potluck.core.plain import EMPTY, to_plain
from potluck.core.round import Client, Reply, Round, Task

Shapes: TypeAlias = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Reply])


@dataclass(frozen=True)
class Expected:
    """What a reply must hold: names, shapes and dtypes, for each model and for the loose arrays."""

    models: Mapping[str, Shapes] = EMPTY
    arrays: Shapes = EMPTY


class Method(Protocol[S]):
    """A frozen dataclass of settings with these functions. What changes lives in the state and in client memories.

    State fields are Model, Arrays, plain values or mappings of these, in a frozen dataclass.
    """

    def init(self, zoo: Zoo, rng: torch.Generator) -> S: ...
    def round(self, state: S, now: Round) -> S: ...
    def ready(self, state: S, now: Round) -> S: ...
    def serve(self, state: S, client: Client, zoo: Zoo) -> Model | None: ...
    def expects(self, task: Task, zoo: Zoo) -> Expected: ...
    def check(self, zoo: Zoo) -> None: ...


def display_name(method: object) -> str:
    """What people call a method: the `called` of its class where that has one, as for names that no class can have."""
    kind = type(method)
    return str(vars(kind).get("called", kind.__name__))


def on_client(verb: F) -> F:
    """Marks a method's function as one that a client may be asked to run."""
    verb.on_client = True  # type: ignore[attr-defined]
    return verb


def answer(method: object, task: Task, device: Device) -> Reply:
    """The client's whole program: look the verb up, refuse one that is not marked, call it."""
    verb = getattr(method, task.verb, None)
    if verb is None or not getattr(verb, "on_client", False):
        raise PermissionError(f"{type(method).__name__} has no client verb '{task.verb}'")
    reply = verb(task, device)
    if not isinstance(reply, Reply):
        raise TypeError(f"{type(method).__name__}.{task.verb} returned {type(reply).__name__}, not a Reply")
    return reply


def settings(method: Any) -> dict[str, Any]:
    """A method's settings as plain values: JSON in, JSON out, equal again."""
    plain: dict[str, Any] = to_plain(dataclasses.asdict(method))
    return plain
