"""What the server side and the client side of a method see: the zoo of networks, and the client's device."""

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
"""A callable (net, batch) -> scalar loss. It must be a frozen dataclass with ``__call__``, not a closure."""

Grads: TypeAlias = Mapping[str, Tensor]
Edit: TypeAlias = Callable[[Grads, Mapping[str, Tensor]], Grads]
"""Corrects gradients in each local step: (gradients, live weights), both by name -> gradients. A frozen dataclass."""

Memory: TypeAlias = MutableMapping[str, Any]
"""What a client keeps between rounds: Model, Arrays, tensors, plain values or mappings of these."""


@dataclass(frozen=True, eq=False)
class FitRequest:
    """A request for local training. A verb yields it, and the engine decides how to run it."""

    model: Model | nn.Module
    """The model to start from, or a network that the device built before, which is then trained in place."""
    examples: Examples
    local: Local
    loss: Loss | None = None
    """None: the loss of the problem."""
    edits: Sequence[Edit] = ()
    want_gradient: bool = False
    """Whether the result contains the mean gradient before edits."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of local training."""

    net: nn.Module
    """The network that was trained."""
    steps: int
    samples: int
    """Training samples processed, with repetition."""
    lr: float
    loss: float
    """Mean training loss over the steps; NaN if there was no step."""
    last: Tensor
    """Row indices of the last batch."""
    gradient: Arrays | None = None
    """Mean gradient before edits, over all steps; None unless it was requested."""


ClientWork: TypeAlias = "Generator[FitRequest, Fit, Reply]"
"""A client's verb that trains: a generator that yields fit requests, receives the results, and returns its reply."""


class Zoo(Protocol):
    """The networks of a federation: builds them, cuts them, and computes their cost."""

    @property
    def full(self) -> Spec:
        """The server's network: as large as the largest tier's, or larger."""

    @property
    def tiers(self) -> Sequence[Tier]:
        """All tiers, smallest network first."""

    @property
    def public(self) -> int:
        """The number of rows in the public data set; 0: there is none."""

    def __hash__(self) -> int: ...
    def build(self, model: Model, rng: torch.Generator | None = None) -> nn.Module: ...
    def fresh(self, spec: Spec, rng: torch.Generator) -> Model: ...
    def probe(self, spec: Spec, batch: int) -> tuple[nn.Module, Tensor]: ...
    def axes(self, spec: Spec) -> Mapping[str, Dimensions]: ...
    def shapes(self, spec: Spec) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]: ...
    def buffers(self, spec: Spec) -> frozenset[str]: ...
    def class_rows(self, spec: Spec) -> tuple[str, ...]: ...
    def narrow(self, spec: Spec, width: float | Mapping[str, float]) -> Spec: ...
    def shallow(self, spec: Spec, depth: Depth) -> Spec: ...
    def scaled(self, spec: Spec, ratio: float | Mapping[str, float]) -> Spec: ...
    def counting(self, spec: Spec) -> Spec: ...
    def classifier(self, spec: Spec) -> str: ...
    def projected(self, spec: Spec, features: int) -> Spec: ...
    def block(self, spec: Spec, name: str) -> int | None: ...
    def cost(self, spec: Spec, batch: int) -> Work: ...


class Problem(Protocol):
    """The learning problem: its training loss, and how models are scored."""

    @property
    def loss(self) -> Loss: ...

    @property
    def metric(self) -> str:
        """The name of the main score."""

    def label_counts(self, examples: Examples) -> list[int]:
        """How many examples each class has; empty if an example has no single class."""

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Counts on these examples, which can be added over devices. With `owned`, other classes have logit 0."""

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The scores computed from several tallies."""


class Device(Protocol):
    """What the client side of a method sees: its data, its memory, and the networks it can build."""

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
    def common_test(self) -> Examples:
        """The server's test rows, in a simulation. For scores alone: no client may learn from them."""

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
        """The classes that occur in this client's data."""

    @property
    def rng(self) -> torch.Generator:
        """The random generator of this task."""

    def build(self, model: Model) -> nn.Module:
        """A live network with these weights. The device uses the same network object for task after task."""

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object cached under this key; `make` creates it the first time. No result may depend on the cache."""

    def snapshot(self, net: nn.Module) -> Arrays:
        """A copy of a live network's tensors, for a reply or for the memory."""

    def gather_statistics(self, net: nn.Module, examples: Examples, batch: int) -> int:
        """Gathers batch norm statistics in one pass in training mode, without gradients; returns its batches."""

    def predict(self, net: nn.Module, examples: Examples) -> Tensor:
        """A network's logits for every row, in evaluation mode."""

    def charge(self, flops: int, memory: int) -> None:
        """Adds the cost of a verb's own computation. Fits, statistics and predictions are counted without this."""
