"""Parts: which entries of which tensors a small model takes from the whole, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from potluck.core import Arrays, Axis, Dimension, Dimensions

Index: TypeAlias = "tuple[slice, ...] | Tensor | None"
"""Entries of one dimension, in order: all (None), a few runs of consecutive entries (in each copy, if the dimension
consists of equal copies), or any list."""

Choose: TypeAlias = "Callable[[Axis], Sequence[int] | Tensor]"
"""Chooses the units of an axis group, in the order in which the small network will hold them."""

MOST_RUNS = 4
"""With more runs in a dimension (or more blocks in a tensor), index lists are faster than slices. Runs that equal
copies of a dimension have in common, such as attention heads, count once."""


@dataclass(frozen=True)
class Place:
    """Where a small tensor belongs in the whole: the name of the tensor, and the entries of each dimension."""

    name: str
    dims: tuple[Index, ...] = ()
    copies: tuple[int, ...] = ()
    """How many equal copies (attention heads) each dimension consists of, if any dimension has more than one."""

    @cached_property
    def unfolded(self) -> Place:
        """The place in `unfold`'s view of the whole: one slice for all copies, instead of one for each."""
        if not self.copies:
            return self
        dims: list[Index] = []
        for index, count in zip(self.dims, self.copies, strict=True):
            dims += [None, index[: len(index) // count]] if count > 1 and isinstance(index, tuple) else [index]
        return Place(self.name, tuple(dims))

    def unfold(self, tensor: Tensor) -> Tensor:
        """A view of the whole or of the small tensor, in which copies have a dimension of their own."""
        for dim, count in reversed(tuple(enumerate(self.copies))):
            shape = tensor.shape
            tensor = tensor.view(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]) if count > 1 else tensor
        return tensor

    def take(self, tensor: Tensor) -> Tensor:
        """The small tensor. It may be a view of the whole: do not write to it."""
        if any(isinstance(index, Tensor) for index in self.dims):
            for dim, index in enumerate(self.dims):
                if isinstance(index, Tensor):
                    tensor = tensor.index_select(dim, index.to(tensor.device))
            return tensor
        shape = [
            length if index is None else _count(index) for index, length in zip(self.dims, tensor.shape, strict=False)
        ]
        shape += tensor.shape[len(shape) :]
        if self.copies:
            return self.unfolded.take(self.unfold(tensor)).reshape(shape)
        pairs = list(self.blocks(shape))
        if len(pairs) == 1:
            return tensor[pairs[0][0]]
        small = tensor.new_empty(shape)
        for there, here in pairs:
            small[here].copy_(tensor[there])
        return small

    def blocks(self, shape: Sequence[int]) -> Iterator[tuple[tuple[slice | Tensor, ...], tuple[slice, ...]]]:
        """Pairs (entries of the whole, entries of the small tensor) that together cover the small tensor."""
        runs = [_pairs(index, shape[dim]) for dim, index in enumerate(self.dims)]
        for combination in product(*runs):
            yield tuple(there for there, _ in combination), tuple(here for _, here in combination)


def _count(index: Index) -> int:
    assert isinstance(index, tuple)
    return sum(run.stop - run.start for run in index)


def _pairs(index: Index, length: int) -> list[tuple[slice | Tensor, slice]]:
    if index is None:
        return [(slice(None), slice(None))]
    if isinstance(index, Tensor):
        return [(index, slice(None))]
    pairs: list[tuple[slice | Tensor, slice]] = []
    at = 0
    for run in index:
        pairs.append((run, slice(at, at + run.stop - run.start)))
        at += run.stop - run.start
    if at != length:
        raise ValueError(f"a dimension of {length} entries; its part holds {at}")
    return pairs


@dataclass(frozen=True)
class Part:
    """A part of a whole model: a place for each of the small model's tensors.

    ``take`` cuts the small model out; `OverlapMean` uses the same places to put it back. In `WHOLE`, every tensor is
    entire under its own name.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    entire: bool = False
    """Whether the small model has every tensor of the whole, entire and under the same name."""
    units: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The chosen units of each axis group; empty if the part was not made from units."""

    def place(self, name: str) -> Place:
        """Where this tensor of the small model belongs in the whole."""
        if self.entire:
            return Place(name)
        return self.places[name]

    def on(self, hardware: torch.device) -> Part:
        """The same part with its index lists on this hardware, so that they are copied only once."""
        if hardware.type == "cpu":
            return self
        found = {id(index): index for place in self.places.values() for index in place.dims}
        lists = {key: index for key, index in found.items() if isinstance(index, Tensor)}
        if not lists:
            return self
        # One copy for all lists: each copy to a GPU costs as much as a kernel, whatever its size.
        together = torch.cat(list(lists.values())).to(hardware)
        moved = dict(zip(lists, torch.split(together, [len(index) for index in lists.values()]), strict=True))
        places = {
            name: Place(place.name, tuple(moved.get(id(index), index) for index in place.dims), place.copies)
            for name, place in self.places.items()
        }
        return Part(places, self.entire, self.units)

    def take(self, whole: Arrays) -> Arrays:
        """The small model's arrays."""
        if self.entire:
            return whole
        return {
            name: place.take(whole[place.name]) if place.dims else whole[place.name]
            for name, place in self.places.items()
        }


WHOLE = Part(entire=True)


@dataclass(frozen=True)
class Mask:
    """A part chosen entry by entry: the small model has the shapes of the whole, with zeros where the mask is False."""

    masks: Mapping[str, Tensor]
    """Bool tensors of the same shape; a tensor without a mask is entire."""

    def place(self, name: str) -> Place:
        return Place(name)

    def take(self, whole: Arrays) -> Arrays:
        return {
            name: torch.where(self.masks[name], tensor, torch.zeros_like(tensor)) if name in self.masks else tensor
            for name, tensor in whole.items()
        }


def part(
    axes: Mapping[str, Dimensions], choose: Choose, names: Iterable[str] | None = None, heads: Choose | None = None
) -> Part:
    """The part that holds the chosen units of every axis group.

    `axes` describes the whole. `choose` is called once per group. `names` are the tensors of the small network (None:
    all; a shallow network has fewer). If an axis has several copies (heads), `heads` chooses among the entries of all
    copies together; without it, every copy is cut in the same way.
    """
    chosen: dict[str, tuple[int, ...]] = {}
    indices: dict[Dimension, Index] = {}
    lists: dict[int, Tensor] = {}

    def units(axis: Axis) -> Sequence[int]:
        if axis.group not in chosen:
            picked = choose(axis)
            chosen[axis.group] = tuple(picked.tolist() if isinstance(picked, Tensor) else map(int, picked))
            _check(axis, chosen[axis.group])
        return chosen[axis.group]

    def entries(dimension: Dimension) -> Index:
        if dimension not in indices:
            indices[dimension] = index(dimension, units, heads)
        return indices[dimension]

    def as_list(index: tuple[slice, ...]) -> Tensor:
        """The runs of a dimension as a list, which its tensors share."""
        if id(index) not in lists:
            lists[id(index)] = _as_list(index)
        return lists[id(index)]

    places = {
        name: place(name, tuple(map(entries, axes[name])), tuple(map(_length, axes[name])), as_list)
        for name in (axes if names is None else names)
    }
    return Part(places, units=chosen)


def _check(axis: Axis, units: Sequence[int]) -> None:
    if len(set(units)) != len(units):
        raise ValueError(f"group '{axis.group}': a unit was chosen twice in {list(units)}")
    if any(not 0 <= unit < axis.size for unit in units):
        raise ValueError(f"group '{axis.group}' has units 0 to {axis.size - 1}; chosen were {list(units)}")


def _as_list(runs: tuple[slice, ...]) -> Tensor:
    """All entries of these runs, in order."""
    starts = np.array([run.start for run in runs], dtype=np.int64)
    counts = np.array([run.stop - run.start for run in runs], dtype=np.int64)
    jumps = starts - np.concatenate([[0], counts.cumsum()[:-1]])
    return torch.from_numpy(np.repeat(jumps, counts) + np.arange(counts.sum()))


def place(
    name: str,
    dims: tuple[Index, ...],
    lengths: Sequence[int] = (),
    as_list: Callable[[tuple[slice, ...]], Tensor] = _as_list,
) -> Place:
    """The place at these entries: by slices if there are few blocks, else by index lists.

    With the lengths of the whole's dimensions, equal copies in a dimension count as one block.
    """
    if all(entry is None for entry in dims):
        return Place(name)
    copies = [_copies(entry, length) for entry, length in zip(dims, lengths, strict=False)] or [1] * len(dims)
    blocks = 1
    for entry, count in zip(dims, copies, strict=True):
        blocks *= len(entry) // count if isinstance(entry, tuple) else 1
    if blocks > MOST_RUNS or any(isinstance(entry, Tensor) for entry in dims):
        return Place(name, tuple(as_list(entry) if isinstance(entry, tuple) else entry for entry in dims))
    return Place(name, dims, tuple(copies) if max(copies) > 1 else ())


def _length(dimension: Dimension) -> int:
    """The number of entries of a dimension of the whole; 0 if it has no axis, and so is never cut."""
    axes = dimension if isinstance(dimension, tuple) else (dimension,)
    return sum(axis.length for axis in axes if axis is not None)


def _copies(index: Index, length: int) -> int:
    """Into how many equal copies a dimension of this length falls, so that one or two runs in each are its entries."""
    if not isinstance(index, tuple):
        return 1
    for runs in (1, 2):
        count, odd = divmod(len(index), runs)
        if odd or count < 2 or length % count:
            continue
        step = length // count
        again = (slice(run.start + step, run.stop + step) for run in index)
        if all(run.stop <= step for run in index[:runs]) and all(map(slice.__eq__, index[runs:], again)):
            return count
    return 1


def index(dimension: Dimension, units: Choose, heads: Choose | None = None) -> Index:
    """The entries of a dimension that belong to the chosen units, in order."""
    if dimension is None:
        return None
    runs: list[slice] = []
    offset = 0
    for axis in dimension if isinstance(dimension, tuple) else (dimension,):
        together = heads is not None and axis.outer > 1
        picked = _runs(heads(axis) if heads is not None and together else units(axis))
        for copy in range(1 if together else axis.outer):
            start = offset + copy * axis.size * axis.inner
            for run in picked:
                _extend(runs, slice(start + run.start * axis.inner, start + run.stop * axis.inner))
        offset += axis.length
    if runs == [slice(0, offset)]:
        return None
    if not runs:
        return (slice(0, 0),)
    few = len(runs) <= MOST_RUNS or _copies(tuple(runs), offset) > 1
    return tuple(runs) if few else _as_list(tuple(runs))


def _runs(units: Sequence[int] | Tensor) -> list[slice]:
    """The units as slices of consecutive units."""
    runs: list[slice] = []
    for unit in units.tolist() if isinstance(units, Tensor) else units:
        _extend(runs, slice(unit, unit + 1))
    return runs


def _extend(runs: list[slice], more: slice) -> None:
    """Appends a run, or extends the last run if the new one follows it."""
    if runs and runs[-1].stop == more.start:
        runs[-1] = slice(runs[-1].start, more.stop)
    elif more.stop > more.start:
        runs.append(more)
