"""What the two halves of a method see: the zoo of networks, and the device a client's half runs on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from potluck.core.axis import Dimensions
from potluck.core.examples import Batch, Examples
from potluck.core.local import Local
from potluck.core.model import Arrays, Depth, Model, Spec
from potluck.core.round import Reply, Tier, Work

T = TypeVar("T")

Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""A value with a ``__call__``: (net, batch) -> the scalar to descend. A frozen dataclass, never a closure."""

Grads: TypeAlias = Mapping[str, Tensor]
Edit: TypeAlias = Callable[[Grads, Mapping[str, Tensor]], Grads]
"""A correction inside the local loop, a value too: (gradients, live weights), both by name -> gradients."""

Memory: TypeAlias = MutableMapping[str, Any]
"""What a client remembers between rounds: Model, Arrays, tensors, plain values or mappings of these."""


@dataclass(frozen=True, eq=False)
class FitRequest:
    """What a client wants trained. A verb yields it, and the engine decides how to run it."""

    model: Model | nn.Module
    """The model to start from, or a network that the device built before: that one is trained in place."""
    examples: Examples
    local: Local
    loss: Loss | None = None
    """None: the problem's own."""
    edits: Sequence[Edit] = ()
    want_gradient: bool = False
    """Whether the result tells the mean raw gradient."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of local training."""

    net: nn.Module
    """The network that was trained."""
    steps: int
    samples: int
    """Rows seen, counted with repetition."""
    lr: float
    loss: float
    """Mean training loss over the steps; NaN when there was no step."""
    last: Tensor
    """Rows of the last batch."""
    gradient: Arrays | None = None
    """Mean raw gradient over the steps, if it was asked for."""


ClientWork: TypeAlias = "Generator[FitRequest, Fit, Reply]"
"""What a client does under a verb that trains: it yields requests, gets the results, and returns its reply."""


class Zoo(Protocol):
    """The networks of a federation: how to build, cut and price them."""

    @property
    def full(self) -> Spec:
        """The server's network: as large as the largest tier's, or larger."""

    @property
    def tiers(self) -> Sequence[Tier]:
        """Every tier, smallest network first."""

    @property
    def public(self) -> int:
        """Rows of the public set that these networks can be asked about; 0: there is none."""

    def __hash__(self) -> int: ...
    def build(self, model: Model, rng: torch.Generator | None = None) -> nn.Module: ...
    def fresh(self, spec: Spec, rng: torch.Generator) -> Model: ...
    def probe(self, spec: Spec, batch: int) -> tuple[nn.Module, Tensor]: ...
    def axes(self, spec: Spec) -> Mapping[str, Dimensions]: ...
    def shapes(self, spec: Spec) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]: ...
    def buffers(self, spec: Spec) -> frozenset[str]: ...
    def narrow(self, spec: Spec, width: float | Mapping[str, float]) -> Spec: ...
    def shallow(self, spec: Spec, depth: Depth) -> Spec: ...
    def scaled(self, spec: Spec, ratio: float) -> Spec: ...
    def counting(self, spec: Spec) -> Spec: ...
    def block(self, spec: Spec, name: str) -> int | None: ...
    def cost(self, spec: Spec, batch: int) -> Work: ...


class Problem(Protocol):
    """What is learned: the loss to descend and the tally to keep."""

    @property
    def loss(self) -> Loss: ...

    @property
    def metric(self) -> str:
        """The name of the score that counts."""

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Counts on these examples that add up over examples and devices; only `owned` classes, if given, compete."""

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Scores made of many tallies."""


class Device(Protocol):
    """What a client's half sees of the world."""

    @property
    def client(self) -> str: ...
    @property
    def round(self) -> int: ...
    @property
    def data(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def public(self) -> Examples: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def zoo(self) -> Zoo: ...
    @property
    def problem(self) -> Problem: ...

    @property
    def labels(self) -> Sequence[int]:
        """Classes this client owns."""

    @property
    def rng(self) -> torch.Generator:
        """This task's own stream."""

    def build(self, model: Model) -> nn.Module:
        """A live network with these numbers; on a device, the same network object serves task after task."""

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made here under this key before, or is made now. No result may depend on it."""

    def snapshot(self, net: nn.Module) -> Arrays:
        """A copy of a live network's tensors, to put into a reply or into memory."""

    def gather_statistics(self, net: nn.Module, examples: Examples, batch: int) -> int:
        """Passes over examples in training mode without learning, for batch norm; the number of batches."""

    def predict(self, net: nn.Module, examples: Examples) -> Tensor:
        """A network's logits for every row, as in evaluation."""

    def charge(self, flops: int, memory: int) -> None:
        """Counts work that a verb does in a loop of its own; fits, statistics and predictions are counted anyway."""
