"""Blocks: entries of the server's model that the same clients hold in a round.

Which parts hold an entry is known dimension by dimension: part p holds the entry (i, j) if it holds i in the first
dimension and j in the second. So every dimension has a number for each index, whose bit p says whether part p holds it,
and an entry's block is the bitwise *and* over its dimensions. Clients with equal parts have one number p.

Server and client list the entries of a block in the same order: tensors by their names on the server, entries by their
indices there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core import Arrays, Selection
from potluck.parts import Part
from potluck.parts.part import Index, Place

MOST_PARTS = 62
"""Different parts in a round: each has a bit in a whole number."""

Bits = NDArray[np.int64]


class NotByTier(ValueError):
    """Parts that are not a function of tier and round."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of a tensor as a part holds it."""

    bits: Bits
    """For each index that the part holds, in ascending order: which parts hold it."""
    order: NDArray[np.int64] | None = None
    """Where the part has the index that comes first on the server, second, ...; None: it has them in this order."""

    def plain(self) -> list[Any]:
        """As runs of equal bits, and as runs of consecutive places."""
        runs = [[int(bits), sum(1 for _ in same)] for bits, same in groupby(self.bits.tolist())]
        return [runs, None if self.order is None else _runs(self.order)]

    @classmethod
    def read(cls, plain: Sequence[Any]) -> Dimension:
        runs, order = plain
        bits = np.repeat(*np.array(runs, np.int64).reshape(-1, 2).T) if runs else np.zeros(0, np.int64)
        return cls(bits, None if order is None else np.concatenate([np.arange(a, b) for a, b in order]))


@dataclass(frozen=True)
class TensorBlocks:
    """A tensor in a part of the server's model, or in the whole of it."""

    name: str
    """Its name in the part."""
    dims: tuple[Dimension, ...]
    """Its first dimensions. The others are held by all that hold the tensor; their entries stay together."""
    held_by: int
    """The bits of the parts that hold the tensor at all."""

    def rows(self, block: int) -> NDArray[np.int64] | None:
        """Where this block is in the tensor, counted in its first dimensions; None: everywhere."""
        if not self.dims:
            return None if self.held_by == block else np.zeros(0, np.int64)
        grid = self.grid()
        first = int(grid.flat[0]) if grid.size else -1
        if first == block and bool((grid == first).all()):
            return None
        return np.flatnonzero(grid == block)

    def grid(self) -> Bits:
        """The block of every entry of the first dimensions."""
        found = np.array(self.held_by, np.int64).reshape((1,) * len(self.dims))
        for number, dim in enumerate(self.dims):
            shape = [1] * len(self.dims)
            shape[number] = len(dim.bits)
            found = found & dim.bits.reshape(shape)
        return found

    def blocks(self) -> set[int]:
        """All blocks that have an entry in it."""
        return set(np.unique(self.grid()).tolist()) if self.dims else {self.held_by}

    def ordered(self, tensor: Tensor) -> NDArray[Any]:
        """The tensor's entries, with its first dimensions in the server's order and flattened, one row for each."""
        for number, dim in enumerate(self.dims):
            if dim.order is not None:
                tensor = tensor.index_select(number, torch.from_numpy(dim.order))
        lead = math.prod(tensor.shape[: len(self.dims)])
        return tensor.reshape(lead, -1).numpy()


@dataclass(frozen=True)
class PartLayout:
    """The blocks of a part: its tensors, in the order of their names on the server."""

    tensors: tuple[TensorBlocks, ...]

    def plain(self) -> dict[str, Any]:
        """As plain values; what several dimensions have in common is written once."""
        dims: dict[str, int] = {}
        told: list[Any] = []

        def number(dim: Dimension) -> int:
            plain = dim.plain()
            if (key := repr(plain)) not in dims:
                dims[key] = len(told)
                told.append(plain)
            return dims[key]

        tensors = [[each.name, each.held_by, [number(dim) for dim in each.dims]] for each in self.tensors]
        return {"dims": told, "tensors": tensors}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> PartLayout:
        dims = [Dimension.read(each) for each in plain["dims"]]
        return cls(
            tuple(
                TensorBlocks(name, tuple(dims[number] for number in numbers), held_by)
                for name, held_by, numbers in plain["tensors"]
            )
        )

    def blocks(self) -> set[int]:
        """All blocks that have an entry in the part."""
        return {block for tensor in self.tensors for block in tensor.blocks()}


