"""What a worker knows about a simulation, and what server and worker exchange: envelopes and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from potluck.core import EMPTY, Bytes, Examples, Expected, Problem, Reply, Shapes, Task, Zoo
from potluck.engines.gate import Gate
from potluck.engines.usual import Usual
from potluck.learn import GaussianMechanism, Precision
from potluck.parts import BLOCK, Mask, Part, Sums

if TYPE_CHECKING:
    from potluck.secure.client import SecureClient


class ClientData(Protocol):
    """The data of one client."""

    @property
    def train(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def labels(self) -> Sequence[int]: ...


class ClientDatasets(Protocol):
    """The examples of every client. The server's shard is the public data set and the server's own splits."""

    @property
    def public(self) -> Examples: ...
    def shard(self, client: str) -> ClientData: ...


@dataclass(frozen=True, eq=False)
class ClusterPlan:
    """What an engine needs to have the same simulation on other machines: which cluster, and how a worker makes it."""

    maker: str
    """The function that makes the simulation in a worker, as ``module:function``."""
    recipe: Mapping[str, Any]
    """What it is made of, apart from the data: plain values."""
    fingerprint: Mapping[str, str]
    """What must be equal everywhere: checksums of data and code, and versions; by what it is called in messages."""
    pack_data: Callable[[], Bytes] | None = None
    """Packs the data set as a message, if it is sent to the workers; None: they read it themselves."""
    address: str = ""
    """The cluster's address; empty: one is started on this machine."""
    cpus: float = 1.0
    gpus: float = 0.0
    """Cores and GPUs that are reserved for each worker."""


@dataclass(frozen=True, eq=False)
class SimulationContext:
    """Everything that a device needs besides its task: the method, the networks, the data, the problem, the seed."""

    method: Any
    zoo: Zoo
    datasets: ClientDatasets
    problem: Problem
    seed: int
    hardware: str = "cpu"
    """The torch device that holds networks, examples and models."""
    stack: int = 0
    """How many clients train stacked if their networks are small, dense and equal in shape; 0: each trains alone."""
    precision: Precision = "fp32"
    """The numerical precision of local training."""
    channels_last: bool = False
    """Whether convolution kernels use the channels-last memory format."""
    streams: int = 10
    """How many clients a GPU trains side by side, under the engine "graphs"."""
    mechanism: GaussianMechanism | None = None
    """Adds noise to a client's update before it leaves the device; None: no noise."""
    own_noise: bool = False
    """Whether the noise comes from the operating system, as at a real node: nobody who knows the seed may know it."""
    secure: SecureClient | None = None
    """Masks what leaves a client; None: nothing is masked."""
    deadline: float = 0.0
    """Seconds that a task may take in a worker process; 0: no limit."""
    cluster: ClusterPlan | None = None
    """For engines that run on several machines."""

    counts: Callable[[str], int] | None = None
    """The number of samples of a client, if its data is not here, as with real nodes."""

    def samples(self, client: str) -> int:
        """How many samples a client trains on."""
        return self.counts(client) if self.counts else len(self.datasets.shard(client).train)


@dataclass(frozen=True, eq=False)
class FoldRules:
    """What all replies of a fold have in common: how they are checked, and the whole that they are parts of."""

    gate: Gate
    usual: Usual
    """What was accepted in earlier rounds."""
    known: bool
    """Whether the gate knows the clients' numbers of samples."""
    whole: Shapes
    tasks: int
    """About how many tasks the fold has."""
    alike: bool = False
    """Whether all tasks hold the same part of the whole, so that they take about as long."""


@dataclass(frozen=True, eq=False)
class FoldTask:
    """A task's place in a fold: all that a worker needs to check the reply and to add it up with others."""

    rules: FoldRules
    position: int
    """The index of the task among all tasks of the fold."""
    held: Part | Mask | None
    """Its part of the whole; None: the reply must come to the server as it is."""
    expects: Expected

    @property
    def block(self) -> int:
        """The number of its block: so many tasks are added up first, then the sums of blocks."""
        return self.position // BLOCK


@dataclass(frozen=True, eq=False)
class TaskEnvelope:
    """A task on its way to a device, with the client's memory."""

    task: Task
    memory: Mapping[str, Any] = EMPTY
    attempt: int = 0
    """Which attempt at the round this is; each has its own noise under [privacy]."""
    needed: bool = False
    """Whether the run needs the result: the task is the server's own or scores a model. It stays on the server."""
    fold: FoldTask | None = None
    """If the reply may be added to others where it is made: how. Engines may ignore it."""


@dataclass(frozen=True, eq=False)
class TaskResult:
    """The result of a task: a reply and the client's new memory, or the reason why there is no reply."""

    task: Task
    reply: Reply | None = None
    memory: Mapping[str, Any] | None = None
    """None: unchanged."""
    fault: str = ""
    """The exception that the client side raised, or the reason why it skipped the task."""
    skipped: bool = False
    lost: bool = False
    """Whether the task was under way when its worker died or was given up."""
    refused: str = ""
    """Why the reply was refused where it was made: it had no form in which it can be sent, or the gate refused it."""
    block: Sums | None = None
    """The sum that already holds the reply's model, with those of the same block of tasks. So the reply has passed the
    gate, and its model has no arrays."""
    measures: Mapping[str, float] = EMPTY
    """Numbers of a reply that has passed the gate, as `Gate.measures` gives them."""
