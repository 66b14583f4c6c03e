"""Measured profiles: seconds and memory of training steps on a machine, and what follows for steps not measured there.

The seconds of a step are a sum of parts, each in proportion to something that is counted without running it: a
constant, the network's tensors (every operation has its overhead), FLOPs, FLOPs with units rounded up to full vector
registers (processors compute such blocks whole), and bytes of weights and activations. `potluck measure` measures some
widths and depths; the factors follow by least squares of relative errors, none below 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from potluck.core import Depth
from potluck.fleet.profiles import MBIT, Basis, Profile, profile

ENOUGH = 4
"""The fewest measured sizes of a network to which a fit is made."""


@dataclass(frozen=True)
class StepSize:
    """The size of a training step: what its seconds and its memory are explained by."""

    layers: int
    """Tensors of the network."""
    flops: int
    aligned_flops: int
    """FLOPs of the network with every axis group rounded up to a multiple of the machine's block."""
    parameter_bytes: int
    activation_bytes: int

    def bytes(self, slots: int) -> int:
        """The memory that is modelled for it; `slots` numbers per parameter are the optimiser's."""
        return (2 + slots) * self.parameter_bytes + self.activation_bytes


@dataclass(frozen=True)
class MeasuredStep:
    """A training step that was measured, under [[step]]."""

    network: str
    """A checksum of the network without its width and depth."""
    batch: int
    seconds: float
    """Of one step."""
    memory: int
    """Bytes at the peak; 0: they could not be measured."""
    layers: int
    flops: int
    aligned_flops: int
    parameter_bytes: int
    activation_bytes: int
    width: float = 1.0
    depth: Depth = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 1e6:
            raise ValueError(f"step.seconds = {self.seconds} must be above 0 and at most 1e6")
        for name in ("batch", "layers", "flops", "aligned_flops", "parameter_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"step.{name} = {getattr(self, name)} is below 1")
        for name in ("memory", "activation_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"step.{name} = {getattr(self, name)} is below 0")

    @property
    def size(self) -> StepSize:
        return StepSize(self.layers, self.flops, self.aligned_flops, self.parameter_bytes, self.activation_bytes)


@dataclass(frozen=True)
class MeasuredProfile:
    """What `potluck measure` found on a machine, and the file that it writes."""

    machine: str
    """The processor."""
    made: str
    """When it was measured."""
    torch: str
    """The version of PyTorch."""
    model: str
    """The name of the network, for people."""
    threads: int
    """Threads of the training."""
    slots: int
    """Numbers that the optimiser kept per parameter."""
    block: int
    """The units that the processor computes at once, as the measurements show; 1: that plays no part."""
    memory: int
    """Bytes of the machine."""
    step: tuple[MeasuredStep, ...]
    """The steps that were measured."""
    like: str = "laptop"
    """The built-in profile whose watts it has, and whose link if there is none here."""
    down: float | None = None
    """Mbit/s."""
    up: float | None = None
    """Mbit/s."""

    def __post_init__(self) -> None:
        for name, low in (("threads", 1), ("slots", 0), ("block", 1), ("memory", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} = {getattr(self, name)} is below {low}")
        for name in ("down", "up"):
            if (value := getattr(self, name)) is not None and not 0 < value <= 1e9:
                raise ValueError(f"{name} = {value} must be above 0 and at most 1e9 Mbit/s")
        if not 1 <= len(self.step) <= 10_000:
            raise ValueError("there must be from 1 to 10000 [[step]]; `potluck measure` writes them")

    @cached_property
    def rate(self) -> float:
        """FLOP/s over all measured steps, for networks that were not measured."""
        return sum(step.flops for step in self.step) / sum(step.seconds for step in self.step)

    def seconds(self, network: str, size: StepSize) -> tuple[float, Basis]:
        """The seconds of a step of this size of this network, and what they rest on."""
        same = [step for step in self.step if step.network == network]
        if exact := [step.seconds for step in same if step.size == size]:
            return min(exact), "measured"
        if len({step.size for step in same}) < ENOUGH:
            return size.flops / self.rate, "other network"
        found = _fit([_seconds_terms(step.size) for step in same], [step.seconds for step in same])
        return float(found @ _seconds_terms(size)), "fitted"

    def peak(self, network: str, size: StepSize) -> float:
        """Bytes at the peak of such a step, as a multiple of the modelled ones."""
        known = [step for step in self.step if step.memory]
        same = [step for step in known if step.network == network]
        if exact := [step.memory for step in same if step.size == size]:
            return max(exact) / size.bytes(self.slots)
        if len({step.size for step in same}) >= ENOUGH:
            terms = [self._memory_terms(step.size) for step in same]
            found = _fit(terms, [float(step.memory) for step in same])
            return float(found @ self._memory_terms(size)) / size.bytes(self.slots)
        modelled = sum(step.size.bytes(self.slots) for step in known)
        return sum(step.memory for step in known) / modelled if known else 1.0

    def _memory_terms(self, size: StepSize) -> NDArray[np.float64]:
        return np.array([1.0, (2 + self.slots) * size.parameter_bytes, size.activation_bytes], float)

    def at(self, name: str, network: str, size: StepSize) -> Profile:
        """This machine as a device that trains such steps: FLOP/s and memory are as they are for these."""
        seconds, basis = self.seconds(network, size)
        like = profile(self.like)
        return replace(
            like,
            name=name,
            memory=self.memory,
            flops=size.flops / seconds,
            down=self.down * MBIT if self.down else like.down,
            up=self.up * MBIT if self.up else like.up,
            source=f"measured: {self.machine}, {self.threads} threads, {self.made}; watts of '{self.like}', modelled",
            memory_factor=self.peak(network, size),
            basis=basis,
        )


def best_block(steps: Sequence[MeasuredStep], aligned: dict[int, list[int]]) -> int:
    """The block whose aligned FLOPs, one for each step, explain the measured seconds best when a step is left out."""
    misses = {block: _missed(_realigned(steps, flops)) for block, flops in aligned.items()}
    return min(misses, key=lambda block: (misses[block], block))


def _realigned(steps: Sequence[MeasuredStep], flops: Sequence[int]) -> list[MeasuredStep]:
    return [replace(step, aligned_flops=count) for step, count in zip(steps, flops, strict=True)]


def _missed(steps: Sequence[MeasuredStep]) -> float:
    """The mean relative error at each step, by a fit to the other steps of its network."""
    errors: list[float] = []
    for step in steps:
        others = [other for other in steps if other.network == step.network and other is not step]
        if len(others) >= ENOUGH:
            found = _fit([_seconds_terms(other.size) for other in others], [other.seconds for other in others])
            errors.append(abs(float(found @ _seconds_terms(step.size)) / step.seconds - 1))
    return round(float(np.mean(errors)), 3) if errors else 0.0


def _seconds_terms(size: StepSize) -> NDArray[np.float64]:
    counted = (1, size.layers, size.flops, size.aligned_flops, size.parameter_bytes, size.activation_bytes)
    return np.array(counted, float)


def _fit(terms: Sequence[NDArray[np.float64]], values: Sequence[float]) -> NDArray[np.float64]:
    """The factors of the terms, none below 0, with the least squares of relative errors.

    Terms are few, so every choice of them is solved; the best one without a negative factor is the answer.
    """
    table = np.array(terms) / np.array(values, float)[:, None]
    largest = np.maximum(table.max(axis=0), 1e-300)
    table, best, least = table / largest, np.zeros(table.shape[1]), np.inf
    for count in range(1, table.shape[1] + 1):
        for chosen in map(list, combinations(range(table.shape[1]), count)):
            factors = np.linalg.lstsq(table[:, chosen], np.ones(len(table)), rcond=None)[0]
            missed = float(np.square(table[:, chosen] @ factors - 1).sum())
            if factors.min() >= 0 and missed < least - 1e-12:
                best, least = np.zeros(table.shape[1]), missed
                best[chosen] = factors
    found: NDArray[np.float64] = best / largest
    return found