@dataclass(frozen=True)
class RoundBlocks:
    """The blocks of a round: which parts there are, who holds which, and where each block lies."""

    number: Mapping[str, int]
    """Each client's number of its part."""
    parts: tuple[PartLayout, ...]
    whole: PartLayout
    """The server's own view: its tensors under their own names, in the same order."""

    @classmethod
    def of(cls, start: Arrays, held: Mapping[str, Selection], names: Mapping[str, Sequence[str]]) -> RoundBlocks:
        """The blocks of clients that hold these parts of a model; `names` are each client's tensors that it uploads."""
        numbers: dict[str, int] = {}
        known: dict[Any, int] = {}
        places: list[dict[str, tuple[str, Place]]] = []
        for client, part in held.items():
            if not isinstance(part, Part):
                raise NotByTier("parts that are chosen entry by entry")
            here = {name: part.place(name) for name in names[client]}
            key = (id(part), tuple(here)) if part.entire else _key(here)
            if key not in known:
                known[key] = len(places)
                places.append({place.name: (name, place) for name, place in here.items()})
            numbers[client] = known[key]
        if len(places) > MOST_PARTS:
            raise NotByTier(f"{len(places)} different parts in one round")
        found = [_tensor(start[name], name, places) for name in sorted({name for each in places for name in each})]
        parts = tuple(
            PartLayout(
                tuple(_in_part(*each[whole.name], whole, start[whole.name]) for whole in found if whole.name in each)
            )
            for each in places
        )
        return cls(numbers, parts, PartLayout(tuple(found)))

    def holders(self, block: int, clients: Sequence[str]) -> list[str]:
        """Those of these clients that hold a block."""
        return [client for client in clients if block >> self.number[client] & 1]

    def layout(self, client: str) -> PartLayout:
        return self.parts[self.number[client]]


def _key(places: Mapping[str, Place]) -> Any:
    return tuple((name, place.name, tuple(_index_key(index) for index in place.dims)) for name, place in places.items())


def _index_key(index: Index) -> Any:
    if index is None:
        return None
    if isinstance(index, Tensor):
        return index.cpu().numpy().tobytes()
    return tuple((run.start, run.stop) for run in index)


def _indices(index: Index, length: int) -> NDArray[np.int64]:
    if index is None:
        return np.arange(length)
    if isinstance(index, Tensor):
        return index.cpu().numpy().astype(np.int64)
    return np.concatenate([np.arange(run.start, run.stop) for run in index] or [np.zeros(0, np.int64)])


def _tensor(start: Tensor, name: str, places: Sequence[Mapping[str, tuple[str, Place]]]) -> TensorBlocks:
    """A tensor of the server, with the parts that hold it."""
    here = [(bit, each[name][1]) for bit, each in enumerate(places) if name in each]
    cut = [number for _, place in here for number, index in enumerate(place.dims) if index is not None]
    dims = []
    for number in range(max(cut, default=-1) + 1):
        bits = np.zeros(start.shape[number], np.int64)
        for bit, place in here:
            index = place.dims[number] if number < len(place.dims) else None
            bits[_indices(index, len(bits))] |= np.int64(1) << np.int64(bit)
        dims.append(Dimension(bits))
    return TensorBlocks(name, tuple(dims), sum(1 << bit for bit, _ in here))


def _in_part(name: str, place: Place, whole: TensorBlocks, start: Tensor) -> TensorBlocks:
    """The same tensor as a part holds it."""
    dims = []
    for number, dim in enumerate(whole.dims):
        index = place.dims[number] if number < len(place.dims) else None
        if index is None:
            dims.append(dim)
            continue
        at = _indices(index, start.shape[number])
        order = np.argsort(at, kind="stable")
        ascending = bool((order == np.arange(len(order))).all())
        dims.append(Dimension(dim.bits[at[order]], None if ascending else order))
    return TensorBlocks(name, tuple(dims), whole.held_by)


def _runs(order: NDArray[np.int64]) -> list[list[int]]:
    runs: list[list[int]] = []
    for place in order.tolist():
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return runs


def segments(layout: PartLayout, block: int) -> Iterator[tuple[TensorBlocks, NDArray[np.int64] | None]]:
    """The tensors that have entries in a block, in order, with the rows of these entries (None: all)."""
    for tensor in layout.tensors:
        rows = tensor.rows(block)
        if rows is None or len(rows):
            yield tensor, rows
