"""The gate checks every reply: it must have the expected shapes, be finite, and stay within bounds.

A reply that fails is refused with a reason, never corrected, and its client counts as absent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, BufferLayout, FlatArrays, Model, Newborn, Reply, Shapes, Task, describe, one_line
from potluck.engines.usual import Usual

STEP_TIMES = 5.0
"""gate.bound = "auto": honest steps of one network differ by the clients' data and number of steps."""
WEIGHT_TIMES = 100.0
"""gate.heaviest where samples are not known: some clients have many more samples than most."""
HEAVIEST = 1e9
"""The largest weight where nothing is known yet."""
Samples: TypeAlias = Callable[[], int]
VARIANCE = "running_var"
"""How torch names the buffer with the variances of batch norm."""
_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Gate:
    """The limits that the gate checks, under [gate]."""

    bound: float | Literal["auto"] | None = None
    """The largest accepted norm of a step (new minus sent, over all tensors of a model); None: any finite norm. "auto":
    5 times the median of the accepted steps of the same network in earlier rounds."""
    heaviest: float | None = None
    """The largest weight a reply may claim. None: the client's number of samples where it is known, as in simulation;
    elsewhere 100 times the median of the weights that were accepted in earlier rounds."""
    strikes: int = 3
    """After this many refused replies a client is not asked again; 0: no limit."""

    def __post_init__(self) -> None:
        for name in ("bound", "heaviest"):
            if isinstance(value := getattr(self, name), int | float) and value <= 0:
                raise ValueError(f"gate.{name} = {value} must be above 0")
        if self.strikes < 0:
            raise ValueError(f"gate.strikes = {self.strikes} is below 0")

    def refusal(
        self, task: Task, reply: Reply, samples: Samples | None = None, usual: Usual | None = None
    ) -> str | None:
        """The reason why this reply is refused, or None. It never raises, whatever the reply holds.

        `samples`: gives the client's number of samples, if it is known. `usual`: what was accepted in earlier rounds.
        """
        try:
            found = next(self._faults(task, reply, samples, usual or Usual()), None)
        except Exception as fault:
            found = f"it cannot be judged: {describe(fault)}"
        return None if found is None else one_line(found)

    def measures(self, task: Task, reply: Reply, known: bool = False) -> dict[str, float]:
        """The numbers of an accepted reply that limits of later rounds depend on, by kind.

        `known`: the client's number of samples is known, and limits its weight.
        """
        found = {weight_kind(task): float(reply.weight)} if self.heaviest is None and not known else {}
        if self.bound == "auto":
            for key, sent in task.models.items():
                if key in reply.models and not isinstance(sent, Newborn):
                    found[step_kind(task, key)] = _length(reply.models[key].arrays, sent.arrays)
        return found

    def limits(self, usual: Usual) -> dict[str, float]:
        """The limits that follow from earlier rounds, by kind."""
        times = {kind: STEP_TIMES if kind.startswith("step") else WEIGHT_TIMES for kind in sorted(usual.values)}
        found = {kind: usual.limit(kind, factor) for kind, factor in times.items()}
        return {kind: limit for kind, limit in found.items() if limit is not None}

    def _faults(self, task: Task, reply: Reply, samples: Samples | None, usual: Usual) -> Iterator[str]:
        expected = task.expects
        yield from self._wrong_weight(task, reply.weight, samples, usual)
        if not isinstance(reply.metrics, Mapping):
            yield f"metrics is a {type(reply.metrics).__name__}, not a mapping"
        if expected.metrics is not None and (odd_metrics := expected.metrics(reply.metrics)):
            yield odd_metrics
        if reply.models.keys() != expected.models.keys():
            odd = sorted(reply.models.keys() ^ expected.models.keys())
            yield f"models {odd} were not expected or are missing"
        for key, shapes in expected.models.items():
            model, sent = reply.models[key], task.models.get(key)
            if not isinstance(model, Model):
                yield f"model '{key}' is a {type(model).__name__}"
            if sent is not None and model.spec is not sent.spec and model.spec != sent.spec:
                yield f"model '{key}' is a {model.spec.family} of another shape than was sent"
            yield from _wrong_shapes(model.arrays, shapes)
            yield from _not_finite(model.arrays)
            yield from _negative_variances(model.arrays)
            if self.bound is not None and sent is not None and not isinstance(sent, Newborn):
                yield from self._too_long(model.arrays, sent.arrays, usual, step_kind(task, key))
        if reply.arrays or expected.arrays:
            yield from _wrong_shapes(reply.arrays, expected.arrays)
            yield from _not_finite(reply.arrays)
            yield from _negative_variances(reply.arrays)

    def _wrong_weight(self, task: Task, weight: object, samples: Samples | None, usual: Usual) -> Iterator[str]:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not -_FLOAT <= weight <= _FLOAT:
            yield f"weight {_brief(weight)} is not a finite number"
            return
        if self.heaviest is None and samples is not None and weight > 1 and weight > (count := samples()):
            yield f"weight {weight:g} is more than the client's {count} samples"
        most = self.heaviest or usual.limit(weight_kind(task), WEIGHT_TIMES) or HEAVIEST
        if not 0 < weight <= most:
            yield f"weight {weight:g} is not in (0, {most:g}]"

    def _too_long(self, new: Arrays, old: Arrays, usual: Usual, kind: str) -> Iterator[str]:
        bound = usual.limit(kind, STEP_TIMES) if self.bound == "auto" else self.bound
        if bound is not None and not (length := _length(new, old)) <= bound:
            named = f"gate.bound is {bound:g}" if self.bound != "auto" else f"usual are up to {bound:.4g}"
            yield f"a step of length {length:.4g}; {named}"


