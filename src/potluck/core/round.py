"""The data types of a round: clients, tasks, replies and their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from potluck.core.model import Arrays, Depth, Model, Spec, size
from potluck.core.plain import EMPTY, Plain, freeze
from potluck.core.streams import stream

if TYPE_CHECKING:
    from potluck.core.device import Zoo

SERVER = "server"
"""The id of the server as a device; its training data is the public data set."""

Shapes: TypeAlias = Mapping[str, "tuple[tuple[int, ...], torch.dtype]"]
"""Shape and dtype of tensors, by name."""


@dataclass(frozen=True)
class Tier:
    """A kind of device: its share of the clients, and the network it can train."""

    name: str
    share: float = 1.0
    width: float | Mapping[str, float] | None = None
    depth: Depth = None
    spec: Spec = field(default_factory=lambda: Spec("none"))
    """The network this tier can train, with width and depth applied."""
    profile: str = "laptop"
    server_lr: float | None = None
    """The learning rate of the server's rule for this tier's network; None: the rule's own."""
    absent: bool = False
    """Whether its clients never take part."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", freeze(self.width))


@dataclass(frozen=True)
class Client:
    """A participant of the federation."""

    id: str
    tier: Tier


@dataclass(frozen=True)
class Work:
    """The work of one training step on one batch."""

    flops: int
    """Forward and backward pass, for the whole batch."""
    forward_flops: int
    """The forward pass alone. It is more than a third: the first layer needs no gradient of its input."""
    parameter_bytes: int
    activation_bytes: int
    """Activations kept for the backward pass, for the whole batch."""
    parameters: int


@dataclass(frozen=True)
class Cost:
    """The cost of a task. Bytes, FLOPs and memory are computed; seconds are measured where it ran."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: int = 0
    memory: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Expected:
    """What a reply must contain: names, shapes and dtypes, for each model and for the other arrays; and metrics."""

    models: Mapping[str, Shapes] = EMPTY
    arrays: Shapes = EMPTY
    metrics: Callable[[Mapping[str, Plain]], str | None] | None = None
    """Why these metrics cannot be used, or None. For methods whose server reads metrics; by default, any are fine. A
    `partial` of a function of the method, with plain arguments by name, can also be checked where the reply is made."""


@dataclass(frozen=True, eq=False)
class Task:
    """One request to one device. (round, verb, to, key) is unique."""

    verb: str
    to: str
    key: str = ""
    round: int = 0
    models: Mapping[str, Model] = EMPTY
    arrays: Arrays = EMPTY
    config: Mapping[str, Plain] = EMPTY
    memory: int = -1
    """The version of the client's memory to start from; -1: none yet."""
    expects: Expected = Expected()
    """What the reply must contain; by default only plain values. It stays on the server: the gate uses it."""

    @property
    def address(self) -> tuple[int, str, str, str]:
        return (self.round, self.verb, self.to, self.key)


@dataclass(frozen=True, eq=False)
class Reply:
    """What a device answers. The engine fills in `task` (without its tensors) and `cost`."""

    models: Mapping[str, Model] = EMPTY
    arrays: Arrays = EMPTY
    weight: float = 1.0
    metrics: Mapping[str, Plain] = EMPTY
    task: Task = Task("", "")
    cost: Cost = Cost()


def payload(message: Task | Reply) -> int:
    """Bytes of the tensors in a message."""
    return size(message.arrays) + sum(model.nbytes for model in message.models.values())


Weight: TypeAlias = "float | Mapping[str, float | Tensor]"
"""The weight of a contribution to a mean: one number, or for each tensor a number or a tensor that broadcasts (row
masks). In a mapping, the empty name gives the weight of tensors that are not named; without it they do not count."""


class Selection(Protocol):
    """The part of the whole model that a client holds."""

    def take(self, whole: Arrays) -> Arrays: ...


class Mean(Protocol):
    """A weighted mean that replies are added to."""

    def add(self, arrays: Arrays, held: Selection, weight: Weight = 1.0, position: int | None = None) -> None: ...
    def coverage(self) -> float: ...


Send: TypeAlias = Callable[[Iterable[Task]], Iterator[Reply]]


class Fold(Protocol):
    """Sends tasks and adds each reply's ``model`` to a mean; the returned replies no longer hold its arrays.

    Without `weigh`, the method's own ``weigh(reply, zoo)`` gives the weights. An engine may then add replies up where
    they are made, and the server never holds each of them.
    """

    def __call__(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]: ...


def _unlisted() -> Iterator[Client]:
    raise RuntimeError("this round cannot list its population; make it with Round(..., everyone=...)")


@dataclass(frozen=True)
class Round:
    """What the server side of a method sees in one round."""

    index: int
    cohort: Sequence[Client]
    population: int
    zoo: Zoo
    seed: int
    send: Send
    fold: Fold
    recruit: Callable[[Callable[[Client], bool]], Sequence[Client]]
    """Draws a cohort of the usual size from the clients that satisfy a condition."""
    everyone: Callable[[], Iterator[Client]] = _unlisted
    """Lists every client that is available in this round, one by one: a population may be too large to keep."""

    def rng(self, *key: str) -> torch.Generator:
        """The server's random generator for this purpose in this round."""
        return stream(self.seed, "method", self.index, *key)
