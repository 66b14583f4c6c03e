"""Cutting a part out of a whole model: which entries of which tensor, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, Axis, Dimension, Dimensions

Index: TypeAlias = "tuple[slice, ...] | Tensor | None"
"""Entries of one dimension, in order: all of them, a few runs of consecutive ones, or any list."""

Choose: TypeAlias = "Callable[[Axis], Sequence[int] | Tensor]"
"""The units a method picks of a group, in the order in which the small network will hold them."""

MOST_RUNS = 8
"""A dimension in more runs than this (or a tensor in more blocks) is cut by index lists; fewer blocks are faster."""


@dataclass(frozen=True)
class Place:
    """Where a small tensor lives in the whole: under which name, at which entries of each dimension."""

    name: str
    dims: tuple[Index, ...] = ()

    def take(self, tensor: Tensor) -> Tensor:
        """The small tensor; a view where it is one block, so treat it as read-only."""
        for dim, index in enumerate(self.dims):
            if isinstance(index, Tensor):
                tensor = tensor.index_select(dim, index.to(tensor.device))
            elif index is not None:
                runs = [tensor.narrow(dim, run.start, run.stop - run.start) for run in index]
                tensor = runs[0] if len(runs) == 1 else torch.cat(runs, dim)
        return tensor

    def blocks(self, shape: Sequence[int]) -> Iterator[tuple[tuple[slice | Tensor, ...], tuple[slice, ...]]]:
        """Pairs (entries of the whole, entries of the small tensor) that together cover the small tensor."""
        runs = [_pairs(index, shape[dim]) for dim, index in enumerate(self.dims)]
        for combination in product(*runs):
            yield tuple(there for there, _ in combination), tuple(here for _, here in combination)


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

    ``take`` cuts the small model out; `OverlapMean` uses the same places to put it back. A name that has no place
    (`WHOLE` names none) stands for itself, entire.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    entire: bool = False
    """The small model has every tensor of the whole under the same name."""

    def place(self, name: str) -> Place:
        if self.entire:
            return Place(name)
        return self.places[name]

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
    """A part chosen entry by entry: the small model has the whole's shapes, with zeros where the mask is off."""

    masks: Mapping[str, Tensor]
    """Truth values of the tensor's shape; a tensor without one is held entire."""

    def place(self, name: str) -> Place:
        return Place(name)

    def take(self, whole: Arrays) -> Arrays:
        return {
            name: torch.where(self.masks[name], tensor, torch.zeros_like(tensor)) if name in self.masks else tensor
            for name, tensor in whole.items()
        }


def part(axes: Mapping[str, Dimensions], choose: Choose, names: Iterable[str] | None = None) -> Part:
    """The part made of the chosen units of every axis group.

    `axes` describes the whole; `choose` is asked once per group; `names` are the tensors the small network has (all, if
    left out: a shallow network has fewer).
    """
    chosen: dict[str, list[int]] = {}
    indices: dict[Dimension, Index] = {}

    def units(axis: Axis) -> list[int]:
        if axis.group not in chosen:
            picked = choose(axis)
            chosen[axis.group] = [int(unit) for unit in (picked.tolist() if isinstance(picked, Tensor) else picked)]
            _check(axis, chosen[axis.group])
        return chosen[axis.group]

    def index(dimension: Dimension) -> Index:
        if dimension not in indices:
            indices[dimension] = _index(dimension, units)
        return indices[dimension]

    places = {name: _place(name, axes[name], index) for name in (axes if names is None else names)}
    return Part(places)


def _check(axis: Axis, units: list[int]) -> None:
    if len(set(units)) != len(units):
        raise ValueError(f"group '{axis.group}': a unit was chosen twice in {units}")
    if any(not 0 <= unit < axis.size for unit in units):
        raise ValueError(f"group '{axis.group}' has units 0 to {axis.size - 1}; chosen were {units}")


def _place(name: str, dimensions: Dimensions, index: Callable[[Dimension], Index]) -> Place:
    dims = tuple(index(dimension) for dimension in dimensions)
    if all(entry is None for entry in dims):
        return Place(name)
    blocks = 1
    for entry in dims:
        blocks *= len(entry) if isinstance(entry, tuple) else 1
    if blocks > MOST_RUNS or any(isinstance(entry, Tensor) for entry in dims):
        return Place(name, tuple(_listed(entry) for entry in dims))
    return Place(name, dims)


def _index(dimension: Dimension, units: Callable[[Axis], list[int]]) -> Index:
    """The entries of a dimension that belong to the chosen units, in order."""
    if dimension is None:
        return None
    entries: list[int] = []
    offset = 0
    for axis in dimension if isinstance(dimension, tuple) else (dimension,):
        for copy in range(axis.outer):
            for unit in units(axis):
                start = offset + (copy * axis.size + unit) * axis.inner
                entries.extend(range(start, start + axis.inner))
        offset += axis.length
    if entries == list(range(offset)):
        return None
    runs = _runs(entries)
    return runs if len(runs) <= MOST_RUNS else torch.tensor(entries)


def _runs(entries: list[int]) -> tuple[slice, ...]:
    """Consecutive entries gathered into slices."""
    if not entries:
        return (slice(0, 0),)
    runs: list[slice] = []
    start = previous = entries[0]
    for entry in entries[1:]:
        if entry != previous + 1:
            runs.append(slice(start, previous + 1))
            start = entry
        previous = entry
    return (*runs, slice(start, previous + 1))


def _listed(index: Index) -> Index:
    if isinstance(index, tuple):
        return torch.cat([torch.arange(run.start, run.stop) for run in index])
    return index