def weight_kind(task: Task) -> str:
    """The kind of a reply's weight: samples, batches or what else the replies to this verb count."""
    return f"weight {task.verb}"


def step_kind(task: Task, key: str) -> str:
    """The kind of a step: of the same network, after the same verb."""
    return f"step {task.verb} {key} {task.models[key].spec.key}"


def _length(new: Arrays, old: Arrays) -> float:
    """The norm of a step over all tensors of a model, in double precision."""
    squares = sum(
        float((tensor.double() - old[name].double()).square().sum())
        for name, tensor in new.items()
        if tensor.is_floating_point() and name in old and old[name].shape == tensor.shape
    )
    return math.sqrt(squares)


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
    flat = arrays.buffer if isinstance(arrays, FlatArrays) else None
    loose = arrays.others if isinstance(arrays, FlatArrays) else arrays
    floats = [tensor for tensor in loose.values() if tensor.is_floating_point()]
    # Norms are fast to check. A norm that is not finite can also be an overflow, so then look at every entry.
    square = 0.0 if flat is None else float(torch.dot(flat, flat))
    length = float(torch.stack(torch._foreach_norm(floats)).sum()) if floats else 0.0
    if math.isfinite(square + length):
        return
    for name, tensor in arrays.items():
        if not bool(torch.isfinite(tensor).all()):
            yield f"'{name}' is not finite"


def _negative_variances(arrays: Arrays) -> Iterator[str]:
    """Names running variances of batch norm below zero: their square root is not a number."""
    found = {name: arrays[name] for name in _variances(arrays)}
    if found and bool((torch.cat([tensor.reshape(-1) for tensor in found.values()]) < 0).any()):
        yield from (f"'{name}' has a negative variance" for name, tensor in found.items() if bool((tensor < 0).any()))


def _variances(arrays: Arrays) -> Sequence[str]:
    """The names of running variances."""
    if isinstance(arrays, FlatArrays) and not arrays.others:
        return _variances_in(arrays.layout)
    return [name for name in arrays if name.endswith(VARIANCE)]


@lru_cache(maxsize=256)
def _variances_in(layout: BufferLayout) -> Sequence[str]:
    return [name for name, _, _ in layout.entries if name.endswith(VARIANCE)]


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
