"""A model at rest: which network it is, and its tensors."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from potluck.core.plain import EMPTY, FrozenDict, Plain, freeze, to_plain

Arrays: TypeAlias = Mapping[str, Tensor]
"""A state dict at rest: detached tensors by name."""


@dataclass(frozen=True)
class BufferLayout:
    """The positions of tensors in one flat float32 buffer."""

    entries: tuple[tuple[str, int, tuple[int, ...]], ...]
    """Each tensor's name, offset and shape."""
    channels_last: bool = False
    """Whether convolution kernels use the channels-last memory format, which is faster on some GPUs."""

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.entries, self.channels_last))
            object.__setattr__(self, "_hash", found)
        return int(found)

    @staticmethod
    def of(entries: Iterable[tuple[str, int, Iterable[int]]], channels_last: bool = False) -> BufferLayout:
        """The layout with these entries, as JSON reads them back."""
        return BufferLayout(tuple((name, start, tuple(shape)) for name, start, shape in entries), channels_last)

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {name: (shape, torch.float32) for name, _, shape in self.entries}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tensors, without the gaps between them."""
        return sum(4 * math.prod(shape) for _, _, shape in self.entries)

    @cached_property
    def end(self) -> int:
        """How many entries a buffer must have; -1 if a name or a place makes no sense."""
        whole = all(type(n) is int and n >= 0 for _, start, shape in self.entries for n in (start, *shape))
        names = {name for name, _, _ in self.entries if type(name) is str and name.isprintable()}
        if not whole or len(names) < len(self.entries):
            return -1
        return max((start + math.prod(shape) for _, start, shape in self.entries), default=0)

    @cached_property
    def views(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Each tensor's shape, strides and offset."""
        return {name: (shape, _strides(shape, self.channels_last), start) for name, start, shape in self.entries}

    def cut(self, buffer: Tensor) -> dict[str, Tensor]:
        """The tensors in a buffer, as views."""
        return {name: buffer.as_strided(*view) for name, view in self.views.items()}


def _strides(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """The strides of a tensor of this shape."""
    if channels_last and len(shape) == 4:
        _, channels, height, width = shape
        return (channels * height * width, 1, width * channels, channels)
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


class FlatArrays(Mapping[str, Tensor]):
    """Arrays that mostly share one flat buffer, so that one operation can treat all of them."""

    __slots__ = ("_cut", "buffer", "layout", "others")

    def __init__(self, buffer: Tensor, layout: BufferLayout, others: Arrays = EMPTY) -> None:
        self.buffer, self.layout, self.others = buffer, layout, others
        self._cut: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """A tensor; its view is made at the first request and then reused."""
        found = self._cut.get(name)
        if found is None:
            view = self.layout.views.get(name)
            found = self._cut[name] = self.others[name] if view is None else self.buffer.as_strided(*view)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self.layout.views
        yield from self.others

    def __len__(self) -> int:
        return len(self.layout.entries) + len(self.others)


Depth: TypeAlias = "int | tuple[int, ...] | None"


@dataclass(frozen=True)
class Spec:
    """Which network to build. It can be hashed, compared and written as JSON."""

    family: str
    depth: Depth = None
    """Blocks kept; one number per stage where the family has stages. None: all of them."""
    sizes: Mapping[str, int] = EMPTY
    """Units kept in each axis group. A group that is not named has its family's size."""
    options: Mapping[str, Plain] = EMPTY
    """Options of the family: classes, input shape, kind of norm."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", freeze(self.depth))
        object.__setattr__(self, "sizes", FrozenDict(self.sizes))
        object.__setattr__(self, "options", freeze(self.options))

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.family, self.depth, self.sizes, self.options))
            object.__setattr__(self, "_hash", found)
        return int(found)

    def plain(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "depth": to_plain(self.depth),
            "sizes": to_plain(self.sizes),
            "options": to_plain(self.options),
        }

    @property
    def key(self) -> str:
        """A short hash: equal for equal specs, in every process."""
        found = self.__dict__.get("_key")
        if found is None:
            found = hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:12]
            object.__setattr__(self, "_key", found)
        return str(found)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Spec:
        return cls(plain["family"], plain.get("depth"), plain.get("sizes") or {}, plain.get("options") or {})


@dataclass(frozen=True, eq=False)
class Model:
    """A network at rest: which one it is, and its tensors."""

    spec: Spec
    arrays: Arrays = field(repr=False)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its tensors on the wire."""
        return size(self.arrays)

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each of its tensors."""
        if isinstance(self.arrays, FlatArrays) and not self.arrays.others:
            return self.arrays.layout.shapes
        return shapes_of(self.arrays)


@dataclass(frozen=True, eq=False)
class Newborn(Model):
    """A network without tensors. The device initialises it from the run's seed and the client's name."""

    arrays: Arrays = field(default=EMPTY, repr=False)


def shapes_of(arrays: Arrays) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each of these tensors."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in arrays.items()}


def size(arrays: Arrays) -> int:
    """Bytes of these tensors in a message; booleans take one bit each."""
    if arrays is EMPTY:
        return 0
    if type(arrays) is FlatArrays:
        return arrays.layout.nbytes + size(arrays.others)
    return sum((tensor.numel() + 7) // 8 if tensor.dtype is torch.bool else tensor.nbytes for tensor in arrays.values())


def digest(arrays: Arrays) -> str:
    """SHA-256 over names, dtypes, shapes and bits: equal if and only if the arrays are."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        tensor = arrays[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
