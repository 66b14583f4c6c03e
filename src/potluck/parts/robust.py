"""Robust means: what the server takes as the mean of the clients' models, if some clients may be hostile.

Trimmed mean and median of every entry: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498. Krum: Blanchard et al., "Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757.

Every client counts the same, because a weight is what a client says of itself. Each entry is treated over the clients
that hold it; an entry that one client holds has its value, and nobody protects it. Integers take the lower median. All
replies of a round are kept in memory until its end, as float64 while a tensor is treated; and the server must see each
of them, so secure aggregation is not possible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, Weight
from potluck.parts.mean import OverlapMean, _as_weights, _factor, _product_index
from potluck.parts.part import Mask


@dataclass(frozen=True)
class Weighted:
    """The weighted mean, which one client can move as far as it likes."""

    sums: ClassVar[bool] = True
    """Whether the sum of the replies is all that it needs."""
    name: Literal["weighted"] = "weighted"

    def start(self, whole: Arrays) -> OverlapMean:
        """A mean without contributions."""
        return OverlapMean(whole)


@dataclass(frozen=True)
class _RobustRule:
    """A mean that looks at each reply by itself."""

    sums: ClassVar[bool] = False

    def start(self, whole: Arrays) -> OverlapMean:
        return RobustMean(whole, self)

    def choose(self, replies: list[Contribution], start: Arrays) -> list[Contribution]:
        """The replies that count: here, all."""
        return replies

    def combine(self, ordered: Tensor, count: Tensor) -> Tensor:
        """One value for each entry. Along the first dimension are the clients' values in ascending order; the first
        `count` of an entry are those of clients that hold it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Trimmed(_RobustRule):
    """The mean of every entry without its highest and its lowest values."""

    name: Literal["trimmed"] = "trimmed"
    share: float = 0.2
    """The share of an entry's holders that is left out at each end, rounded up; one or two values always stay."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"method.mean.share = {self.share} must be at least 0 and below 0.5")

    def combine(self, ordered: Tensor, count: Tensor) -> Tensor:
        cut = torch.minimum(torch.ceil(count * self.share - 1e-9), torch.div(count - 1, 2, rounding_mode="floor"))
        return _mean_between(ordered, cut, count - cut)


@dataclass(frozen=True)
class Median(_RobustRule):
    """The median of every entry; of two middle values, their mean."""

    name: Literal["median"] = "median"

    def combine(self, ordered: Tensor, count: Tensor) -> Tensor:
        cut = torch.div(count - 1, 2, rounding_mode="floor")
        return _mean_between(ordered, cut, count - cut)


@dataclass(frozen=True)
class Krum(_RobustRule):
    """The reply that is nearest to its neighbours, among replies of the same network; or the mean of a few such.

    Two replies are compared over the entries that both hold. Fewer than three of a network are all taken.
    """

    name: Literal["krum"] = "krum"
    hostile: float = 0.2
    """The share of hostile clients to expect, rounded up: a reply is judged by its distance to all others but these."""
    best: int = 1
    """How many replies of each network are averaged; replies as near as the last of them count too."""

    def __post_init__(self) -> None:
        if not 0 <= self.hostile < 0.5:
            raise ValueError(f"method.mean.hostile = {self.hostile} must be at least 0 and below 0.5")
        if self.best < 1:
            raise ValueError(f"method.mean.best = {self.best} is below 1")

    def choose(self, replies: list[Contribution], start: Arrays) -> list[Contribution]:
        alike: dict[Any, list[Contribution]] = {}
        for reply in replies:
            alike.setdefault(tuple((name, tensor.shape) for name, tensor in reply.arrays.items()), []).append(reply)
        return [reply for group in alike.values() for reply in self._nearest(group, start)]

    def combine(self, ordered: Tensor, count: Tensor) -> Tensor:
        return _mean_between(ordered, torch.zeros_like(count), count)

    def _nearest(self, group: list[Contribution], start: Arrays) -> list[Contribution]:
        if len(group) < 3:
            return group
        apart = [[math.inf] * len(group) for _ in group]
        for a, one in enumerate(group):
            for b in range(a):
                apart[a][b] = apart[b][a] = _distance(one, group[b], start)
        neighbours = max(1, len(group) - math.ceil(self.hostile * len(group) - 1e-9) - 2)
        # Sums in ascending order, so that they do not depend on the order of the clients.
        scores = [sum(sorted(others)[:neighbours]) for others in apart]
        last = sorted(scores)[min(self.best, len(group)) - 1]
        return [reply for reply, score in zip(group, scores, strict=True) if score <= last]


MeanRule: TypeAlias = Weighted | Trimmed | Median | Krum


@dataclass(frozen=True, eq=False)
class Contribution:
    """One reply, as it was added to a mean."""

    arrays: Arrays
    held: Any
    weight: Weight

    def spread(self, name: str, start: Arrays) -> tuple[str, Tensor, Tensor] | None:
        """A tensor in the shape of the whole, and which entries of it count; None if none do.

        The returned name is the whole's.
        """
        tensor, place = self.arrays[name], self.held.place(name)
        mask = self.held.masks.get(name) if isinstance(self.held, Mask) else None
        counts = _as_weights(_factor(self.weight, name), tensor, mask) > 0
        if not bool(counts.any()):
            return None
        if not place.dims:
            return place.name, tensor, counts
        whole = start[place.name]
        values, held = torch.zeros_like(whole), torch.zeros_like(whole, dtype=torch.bool)
        for there, here in place.blocks(tensor.shape):
            at = _product_index(there)
            values[at], held[at] = tensor[here], counts[here]
        return place.name, values, held


class RobustMean(OverlapMean):
    """A robust mean of models that overlap only in part; entries that no client sent keep their value.

    >>> mean = RobustMean({"w": torch.tensor([0.0])}, Median())
    >>> for value in (1.0, 2.0, 900.0):
    ...     mean.add({"w": torch.tensor([value])}, Mask({}))
    >>> mean.value()["w"].tolist()
    [2.0]
    """

    def __init__(self, start: Arrays, rule: _RobustRule) -> None:
        super().__init__(start)
        self._rule, self._replies = rule, list[Contribution]()
        self._found: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None

    def add(self, arrays: Arrays, held: Any, weight: Weight = 1.0, position: int | None = None) -> None:
        self._replies.append(Contribution(arrays, held, weight))
        self._found = None

    def value(self) -> Arrays:
        return {**self.start, **self._result()[0]}

    def covered(self, name: str) -> Tensor | bool:
        return self._result()[1].get(name, False)

    def _result(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The new tensors, and which of their entries any client sent."""
        if self._found is None:
            self._found = ({}, {})
            chosen = self._rule.choose(self._replies, self.start)
            places: dict[str, list[tuple[Contribution, str]]] = {}
            for reply in chosen:
                for name in reply.arrays:
                    places.setdefault(reply.held.place(name).name, []).append((reply, name))
            for there, sent in places.items():
                spread = [found for reply, name in sent if (found := reply.spread(name, self.start))]
                if spread:
                    values, held = (torch.stack(tensors) for tensors in list(zip(*spread, strict=True))[1:])
                    self._found[0][there], self._found[1][there] = self._combine(self.start[there], values, held)
        return self._found

    def _combine(self, old: Tensor, values: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        count = held.sum(0)
        if old.is_floating_point():
            ordered = torch.where(held, values.to(torch.float64), math.inf).sort(0).values
            new = self._rule.combine(ordered, count.clamp(min=1)).to(old.dtype)
        else:
            top = True if values.dtype is torch.bool else torch.iinfo(values.dtype).max
            ordered = torch.where(held, values, top).sort(0).values
            new = ordered.gather(0, torch.div(count.clamp(min=1) - 1, 2, rounding_mode="floor")[None])[0]
        return torch.where(count > 0, new, old), count > 0


def _mean_between(ordered: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """The mean of every entry's values from one position up to another, added in ascending order."""
    positions = torch.arange(len(ordered), device=ordered.device).reshape(-1, *[1] * (ordered.dim() - 1))
    inside = (positions >= start) & (positions < end)
    return torch.where(inside, ordered, 0.0).sum(0) / (end - start)


def _distance(one: Contribution, other: Contribution, start: Arrays) -> float:
    """The mean squared difference of two replies, over the entries that both hold; infinite if they share none."""
    total, count = 0.0, 0
    for name in one.arrays:
        if not one.arrays[name].is_floating_point():
            continue
        mine_there, theirs_there = one.spread(name, start), other.spread(name, start)
        if mine_there is None or theirs_there is None or mine_there[0] != theirs_there[0]:
            continue
        (_, mine, held), (_, theirs, too) = mine_there, theirs_there
        both = held & too
        total += float(torch.where(both, mine.double() - theirs.double(), 0.0).square().sum())
        count += int(both.sum())
    return total / count if count else math.inf
