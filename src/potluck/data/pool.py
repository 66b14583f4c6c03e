"""Pools: rows set aside for one purpose, and draws from them that follow a label mix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core import Examples

Rows = NDArray[np.int64]
Counts = NDArray[np.int64]


class Pool:
    """Rows set aside for one purpose, with the kind (usually the class) of each."""

    def __init__(self, examples: Examples, kinds: Rows, count: int) -> None:
        self.examples = examples
        self.kinds = kinds
        order = np.argsort(kinds, kind="stable")
        ends = np.cumsum(np.bincount(kinds, minlength=count))
        self.of_kind: list[Rows] = np.split(order, ends[:-1])
        """The rows of each kind."""
        self.sizes: Counts = np.bincount(kinds, minlength=count)

    def __len__(self) -> int:
        return len(self.kinds)

    def pick(self, rows: Rows) -> Examples:
        return self.examples.pick(torch.from_numpy(rows))

    def mix(self, rows: Rows) -> Counts:
        """How many of these rows are of each kind."""
        return np.bincount(self.kinds[rows], minlength=len(self.of_kind))

    def like(self, mix: Counts, size: int, rng: np.random.Generator) -> Rows:
        """At most this many rows, none twice, in these proportions; fewer where a kind runs short, or none at all.

        Kinds that the pool lacks are left out of the proportions.
        """
        wanted = np.where(self.sizes > 0, mix, 0).astype(np.float64)
        if wanted.sum() == 0 or size == 0:
            return np.zeros(0, np.int64)
        part = wanted / wanted.sum()
        asked = part > 0
        size = min(size, int(np.floor((self.sizes[asked] / part[asked]).min() + 1e-9)))
        counts = np.minimum(apportion(part, size), self.sizes)
        return np.concatenate([rng.choice(rows, n, replace=False) for rows, n in self._each(counts)])

    def again(self, counts: Counts, rng: np.random.Generator) -> Rows:
        """So many rows of each kind, with replacement."""
        return np.concatenate([rows[rng.integers(0, len(rows), n)] for rows, n in self._each(counts)])

    def _each(self, counts: Counts) -> list[tuple[Rows, int]]:
        """The kinds that are asked for, never an empty list."""
        each = [(self.of_kind[kind], int(counts[kind])) for kind in np.flatnonzero(counts)]
        return each or [(np.zeros(1, np.int64), 0)]


def apportion(part: NDArray[np.float64], size: int) -> Counts:
    """Whole numbers that add up to `size` in these proportions: the largest remainders are rounded up."""
    exact = part * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = size - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def spread(kinds: NDArray[Any], rng: np.random.Generator) -> Rows:
    """A random order of the rows in which every stretch has nearly the mix of kinds of the whole."""
    shuffled = rng.permutation(len(kinds))
    order = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    sizes = np.unique(kinds, return_counts=True)[1]
    ranks = np.concatenate([np.arange(size) for size in sizes])
    places = (ranks + rng.random(len(order))) / np.repeat(sizes, sizes)
    return order[np.argsort(places, kind="stable")]


def kinds_of(examples: Examples, classes: int) -> tuple[Rows, int]:
    """The kind of each row and how many kinds there are: classes, or one kind where rows have no single class."""
    y = examples.column("y")
    if classes == 0 or y.dim() > 1:
        return np.zeros(len(examples), np.int64), 1
    return y.numpy(), classes


def whole_users(users: Rows, order: Rows, ends: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """This order of rows with those of whole users first, drawn by lot, and ends moved to where a user ends."""
    places = rng.permutation(int(users.max()) + 1)[users]
    between = np.cumsum(np.bincount(places))
    moved, last = [], 0
    for size in np.diff(ends, prepend=0):
        free = between[between > last]
        if size and len(free):
            last = int(free[np.argmin(np.abs(free - last - size))])
        moved.append(last)
    first = np.argsort(places, kind="stable")[:last]
    return np.concatenate([first, order[~np.isin(order, first)]]), np.array(moved)
