"""The one aggregation: a weighted mean of models that overlap only in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from potluck.core import Arrays, BufferLayout, FlatArrays, Weight
from potluck.parts.part import Mask, Part, Place

BLOCK = 16
"""Sums run over fixed blocks of this many tasks, then block by block, so that their bits do not depend on workers."""


class Placed(Protocol):
    """What can say where a small tensor belongs: a `Part` or a `Mask`."""

    def place(self, name: str) -> Place: ...


@dataclass
class Sums:
    """Weighted sums and weights, entry by entry, in float64; whole numbers keep their maximum instead."""

    totals: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    """One number while every contribution was entire; from the first partial one on a tensor that broadcasts to the
    total's shape (dimensions that are never cut, such as a kernel's, have length one)."""
    peaks: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """(maximum, seen) of tensors of whole numbers."""
    flat: tuple[BufferLayout, Tensor] | None = None
    """The buffer in which the totals lie, while every contribution came in one of the same layout."""

    def merge(self, other: Sums) -> None:
        """Adds another block's sums."""
        for name, total in other.totals.items():
            if name in self.totals:
                self.totals[name].add_(total)
                self.weights[name] = self.weights[name] + other.weights[name]
            else:
                self.totals[name], self.weights[name] = total, other.weights[name]
        for name, (peak, seen) in other.peaks.items():
            if name in self.peaks:
                mine, had = self.peaks[name]
                self.peaks[name] = (torch.maximum(mine, peak), had | seen)
            else:
                self.peaks[name] = (peak, seen)


