"""Aggregation: the weighted mean of models that overlap only in part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, BufferLayout, FlatArrays, Weight
from potluck.parts.part import Mask, Part, Place

BLOCK = 16
"""Sums run over fixed blocks of this many tasks, then over blocks, so that the bits do not depend on workers."""

CACHED = 1 << 17
"""Entries that a CPU treats at once, so that what one operation writes is still in its cache for the next."""

FlatKey: TypeAlias = tuple[BufferLayout, tuple[str, ...]]
"""Tensors that share a buffer: their layout there, and their names in the whole."""


class HasPlaces(Protocol):
    """A `Part` or a `Mask`: it knows where each small tensor belongs in the whole."""

    def place(self, name: str) -> Place: ...


@dataclass
class Sums:
    """Weighted sums and weights of every entry, in float64; for integers the maximum instead."""

    totals: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, float | Tensor] = field(default_factory=dict)
    """One number as long as every contribution was entire; after the first partial one a tensor that broadcasts to the
    shape of the total (dimensions that are never cut, such as a kernel's, have length one)."""
    maxima: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """(maximum, seen) of integer tensors."""
    flat: dict[FlatKey, Tensor] = field(default_factory=dict)
    """Buffers: each holds the totals of several tensors, so that one operation can treat all of them."""

    def merge(self, other: Sums) -> None:
        """Adds the sums of another block."""
        added: set[str] = set()
        for key, buffer in other.flat.items():
            if key in self.flat:
                self.flat[key].add_(buffer)
                added.update(key[1])
            elif self.totals.keys().isdisjoint(key[1]):
                self.flat[key] = buffer
        for name, total in other.totals.items():
            if name in added:
                self.weights[name] = self.weights[name] + other.weights[name]
            elif name in self.totals:
                self.totals[name].add_(total)
                self.weights[name] = self.weights[name] + other.weights[name]
            else:
                self.totals[name], self.weights[name] = total, other.weights[name]
        for name, (maximum, seen) in other.maxima.items():
            if name in self.maxima:
                mine, had = self.maxima[name]
                self.maxima[name] = (torch.maximum(mine, maximum), had | seen)
            else:
                self.maxima[name] = (maximum, seen)


class OverlapMean:
    """Weighted mean of models that overlap only in part; entries that no client sent keep their value.

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
        self._indicators: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, arrays: Arrays, held: Any, weight: Weight = 1.0, position: int | None = None) -> None:
        """Adds one contribution. `position` is the index of its task among all tasks of the fold."""
        position = self._next if position is None else position
        if position < self._next:
            raise ValueError(f"position {position} comes after {self._next - 1}: contributions are added in order")
        self._next = position + 1
        if position // BLOCK != self._number:
            self._close_block()
            self._number = position // BLOCK
        self._indicators.clear()
        if isinstance(arrays, FlatArrays) and isinstance(weight, float) and self._add_flat(arrays, held, weight):
            arrays = arrays.others
        entire: dict[float, dict[str, Tensor]] = {}
        for name, tensor in arrays.items():
            factor = _factor(weight, name)
            if isinstance(factor, Tensor) or factor > 0:
                self._add(held, name, tensor, factor, entire)
        for factor, tensors in entire.items():
            self._add_entire(tensors, factor)

    def add_block(self, block: Sums, position: int) -> None:
        """Adds the sums of the whole block of tasks to which this position belongs; they belong to the mean from now.

        Adding its contributions one by one gives the same bits.
        """
        number = position // BLOCK
        if number * BLOCK < self._next:
            raise ValueError(f"block {number} comes after position {self._next - 1}: blocks are added in order")
        self._close_block()
        self._block, self._number, self._next = block, number, (number + 1) * BLOCK

    @property
    def block(self) -> Sums:
        """The sums of the last block. As long as contributions belong to one block, it is the same object."""
        return self._block

    @property
    def empty(self) -> bool:
        """Whether nothing was added yet."""
        return not self._next

    def value(self) -> Arrays:
        """The mean of the entries that any client sent, the start value of all others; cast once, at the end."""
        self._close_block()
        if (whole := self._flat_value()) is not None:
            return whole
        out = dict(self.start)
        flat: set[str] = set()
        for (layout, names), buffer in self.sums.flat.items():
            if (weight := self._common_weight(names)) is not None:
                tensors = layout.cut(_flat_mean(buffer, weight))
                out |= dict(zip(names, tensors.values(), strict=True))
                flat.update(names)
        for name, total in self.sums.totals.items():
            if name not in flat:
                out[name] = _weighted_mean(self.start[name], total, self.sums.weights[name])
        for name, (maximum, seen) in self.sums.maxima.items():
            out[name] = torch.where(seen, maximum, self.start[name])
        return out

    def covered(self, name: str) -> Tensor | bool:
        """Which entries of this tensor any client sent: one bool for all entries, or one for each."""
        self._close_block()
        if name in self.sums.maxima:
            return self.sums.maxima[name][1]
        weight = self.sums.weights.get(name, 0.0)
        return (weight > 0).expand(self.start[name].shape) if isinstance(weight, Tensor) else weight > 0

    def coverage(self) -> float:
        """The share of all entries of the whole that any client sent."""
        sent = count = 0
        partly: list[Tensor] = []
        for name, tensor in self.start.items():
            covered = self.covered(name)
            if isinstance(covered, Tensor):
                partly.append(covered.sum())
            else:
                sent += tensor.numel() * covered
            count += tensor.numel()
        sent += int(torch.stack(partly).sum()) if partly else 0  # waits for a GPU once, not for each tensor
        return sent / count if count else 1.0

    def _flat_value(self) -> FlatArrays | None:
        """The mean in one buffer, if every client sent the whole model in one; else None."""
        if len(self.sums.flat) != 1 or self.sums.maxima:
            return None
        (((layout, names), buffer),) = self.sums.flat.items()
        same = names == tuple(layout.shapes) == tuple(self.start)
        weight = self._common_weight(names) if same else None
        return None if weight is None else FlatArrays(_flat_mean(buffer, weight), layout)

    def _close_block(self) -> None:
        if self._block.totals or self._block.maxima:
            self.sums.merge(self._block)
            self._block = Sums()

    def _common_weight(self, names: Iterable[str]) -> float | None:
        """The weight of all of these tensors, if it is one number."""
        first, *others = (self.sums.weights[name] for name in names)
        if isinstance(first, Tensor) or any(isinstance(other, Tensor) or other != first for other in others):
            return None
        return first

    def _add_flat(self, arrays: FlatArrays, held: Any, factor: float) -> bool:
        """Adds a whole buffer at once, with the same sums as tensor by tensor; False if that is not possible."""
        names = _names_in_whole(arrays.layout, held)
        if names is None or factor <= 0:
            return False
        block, key = self._block, (arrays.layout, names)
        if (buffer := block.flat.get(key)) is not None:
            for total, piece in zip(_pieces(buffer), _pieces(arrays.buffer), strict=True):
                total.add_(piece, alpha=factor)
            for name in names:
                block.weights[name] = block.weights[name] + factor
            return True
        shapes = zip(names, arrays.layout.shapes.values(), strict=True)
        starts = ((self.start[name], shape) for name, shape in shapes)
        if not block.totals.keys().isdisjoint(names) or any(_unlike(start, shape) for start, shape in starts):
            return False
        block.flat[key] = torch.empty_like(arrays.buffer, dtype=torch.float64)
        for total, piece in zip(_pieces(block.flat[key]), _pieces(arrays.buffer), strict=True):
            total.copy_(piece).mul_(factor)
        block.totals |= dict(zip(names, arrays.layout.cut(block.flat[key]).values(), strict=True))
        block.weights |= dict.fromkeys(names, factor)
        return True

    def _add(
        self,
        held: HasPlaces,
        name: str,
        tensor: Tensor,
        factor: float | Tensor,
        entire: dict[float, dict[str, Tensor]],
    ) -> None:
        """Adds one tensor. One that is entire in the whole waits in `entire`, by factor, and is added with others."""
        place = held.place(name)
        mask = held.masks.get(name) if isinstance(held, Mask) else None
        if not self.start[place.name].is_floating_point():
            self._add_maximum(place, tensor)
        elif isinstance(factor, Tensor) or mask is not None:
            self._add_entries(place, tensor, _as_weights(factor, tensor, mask))
        elif place.dims:
            self._add_blocks(place, tensor, factor)
        elif place.name in (waiting := entire.setdefault(factor, {})):
            self._add_entire({place.name: tensor}, factor)
        else:
            waiting[place.name] = tensor

    def _add_entire(self, tensors: Arrays, factor: float) -> None:
        """Adds tensors that are entire in the whole, by their names there."""
        for name, tensor in tensors.items():
            if tensor.shape != self.start[name].shape:
                raise ValueError(
                    f"'{name}' of shape {tuple(tensor.shape)}; the whole holds {tuple(self.start[name].shape)}"
                )
        totals, weights = self._block.totals, self._block.weights
        for names in batches([name for name in tensors if name in totals], tensors):
            torch._foreach_add_([totals[name] for name in names], [tensors[name] for name in names], alpha=factor)
            for name in names:
                weights[name] = weights[name] + factor
        for names in batches([name for name in tensors if name not in totals], tensors):
            doubles = torch._foreach_mul([tensors[name].to(torch.float64) for name in names], factor)
            totals.update(zip(names, doubles, strict=True))
            weights |= dict.fromkeys(names, factor)

    def _add_blocks(self, place: Place, tensor: Tensor, factor: float) -> None:
        sums = self._sums_of(place.name, [index is not None for index in place.dims])
        if any(isinstance(index, Tensor) for index in place.dims):
            self._add_listed(place, tensor, factor, *sums)
            return
        total, weights, tensor = map(place.unfold, (*sums, tensor))
        for there, here in place.unfolded.blocks(tensor.shape):
            total[there].add_(tensor[here], alpha=factor)
            weights[there].add_(factor)

    def _add_listed(self, place: Place, tensor: Tensor, factor: float, total: Tensor, weights: Tensor) -> None:
        """Adds a tensor whose place is index lists: a few operations, however long the lists are."""
        doubles = tensor.to(torch.float64)
        doubles = doubles if factor == 1 else doubles * factor
        lists = {dim: index for dim, index in enumerate(place.dims) if isinstance(index, Tensor)}
        _index_add(total, list(lists.items()), doubles)
        chosen = None
        for dim, index in lists.items():
            one = self._indicator(index, total.shape[dim]).view(-1, *[1] * (total.dim() - 1 - dim))
            chosen = one if chosen is None else chosen * one
        assert chosen is not None
        weights.add_(chosen, alpha=factor)

    def _indicator(self, index: Tensor, length: int) -> Tensor:
        """A vector of this length: one where the list points, else zero; tensors of one contribution share it."""
        if id(index) not in self._indicators:
            one = torch.zeros(length, dtype=torch.float64, device=index.device).index_fill_(0, index, 1.0)
            self._indicators[id(index)] = index, one
        return self._indicators[id(index)][1]

    def _add_entries(self, place: Place, tensor: Tensor, factors: Tensor) -> None:
        total, weights = self._sums_of(place.name, [True] * tensor.dim())
        weighted = torch.where(factors > 0, tensor.to(torch.float64) * factors, -0.0)
        for there, here in place.blocks(tensor.shape):
            at = _product_index(there)
            total[at] += weighted[here]
            weights[at] += factors[here]

    def _sums_of(self, name: str, full: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """The total of a tensor in this block, and its weights with at least these dimensions in full length."""
        start, block = self.start[name], self._block
        if name not in block.totals:
            # Sums start at -0.0: -0.0 + x is exactly x, also for x = -0.0.
            block.totals[name] = torch.full_like(start, -0.0, dtype=torch.float64)
        had = block.weights.get(name, 0.0)
        shape = [length if dim < len(full) and full[dim] else 1 for dim, length in enumerate(start.shape)]
        if not isinstance(had, Tensor):
            had = torch.full(shape, had, dtype=torch.float64, device=start.device)
        elif any(a < b for a, b in zip(had.shape, shape, strict=True)):
            had = had.expand([max(a, b) for a, b in zip(had.shape, shape, strict=True)]).clone()
        block.weights[name] = had
        return block.totals[name], had

    def _add_maximum(self, place: Place, tensor: Tensor) -> None:
        start = self.start[place.name]
        maximum, seen = self._block.maxima.get(place.name) or (
            torch.full_like(start, _smallest(start.dtype)),
            torch.zeros_like(start, dtype=torch.bool),
        )
        for there, here in place.blocks(tensor.shape):
            at = _product_index(there)
            maximum[at] = torch.maximum(maximum[at], tensor[here])
            seen[at] = True
        self._block.maxima[place.name] = (maximum, seen)


def _index_add(total: Tensor, lists: Sequence[tuple[int, Tensor]], more: Tensor) -> None:
    """``total[lists] += more`` for lists in some dimensions, each without repeated entries, and all of the others."""
    (dim, index), *rest = lists
    index = index.to(total.device)
    if not rest:
        total.index_add_(dim, index, more)
        return
    some = total.index_select(dim, index)
    _index_add(some, rest, more)
    total.index_copy_(dim, index, some)


def batches(names: Iterable[str], arrays: Arrays) -> Iterator[list[str]]:
    """Groups of tensors to treat by one operation: on a CPU as many as its cache holds, on a GPU all of them."""
    batch: list[str] = []
    entries = 0
    for name in names:
        if batch and arrays[name].device.type == "cpu" and entries + arrays[name].numel() > CACHED:
            yield batch
            batch, entries = [], 0
        batch.append(name)
        entries += arrays[name].numel()
    if batch:
        yield batch


def _flat_mean(total: Tensor, weight: float) -> Tensor:
    """The mean of all entries of a buffer, in float32."""
    mean = torch.empty_like(total, dtype=torch.float32)
    for new, piece in zip(_pieces(mean), _pieces(total), strict=True):
        new.copy_(piece / weight)
    return mean


def _pieces(buffer: Tensor) -> Sequence[Tensor]:
    """A buffer in pieces that a CPU's cache holds; on a GPU, in one."""
    whole = buffer.numel() <= CACHED or buffer.device.type != "cpu"
    return (buffer,) if whole else torch.split(buffer, CACHED)


def _names_in_whole(layout: BufferLayout, held: Any) -> tuple[str, ...] | None:
    """The names that these tensors have in the whole; None if they are not all entire there."""
    if not isinstance(held, Part):
        return None
    if held.entire:
        return tuple(layout.shapes)
    places = [held.place(name) for name in layout.shapes]
    return None if any(place.dims for place in places) else tuple(place.name for place in places)


def _unlike(start: Tensor, shape: tuple[tuple[int, ...], torch.dtype]) -> bool:
    return start.shape != shape[0] or start.dtype is not shape[1]


def _factor(weight: Weight, name: str) -> float | Tensor:
    found = weight.get(name, weight.get("", 0.0)) if isinstance(weight, Mapping) else weight
    return found if isinstance(found, Tensor) else float(found)


def _as_weights(factor: float | Tensor, tensor: Tensor, mask: Tensor | None) -> Tensor:
    """The weight of every entry of a small tensor."""
    weights = torch.as_tensor(factor, dtype=torch.float64, device=tensor.device)
    if mask is not None:
        weights = weights * mask
    return weights.expand(tensor.shape)


def _product_index(there: tuple[slice | Tensor, ...]) -> tuple[slice | Tensor, ...]:
    """An index for the Cartesian product of its lists, as slices give it by themselves."""
    lists = [dim for dim, index in enumerate(there) if isinstance(index, Tensor)]
    if len(lists) < 2:
        return there
    out = list(there)
    for order, dim in enumerate(lists):
        index = there[dim]
        assert isinstance(index, Tensor)
        out[dim] = index.reshape(-1, *[1] * (len(lists) - 1 - order))
    return tuple(out)


def _weighted_mean(old: Tensor, total: Tensor, weight: float | Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        return (total / weight).to(old.dtype)
    new = (total / torch.where(weight > 0, weight, 1.0)).to(old.dtype)
    everywhere = old.device.type == "cpu" and bool((weight > 0).all())  # a GPU would have to be waited for
    return new if everywhere else torch.where(weight > 0, new, old)


def _smallest(dtype: torch.dtype) -> int | bool:
    return False if dtype is torch.bool else torch.iinfo(dtype).min
