"""The nouns of a round: who takes part, what is asked, what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from potluck.core.model import Arrays, Depth, Model, Spec, size
from potluck.core.plain import EMPTY, Plain
from potluck.core.streams import stream

if TYPE_CHECKING:
    from potluck.core.device import Zoo

SERVER = "server"
"""The device whose data is the public set."""

Shapes: TypeAlias = Mapping[str, "tuple[tuple[int, ...], torch.dtype]"]
"""Shape and dtype of tensors, by name."""


@dataclass(frozen=True)
class Tier:
    """A kind of device: how many there are, and what they can carry."""

    name: str
    share: float = 1.0
    width: float | Mapping[str, float] | None = None
    depth: Depth = None
    spec: Spec = field(default_factory=lambda: Spec("none"))
    """The network this tier can train, with width and depth applied."""
    profile: str = "laptop"


@dataclass(frozen=True)
class Client:
    """Who takes part."""

    id: str
    tier: Tier


@dataclass(frozen=True)
class Work:
    """What one training step on a batch asks of a device."""

    flops: int
    """Forward and backward, whole batch."""
    parameter_bytes: int
    activation_bytes: int
    """Kept for the backward pass, whole batch."""
    parameters: int


@dataclass(frozen=True)
class Cost:
    """What a task took. Bytes, FLOPs and memory are counted; seconds are measured where it ran."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: int = 0
    memory: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Expected:
    """What a reply must hold: names, shapes and dtypes, for each model and for the loose arrays."""

    models: Mapping[str, Shapes] = EMPTY
    arrays: Shapes = EMPTY


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
    """What the reply must hold; by default plain values alone. It stays on the server, for the gate."""

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
    """Bytes of tensors that a message carries."""
    return size(message.arrays) + sum(model.nbytes for model in message.models.values())


Weight: TypeAlias = "float | Mapping[str, float | Tensor]"
"""How much a contribution counts: one number, or per tensor a number or a tensor that broadcasts (row masks).
With a mapping, tensors that it does not name count with the number under the empty name, or not at all."""


class Selection(Protocol):
    """What a client holds of the whole: how to cut it out, and where it belongs."""

    def take(self, whole: Arrays) -> Arrays: ...


class Mean(Protocol):
    """Somewhere to fold replies into."""

    def add(self, arrays: Arrays, held: Selection, weight: Weight = 1.0, position: int | None = None) -> None: ...
    def coverage(self) -> float: ...


Send: TypeAlias = Callable[[Iterable[Task]], Iterator[Reply]]


class Fold(Protocol):
    """Send tasks and add each reply's ``model`` to a mean; replies come back without the folded arrays."""

    def __call__(
        self, tasks: Iterable[Task], mean: Mean, held: Mapping[str, Selection], weigh: Callable[[Reply], Weight]
    ) -> Sequence[Reply]: ...


@dataclass(frozen=True)
class Round:
    """What a method sees of the world in one round."""

    index: int
    cohort: Sequence[Client]
    population: int
    zoo: Zoo
    seed: int
    send: Send
    fold: Fold
    recruit: Callable[[Callable[[Client], bool]], Sequence[Client]]
    """A cohort of the usual size drawn only among clients that satisfy a condition."""

    def rng(self, *key: str) -> torch.Generator:
        """The server's stream for this purpose in this round."""
        return stream(self.seed, "method", self.index, *key)
