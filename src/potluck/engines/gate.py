"""The gate checks every reply: it must have the expected shapes, be finite, and stay within bounds.

A reply that fails is refused with a reason, never corrected, and its client counts as absent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.core import Arrays, Expected, FlatArrays, Model, Newborn, Reply, Shapes, Task, describe, shorten

_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Gate:
    """The limits that the gate checks, under [gate]."""

    bound: float | None = None
    """The largest accepted norm of a step (new minus sent, over all tensors of a model); None: any finite norm."""
    heaviest: float = 1e9
    """The largest weight a reply may claim."""
    strikes: int = 3
    """After this many refused replies a client is not asked again; 0: no limit."""

    def __post_init__(self) -> None:
        for name in ("bound", "heaviest"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"gate.{name} = {value} must be above 0")
        if self.strikes < 0:
            raise ValueError(f"gate.strikes = {self.strikes} is below 0")

    def refusal(self, task: Task, reply: Reply) -> str | None:
        """The reason why this reply is refused, or None. It never raises, whatever the reply holds."""
        try:
            found = next(self._faults(task, reply, task.expects), None)
        except Exception as fault:
            found = f"it cannot be judged: {describe(fault)}"
        return None if found is None else shorten(found)

    def _faults(self, task: Task, reply: Reply, expected: Expected) -> Iterator[str]:
        yield from self._wrong_weight(reply.weight)
        if not isinstance(reply.metrics, Mapping):
            yield f"metrics is a {type(reply.metrics).__name__}, not a mapping"
        if expected.metrics is not None and (odd_metrics := expected.metrics(reply.metrics)):
            yield odd_metrics
        if odd := sorted(reply.models.keys() ^ expected.models.keys()):
            yield f"models {odd} were not expected or are missing"
        for key, shapes in expected.models.items():
            model, sent = reply.models[key], task.models.get(key)
            if not isinstance(model, Model):
                yield f"model '{key}' is a {type(model).__name__}"
            if sent is not None and model.spec is not sent.spec and model.spec != sent.spec:
                yield f"model '{key}' is a {model.spec.family} of another shape than was sent"
            yield from _wrong_shapes(model.arrays, shapes)
            yield from _not_finite(model.arrays)
            if self.bound is not None and sent is not None and not isinstance(sent, Newborn):
                yield from self._too_long(model.arrays, sent.arrays)
        if reply.arrays or expected.arrays:
            yield from _wrong_shapes(reply.arrays, expected.arrays)
            yield from _not_finite(reply.arrays)

    def _wrong_weight(self, weight: object) -> Iterator[str]:
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not -_FLOAT <= weight <= _FLOAT:  # type: ignore[operator]
            yield f"weight {_brief(weight)} is not a finite number"
        if not 0 < weight <= self.heaviest:  # type: ignore[operator]
            yield f"weight {weight:g} is not in (0, {self.heaviest:g}]"

    def _too_long(self, new: Arrays, old: Arrays) -> Iterator[str]:
        assert self.bound is not None
        squares = sum(
            float((tensor.double() - old[name].double()).square().sum())
            for name, tensor in new.items()
            if tensor.is_floating_point()
        )
        if not math.sqrt(squares) <= self.bound:
            yield f"a step of length {math.sqrt(squares):.4g}; gate.bound is {self.bound:g}"


def _wrong_shapes(arrays: Arrays, shapes: Shapes) -> Iterator[str]:
    if isinstance(arrays, FlatArrays) and not arrays.others and arrays.layout.shapes == shapes:
        return
    if arrays.keys() != shapes.keys():
        missing, extra = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
        yield f"{len(missing)} names are missing, {len(extra)} are too many: {_few(missing | extra)}"
    for name, (shape, dtype) in shapes.items():
        tensor = arrays[name]
        if not isinstance(tensor, Tensor):
            yield f"'{name}' is a {type(tensor).__name__}, not a tensor"
        if tensor.shape != shape:
            yield f"'{name}' of shape {tuple(tensor.shape)}; its part holds {tuple(shape)}"
        if tensor.dtype != dtype:
            yield f"'{name}' of {_short(tensor.dtype)}; its part holds {_short(dtype)}"


def _not_finite(arrays: Arrays) -> Iterator[str]:
    """Names a tensor that holds NaN or infinity."""
    loose = arrays.others if isinstance(arrays, FlatArrays) else arrays
    floats = [tensor for tensor in loose.values() if tensor.is_floating_point()]
    floats += [arrays.buffer] if isinstance(arrays, FlatArrays) else []
    # Norms are fast to check. A norm that is not finite can also be an overflow, so then look at every entry.
    lengths = torch._foreach_norm(floats) if floats else ()
    if not lengths or bool(torch.isfinite(lengths[0] if len(lengths) == 1 else torch.stack(lengths).sum())):
        return
    for name, tensor in arrays.items():
        if not bool(torch.isfinite(tensor).all()):
            yield f"'{name}' is not finite"


def _few(names: set[str]) -> str:
    return ", ".join(name[:60] for name in sorted(names)[:3]) + (", …" if len(names) > 3 else "")


def _brief(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):  # too large to be a float, perhaps too large to print
        return f"of {value.bit_length()} bits"
    return text if len(text := repr(value)) <= 60 else f"{text[:60]}…"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def strikes_out(gate: Gate, strikes: Mapping[str, int], client: str) -> bool:
    """Whether this client's replies were refused too often to ask it again."""
    return bool(gate.strikes) and strikes.get(client, 0) >= gate.strikes
