"""Partitions: who holds which training rows.

A population that the data suffices for divides it up once, at the start (`Deal`, memory as the data). A larger one is
`Drawn`: each client draws its rows from its own stream when it is asked for, so cost follows the cohort.
"""

from __future__ import annotations

import heapq
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from potluck.core import SettingsError, numpy_stream
from potluck.data.pool import Counts, Pool, Rows
from potluck.data.settings import Data


class Partition(Protocol):
    """Who holds which rows of the training pool: a pure function of the client's index."""

    def __getitem__(self, index: int) -> Rows: ...

    @property
    def samples(self) -> int:
        """Rows of a client, on average, rounded up."""


class Deal:
    """Rows divided up among clients: each of these rows to its owner, no owner more than the first `most` of them."""

    def __init__(self, rows: Rows, owners: Rows, clients: int, most: int | None = None) -> None:
        self._rows = rows[np.argsort(owners, kind="stable")]
        self._ends = np.cumsum(np.bincount(owners, minlength=clients))
        self._most = most

    def __getitem__(self, index: int) -> Rows:
        start = self._ends[index - 1] if index else 0
        return self._rows[start : self._ends[index]][: self._most]

    @property
    def samples(self) -> int:
        held = np.diff(self._ends, prepend=0)
        most = len(self._rows) if self._most is None else self._most
        return math.ceil(float(np.minimum(held, most).mean()))


class Drawn:
    """Rows drawn with replacement by each client from its own stream."""

    def __init__(self, pool: Pool, data: Data, samples: int, seed: int) -> None:
        self._pool, self._data, self._samples, self._seed = pool, data, samples, seed
        self._there = np.flatnonzero(pool.sizes)

    def __getitem__(self, index: int) -> Rows:
        rng = numpy_stream(self._seed, "shard", index)
        if self._data.partition == "iid":
            return rng.integers(0, len(self._pool), self._samples)
        counts = np.zeros(len(self._pool.sizes), np.int64)
        if self._data.partition == "labels":
            owned = rng.choice(self._there, min(self._data.labels, len(self._there)), replace=False)
            counts[owned] = even(self._samples, len(owned))
        else:
            mix = rng.dirichlet(np.full(len(self._there), self._data.alpha))
            counts[self._there] = rng.multinomial(self._samples, mix)
        return self._pool.again(counts, rng)

    @property
    def samples(self) -> int:
        return self._samples


