"""What a worker knows of a simulation, and the envelopes and results that pass between server and worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from potluck.core import EMPTY, Examples, Problem, Reply, Task, Zoo
from potluck.learn import GaussianMechanism, Precision


class ClientData(Protocol):
    """What one device has of the data."""

    @property
    def train(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def labels(self) -> Sequence[int]: ...


class ClientDatasets(Protocol):
    """Who has which examples. The server's shard is the public set and the server's own splits."""

    @property
    def public(self) -> Examples: ...
    def shard(self, client: str) -> ClientData: ...


@dataclass(frozen=True, eq=False)
class SimulationContext:
    """All that a device needs besides its task: the method, the networks, the data, the problem, the seed."""

    method: Any
    zoo: Zoo
    datasets: ClientDatasets
    problem: Problem
    seed: int
    hardware: str = "cpu"
    """Where networks live, examples lie and models rest: torch's name of it."""
    stack: int = 0
    """How many clients train in one go where their networks are small, dense and alike; 0: each by itself."""
    precision: Precision = "fp32"
    """How exactly local training computes."""
    channels_last: bool = False
    """Whether kernels lie with their channels innermost."""
    streams: int = 10
    """How many clients a GPU trains side by side, where the engine does that."""
    mechanism: GaussianMechanism | None = None
    """The noise that a client's update gets before it leaves its device; None: it leaves as it is."""


@dataclass(frozen=True, eq=False)
class TaskEnvelope:
    """A task on its way to a device, with the memory the client starts from."""

    task: Task
    memory: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, eq=False)
class TaskResult:
    """What became of a task: a reply and the memory after it, or why there is none."""

    task: Task
    reply: Reply | None = None
    memory: Mapping[str, Any] | None = None
    """None: unchanged."""
    fault: str = ""
    """What a failed client's half raised, or a note that it had nothing to do."""
    skipped: bool = False