class OverlapMean:
    """Weighted mean of models that overlap only in part; entries that nobody sent keep their value.

    >>> import torch
    >>> mean = OverlapMean({"w": torch.tensor([1.0, 2.0])})
    >>> mean.add({"w": torch.tensor([3.0, 4.0])}, WHOLE, 1.0)
    >>> mean.value()["w"].tolist()
    [3.0, 4.0]
    """

    def __init__(self, start: Arrays) -> None:
        self.start = start
        self.sums = Sums()
        self._block = Sums()
        self._number = 0
        self._next = 0

    def add(self, arrays: Arrays, held: Any, weight: Weight = 1.0, position: int | None = None) -> None:
        """Folds one contribution in. `position` is the task's place among all tasks of the fold."""
        position = self._next if position is None else position
        if position < self._next:
            raise ValueError(f"position {position} comes after {self._next - 1}: contributions are added in order")
        self._next = position + 1
        if position // BLOCK != self._number:
            self._close()
            self._number = position // BLOCK
        if isinstance(arrays, FlatArrays) and isinstance(weight, float) and self._add_flat(arrays, held, weight):
            arrays = arrays.others
        for name, tensor in arrays.items():
            factor = _factor(weight, name)
            if isinstance(factor, Tensor) or factor > 0:
                self._add(held, name, tensor, factor)

    def value(self) -> Arrays:
        """The mean where anybody sent something, the starting value elsewhere; cast once, at the end."""
        self._close()
        out = dict(self.start)
        for name, total in self.sums.totals.items():
            out[name] = _divided(self.start[name], total, self.sums.weights[name])
        for name, (peak, seen) in self.sums.peaks.items():
            out[name] = torch.where(seen, peak, self.start[name])
        return out

    def covered(self, name: str) -> Tensor | bool:
        """Which entries of this tensor anybody sent: one truth value for all of them, or one each."""
        self._close()
        if name in self.sums.peaks:
            return self.sums.peaks[name][1]
        weight = self.sums.weights.get(name, 0.0)
        return (weight > 0).expand(self.start[name].shape) if isinstance(weight, Tensor) else weight > 0

    def coverage(self) -> float:
        """The share of the whole's numbers that anybody sent."""
        sent = count = 0
        for name, tensor in self.start.items():
            covered = self.covered(name)
            sent += int(covered.sum()) if isinstance(covered, Tensor) else tensor.numel() * covered
            count += tensor.numel()
        return sent / count if count else 1.0

    def _close(self) -> None:
        if self._block.totals or self._block.peaks:
            self.sums.merge(self._block)
            self._block = Sums()

    def _add_flat(self, arrays: FlatArrays, held: Any, factor: float) -> bool:
        """Adds a whole buffer at once, to the same sums as tensor by tensor; False where that cannot be."""
        block, layout = self._block, arrays.layout
        if not (isinstance(held, Part) and held.entire and factor > 0):
            return False
        if block.flat is None and not block.totals:
            if any(self.start[name].shape != shape for name, (shape, _) in layout.shapes.items()):
                return False
            block.flat = (layout, torch.mul(arrays.buffer.to(torch.float64), factor))
            block.totals |= layout.cut(block.flat[1])
            block.weights |= dict.fromkeys(layout.shapes, factor)
            return True
        if block.flat is None or block.flat[0] != layout:
            return False
        block.flat[1].add_(arrays.buffer, alpha=factor)
        for name in layout.shapes:
            block.weights[name] = block.weights[name] + factor
        return True

    def _add(self, held: Placed, name: str, tensor: Tensor, factor: float | Tensor) -> None:
        place = held.place(name)
        mask = held.masks.get(name) if isinstance(held, Mask) else None
        if not self.start[place.name].is_floating_point():
            self._peak(place, tensor)
        elif isinstance(factor, Tensor) or mask is not None:
            self._add_entries(place, tensor, _as_weights(factor, tensor, mask))
        elif place.dims:
            self._add_blocks(place, tensor, factor)
        else:
            self._add_entire(place.name, tensor, factor)

    def _add_entire(self, name: str, tensor: Tensor, factor: float) -> None:
        if tensor.shape != self.start[name].shape:
            raise ValueError(
                f"'{name}' of shape {tuple(tensor.shape)}; the whole holds {tuple(self.start[name].shape)}"
            )
        totals, weights = self._block.totals, self._block.weights
        if name in totals:
            totals[name].add_(tensor, alpha=factor)
            weights[name] = weights[name] + factor
        else:
            totals[name] = torch.mul(tensor.to(torch.float64), factor)
            weights[name] = factor

    def _add_blocks(self, place: Place, tensor: Tensor, factor: float) -> None:
        total, weights = self._sums_of(place.name, len(place.dims))
        for there, here in place.blocks(tensor.shape):
            if any(isinstance(index, Tensor) for index in there):
                at = _outer(there)
                total[at] += tensor[here].to(torch.float64) * factor
                weights[at] += factor
            else:
                total[there].add_(tensor[here], alpha=factor)
                weights[there].add_(factor)

    def _add_entries(self, place: Place, tensor: Tensor, factors: Tensor) -> None:
        total, weights = self._sums_of(place.name, tensor.dim())
        weighted = torch.where(factors > 0, tensor.to(torch.float64) * factors, -0.0)
        for there, here in place.blocks(tensor.shape):
            at = _outer(there)
            total[at] += weighted[here]
            weights[at] += factors[here]

    def _sums_of(self, name: str, dims: int) -> tuple[Tensor, Tensor]:
        """This block's total of a tensor, and its weights with at least so many dimensions spelt out."""
        start, block = self.start[name], self._block
        if name not in block.totals:
            # Sums begin at -0.0, to which adding anything, -0.0 too, leaves it as it is.
            block.totals[name] = torch.full_like(start, -0.0, dtype=torch.float64)
        had = block.weights.get(name, 0.0)
        shape = (*start.shape[:dims], *[1] * (start.dim() - dims))
        if not isinstance(had, Tensor):
            had = torch.full(shape, had, dtype=torch.float64, device=start.device)
        elif any(a < b for a, b in zip(had.shape, shape, strict=True)):
            had = had.expand([max(a, b) for a, b in zip(had.shape, shape, strict=True)]).clone()
        block.weights[name] = had
        return block.totals[name], had

    def _peak(self, place: Place, tensor: Tensor) -> None:
        start = self.start[place.name]
        peak, seen = self._block.peaks.get(place.name) or (
            torch.full_like(start, _lowest(start.dtype)),
            torch.zeros_like(start, dtype=torch.bool),
        )
        for there, here in place.blocks(tensor.shape):
            at = _outer(there)
            peak[at] = torch.maximum(peak[at], tensor[here])
            seen[at] = True
        self._block.peaks[place.name] = (peak, seen)


def _factor(weight: Weight, name: str) -> float | Tensor:
    found = weight.get(name, weight.get("", 0.0)) if isinstance(weight, Mapping) else weight
    return found if isinstance(found, Tensor) else float(found)


def _as_weights(factor: float | Tensor, tensor: Tensor, mask: Tensor | None) -> Tensor:
    """A weight for every entry of a small tensor."""
    weights = torch.as_tensor(factor, dtype=torch.float64, device=tensor.device)
    if mask is not None:
        weights = weights * mask
    return weights.expand(tensor.shape)


def _outer(there: tuple[slice | Tensor, ...]) -> tuple[slice | Tensor, ...]:
    """An index that addresses the product of its lists, as slices do by themselves."""
    lists = [dim for dim, index in enumerate(there) if isinstance(index, Tensor)]
    if len(lists) < 2:
        return there
    out = list(there)
    for order, dim in enumerate(lists):
        index = there[dim]
        assert isinstance(index, Tensor)
        out[dim] = index.reshape(-1, *[1] * (len(lists) - 1 - order))
    return tuple(out)


def _divided(old: Tensor, total: Tensor, weight: float | Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        return (total / weight).to(old.dtype)
    new = (total / torch.where(weight > 0, weight, 1.0)).to(old.dtype)
    return new if bool((weight > 0).all()) else torch.where(weight > 0, new, old)


def _lowest(dtype: torch.dtype) -> int | bool:
    return False if dtype is torch.bool else torch.iinfo(dtype).min