def even(total: int, parts: int) -> Counts:
    """A total in whole parts that differ by one at most, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def iid(pool: Pool, clients: int, samples: int | None, rng: np.random.Generator) -> Deal:
    """A random equal split."""
    order = rng.permutation(len(pool))
    sizes = even(len(pool), clients) if samples is None else np.full(clients, samples)
    owners = np.repeat(np.arange(clients), sizes)
    return Deal(order[: len(owners)], owners, clients)


def by_labels(pool: Pool, clients: int, labels: int, samples: int | None, rng: np.random.Generator) -> Deal:
    """HeteroFL's non-IID split: each client holds one shard of each of its L labels.

    Every class is cut into L * clients / classes shards. The authors' code shuffles the shards over the clients, so
    that some hold two of the same label; here every client has L different ones.
    """
    there = np.flatnonzero(pool.sizes)
    sets = label_sets(clients, min(labels, len(there)), len(there), rng)
    most = None if samples is None else even(samples, sets.shape[1])
    rows, holders = [], []
    for position, kind in enumerate(there):
        owners, places = np.nonzero(sets == position)
        shards = np.array_split(rng.permutation(pool.of_kind[kind]), max(len(owners), 1))
        for owner, place, shard in zip(owners, places, shards, strict=False):
            rows.append(shard if most is None else shard[: most[place]])
            holders.append(np.full(len(rows[-1]), owner))
    return Deal(np.concatenate(rows), np.concatenate(holders), clients)


def label_sets(clients: int, labels: int, classes: int, rng: np.random.Generator) -> Rows:
    """Which classes each client owns: L different ones, every class by equally many clients (or one more)."""
    left = even(clients * labels, classes)[rng.permutation(classes)]
    sets = np.empty((clients, labels), np.int64)
    for client in range(clients):
        # Those with the most shards left, ties by lot: so a class never has more shards left than clients remain.
        sets[client] = np.argsort(rng.random(classes) - left)[:labels]
        left[sets[client]] -= 1
    return sets[rng.permutation(clients)]


def by_dirichlet(pool: Pool, clients: int, alpha: float, rng: np.random.Generator) -> Deal:
    """Each class is divided among the clients in proportions drawn from a symmetric Dirichlet; some may get nothing."""
    rows, owners = [], []
    for kind in np.flatnonzero(pool.sizes):
        order = rng.permutation(pool.of_kind[kind])
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(order)).astype(np.int64)
        rows.append(order)
        owners.append(np.searchsorted(cuts, np.arange(len(order)), side="right"))
    return Deal(np.concatenate(rows), np.concatenate(owners), clients)


def by_mix(pool: Pool, clients: int, alpha: float, samples: int, rng: np.random.Generator) -> Deal:
    """Equally many rows for each client, in a label mix of its own drawn from a symmetric Dirichlet.

    As Hsu et al. (2019, arXiv:1909.06335) do it: where a class runs out, the mix goes on without it.
    """
    there = np.flatnonzero(pool.sizes)
    queues = [rng.permutation(pool.of_kind[kind]) for kind in there]
    used = np.zeros(len(there), np.int64)
    rows = []
    for _ in range(clients):
        counts = _mixed(rng.dirichlet(np.full(len(there), alpha)), pool.sizes[there] - used, samples, rng)
        rows += [queue[start : start + n] for queue, start, n in zip(queues, used, counts, strict=True)]
        used += counts
    return Deal(np.concatenate(rows), np.repeat(np.arange(clients), samples), clients)


def _mixed(mix: NDArray[np.float64], left: Counts, samples: int, rng: np.random.Generator) -> Counts:
    """So many rows in this mix, no more of a kind than are left of it."""
    counts = np.zeros(len(left), np.int64)
    while (missing := samples - int(counts.sum())) > 0:
        open_ = np.where(counts < left, mix, 0.0)
        if open_.sum() <= 0:  # none of the mix is left: whatever there is
            open_ = (left - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, open_ / open_.sum()), left)
    return counts


def by_user(users: Rows, order: Rows, most: int | None, rng: np.random.Generator) -> Deal:
    """One client per user, at most so many rows each. `users`: whose each row is; `order`: the user of each client."""
    seats = np.full(max(users.max(initial=0), order.max()) + 1, -1)
    seats[order] = np.arange(len(order))
    rows = rng.permutation(len(users))
    owners = seats[users[rows]]
    return Deal(rows[owners >= 0], owners[owners >= 0], len(order), most)


def grouped(users: Rows, count: int, groups: int, rng: np.random.Generator) -> Rows:
    """The group of each of `count` users, by number; -1 for users without rows.

    Groups get nearly equal rows: the largest users first, ties by lot, each to the group that has the fewest so far.
    """
    sizes = np.bincount(users, minlength=count)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")][: np.count_nonzero(sizes)]
    if len(order) < groups:
        raise SettingsError(
            f"data.partition = 'groups' has {len(order)} users for {groups} groups; set data.groups lower"
        )
    found, least = np.full(len(sizes), -1), [(0, group) for group in range(groups)]
    for user in order:
        held, group = heapq.heappop(least)
        found[user] = group
        heapq.heappush(least, (held + int(sizes[user]), group))
    return found


def by_groups(users: Rows, groups: Rows, clients: int, most: int | None, rng: np.random.Generator) -> Deal:
    """The rows of each group divided among its clients, at most so many each. `groups`: the group of each user.

    Clients share groups in order: with six clients and three groups, the first two have the first group.
    """
    count = int(groups.max()) + 1
    of_client = np.arange(clients) * count // clients
    first, sharers = np.searchsorted(of_client, np.arange(count)), np.bincount(of_client)
    rows = rng.permutation(len(users))
    rows = rows[groups[users[rows]] >= 0]
    rows = rows[np.argsort(groups[users[rows]], kind="stable")]
    owner = groups[users[rows]]
    sizes = np.bincount(owner, minlength=count)
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return Deal(rows, first[owner] + ranks % sharers[owner], clients, most)
