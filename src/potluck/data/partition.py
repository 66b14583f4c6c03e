"""Partitions: which client holds which training rows.

If there are enough rows for all clients, the rows are divided among them once, at the start (`FixedPartition`). If
there are not, each client draws its rows from its own random stream when it is needed (`DrawnPartition`), so that cost
follows the cohort and not the population.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core import Examples, SettingsError, numpy_stream
from potluck.data.feature_order import feature_order
from potluck.data.settings import Data

Rows = NDArray[np.int64]
Counts = NDArray[np.int64]


LEAST = 10
"""The fewest rows of a client in a balanced partition."""

TRIES = 1000
"""How often a balanced partition is drawn before giving up."""


class RowPool:
    """The rows of one split (train, validation or test), with the stratum of each: usually its class."""

    def __init__(self, examples: Examples, strata: Rows, count: int) -> None:
        self.examples = examples
        self.strata = strata
        order = np.argsort(strata, kind="stable")
        ends = np.cumsum(np.bincount(strata, minlength=count))
        self.by_stratum: list[Rows] = np.split(order, ends[:-1])
        """The rows of each stratum."""
        self.sizes: Counts = np.bincount(strata, minlength=count)

    def __len__(self) -> int:
        return len(self.strata)

    def pick(self, rows: Rows) -> Examples:
        """These rows as examples."""
        return self.examples.pick(torch.from_numpy(rows))

    def subset(self, rows: Rows) -> RowPool:
        """These rows as a pool of their own, which numbers them from 0."""
        return RowPool(self.pick(rows), self.strata[rows], len(self.by_stratum))

    def stratum_counts(self, rows: Rows) -> Counts:
        """How many of these rows each stratum has."""
        return np.bincount(self.strata[rows], minlength=len(self.by_stratum))

    def sample_in_proportion(self, mix: Counts, size: int, rng: np.random.Generator) -> Rows:
        """At most `size` different rows in the proportions of `mix`; fewer if a stratum has too few rows.

        Strata that the pool does not have are left out of the proportions.
        """
        wanted = np.where(self.sizes > 0, mix, 0).astype(np.float64)
        if wanted.sum() == 0 or size == 0:
            return np.zeros(0, np.int64)
        part = wanted / wanted.sum()
        asked = part > 0
        size = min(size, int(np.floor((self.sizes[asked] / part[asked]).min() + 1e-9)))
        counts = np.minimum(apportion(part, size), self.sizes)
        return np.concatenate([rng.choice(rows, n, replace=False) for rows, n in self._rows_and_counts(counts)])

    def sample_with_replacement(self, counts: Counts, rng: np.random.Generator) -> Rows:
        """`counts[s]` rows of each stratum s; a row may come more than once."""
        return np.concatenate([rows[rng.integers(0, len(rows), n)] for rows, n in self._rows_and_counts(counts)])

    def _rows_and_counts(self, counts: Counts) -> list[tuple[Rows, int]]:
        """Rows and count of each stratum with a count above 0; never an empty list, which cannot be concatenated."""
        found = [(self.by_stratum[stratum], int(counts[stratum])) for stratum in np.flatnonzero(counts)]
        return found or [(np.zeros(1, np.int64), 0)]


def strata_of(examples: Examples, classes: int) -> tuple[Rows, int]:
    """The stratum of each row and the number of strata: the classes, or one stratum if rows have no single class."""
    y = examples.column("y")
    if classes == 0 or y.dim() > 1:
        return np.zeros(len(examples), np.int64), 1
    return y.numpy(), classes


def apportion(part: NDArray[np.float64], size: int) -> Counts:
    """Whole numbers in these proportions whose sum is `size`: the largest remainders are rounded up."""
    exact = part * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = size - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def stratified_order(strata: NDArray[Any], rng: np.random.Generator) -> Rows:
    """A random order of the rows in which every stretch has nearly the same mix of strata as the whole."""
    shuffled = rng.permutation(len(strata))
    order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    sizes = np.unique(strata, return_counts=True)[1]
    ranks = np.concatenate([np.arange(size) for size in sizes])
    places = (ranks + rng.random(len(order))) / np.repeat(sizes, sizes)
    return order[np.argsort(places, kind="stable")]


def put_users_first(users: Rows, order: Rows, ends: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Reorders rows so that the splits up to the last of `ends` hold whole users, chosen at random.

    Returns the new order and the ends, each moved to the nearest place where a user ends.
    """
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


def put_public_rows_first(order: Rows, strata: NDArray[Any], data: Data, rng: np.random.Generator) -> Rows:
    """Reorders rows so that the first `data.public` are those of `data.public_partition`.

    `order` is stratified, and `strata` has the stratum of every row of the source.
    """
    if data.public_partition == "stratified":
        return order
    if data.public_partition == "iid":
        return rng.permutation(order)
    _, kinds, sizes = np.unique(strata[order], return_inverse=True, return_counts=True)
    counts = _limited_counts(rng.dirichlet(np.full(len(sizes), data.alpha)), sizes, data.public, rng)
    by_kind = np.split(np.argsort(kinds, kind="stable"), np.cumsum(sizes)[:-1])
    first = np.concatenate([places[:count] for places, count in zip(by_kind, counts, strict=True)])
    return np.concatenate([order[first], np.delete(order, first)])


class Partition(Protocol):
    """Which rows of the training pool each client holds: a pure function of the client's index."""

    def __getitem__(self, index: int) -> Rows: ...

    @property
    def samples(self) -> int:
        """Mean number of rows per client, rounded up."""


class FixedPartition:
    """Rows divided among clients: `owners[i]` holds `rows[i]`; each owner keeps at most its first `most` rows."""

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


class DrawnPartition:
    """Rows that each client draws with replacement from its own random stream."""

    def __init__(self, pool: RowPool, data: Data, samples: int, seed: int) -> None:
        self._pool, self._data, self._samples, self._seed = pool, data, samples, seed
        self._present = np.flatnonzero(pool.sizes)

    def __getitem__(self, index: int) -> Rows:
        rng = numpy_stream(self._seed, "shard", index)
        if self._data.partition == "iid":
            return rng.integers(0, len(self._pool), self._samples)
        counts = np.zeros(len(self._pool.sizes), np.int64)
        if self._data.partition == "labels":
            owned = rng.choice(self._present, min(self._data.labels, len(self._present)), replace=False)
            counts[owned] = even_split(self._samples, len(owned))
        else:
            mix = rng.dirichlet(np.full(len(self._present), self._data.alpha))
            counts[self._present] = rng.multinomial(self._samples, mix)
        return self._pool.sample_with_replacement(counts, rng)

    @property
    def samples(self) -> int:
        return self._samples


def even_split(total: int, parts: int) -> Counts:
    """`total` divided into whole parts that differ by at most one; the larger parts come first."""
    return total // parts + (np.arange(parts) < total % parts)


def skewed_sizes(rows: int, clients: int, data: Data, rng: np.random.Generator) -> Counts:
    """How many of the rows each client holds, by `data.quantity_skew`; all rows are held.

    Quantity skew of NIID-Bench (Li et al., ICDE 2022, arXiv:2102.02079) draws the shares again until everyone has ten
    rows. Here everyone has `data.least` rows first, and the shares divide the rest: that always ends.
    """
    left = rows - data.least * clients
    if left < 0:
        raise SettingsError(
            f"data.quantity_skew = '{data.quantity_skew}' needs data.least = {data.least} rows for each of {clients} "
            f"clients, and there are {rows}; lower data.least or data.clients"
        )
    if data.quantity_skew == "dirichlet":
        shares = rng.dirichlet(np.full(clients, data.beta))
    else:
        weights = np.arange(1, clients + 1, dtype=np.float64) ** -data.beta
        shares = rng.permutation(weights / weights.sum())
    return data.least + apportion(shares, left)


def partition_iid(
    pool: RowPool, clients: int, samples: int | None, rng: np.random.Generator, sizes: Counts | None = None
) -> FixedPartition:
    """A random split into equal shards, or into shards of these sizes."""
    order = rng.permutation(len(pool))
    if sizes is None:
        sizes = even_split(len(pool), clients) if samples is None else np.full(clients, samples)
    owners = np.repeat(np.arange(clients), sizes)
    return FixedPartition(order[: len(owners)], owners, clients)


def partition_by_labels(
    pool: RowPool,
    clients: int,
    labels: int,
    samples: int | None,
    rng: np.random.Generator,
    sizes: Counts | None = None,
    least: int = 0,
) -> FixedPartition:
    """HeteroFL's non-IID split: each client holds one shard of each of its L labels.

    Every class is cut into L * clients / classes shards. The authors' code shuffles the shards over the clients, so
    some clients get two shards of one label; here every client has L different labels. With `sizes`, everyone has
    `least` rows, and the other rows of a class are divided in proportion to what its clients' sizes have beyond that:
    a client's rows come near its size, as far as its labels have rows.
    """
    present = np.flatnonzero(pool.sizes)
    sets = label_sets(clients, min(labels, len(present)), len(present), rng)
    most = None if samples is None or sizes is not None else even_split(samples, sets.shape[1])
    floor = even_split(least, sets.shape[1])
    rows, holders = [], []
    for position, label in enumerate(present):
        owners, places = np.nonzero(sets == position)
        order = rng.permutation(pool.by_stratum[label])
        if sizes is None:
            shards = np.array_split(order, max(len(owners), 1))
        else:
            kept = order[: round(len(order) * sizes.sum() / len(pool))]
            shards = _shards_by_size(kept, floor[places], sizes[owners] - least)
        for owner, place, shard in zip(owners, places, shards, strict=False):
            rows.append(shard if most is None else shard[: most[place]])
            holders.append(np.full(len(rows[-1]), owner))
    return FixedPartition(np.concatenate(rows), np.concatenate(holders), clients)


def _shards_by_size(order: Rows, floors: Counts, more: Counts) -> list[Rows]:
    """A shard of these rows for each client: as many as its floor, and of the rest in proportion to `more`."""
    if not len(floors):
        return []
    rest = len(order) - int(floors.sum())
    if rest < 0:
        raise SettingsError(
            f"data.quantity_skew finds a label with {len(order)} rows for {len(floors)} clients, of which data.least "
            f"wants {int(floors.sum())}; lower data.least"
        )
    part = more / more.sum() if more.sum() else np.full(len(more), 1 / len(more))
    return np.split(order, np.cumsum(floors + apportion(part, rest))[:-1])


def label_sets(clients: int, labels: int, classes: int, rng: np.random.Generator) -> Rows:
    """The classes of each client: L different ones. Every class has equally many clients, or one more."""
    left = even_split(clients * labels, classes)[rng.permutation(classes)]
    sets = np.empty((clients, labels), np.int64)
    for client in range(clients):
        # Take the classes with the most shards left, ties at random: so no class ever has more shards left than there
        # are clients to come.
        sets[client] = np.argsort(rng.random(classes) - left)[:labels]
        left[sets[client]] -= 1
    return sets[rng.permutation(clients)]


def partition_by_class_dirichlet(
    pool: RowPool, clients: int, alpha: float, rng: np.random.Generator, most: float = math.inf
) -> FixedPartition:
    """Divides each class among the clients in proportions from a symmetric Dirichlet; some clients may get no rows.

    A client that has `most` rows or more gets none of the classes still to come.
    """
    rows, owners, held = [], [], np.zeros(clients, np.int64)
    for label in np.flatnonzero(pool.sizes):
        order = rng.permutation(pool.by_stratum[label])
        shares = rng.dirichlet(np.full(clients, alpha))
        if (full := held >= most).any():
            shares[full] = 0
            # Where nothing is left of the shares, all who may have more get the same.
            shares = shares / shares.sum() if shares.sum() > 0 else ~full / np.count_nonzero(~full)
        cuts = np.round(np.cumsum(shares)[:-1] * len(order)).astype(np.int64)
        rows.append(order)
        owners.append(np.searchsorted(cuts, np.arange(len(order)), side="right"))
        held += np.bincount(owners[-1], minlength=clients)
    return FixedPartition(np.concatenate(rows), np.concatenate(owners), clients)


def partition_balanced(pool: RowPool, clients: int, alpha: float, rng: np.random.Generator) -> FixedPartition:
    """Divides each class as above, with at most an equal share before a client's last class; drawn again until every
    client has ten rows.

    After the code of NIID-Bench (Li et al., ICDE 2022, arXiv:2102.02079), which many papers use.
    """
    if len(pool) < LEAST * clients:
        raise SettingsError(
            f"data.balance needs {LEAST} rows for each of {clients} clients, and there are {len(pool)}; lower "
            "data.clients, or leave it out"
        )
    for _ in range(TRIES):
        found = partition_by_class_dirichlet(pool, clients, alpha, rng, len(pool) / clients)
        if min(map(len, map(found.__getitem__, range(clients)))) >= LEAST:
            return found
    raise SettingsError(
        f"data.balance finds no shards of {LEAST} rows or more in {TRIES} tries; raise data.alpha = {alpha:g}"
    )


def partition_by_client_dirichlet(
    pool: RowPool, sizes: Counts, alpha: float, rng: np.random.Generator
) -> FixedPartition:
    """Rows for each client, as many as its size, in its own label mix drawn from a symmetric Dirichlet.

    After Hsu et al. (2019, arXiv:1909.06335): if a class runs out, the mix goes on without it.
    """
    present = np.flatnonzero(pool.sizes)
    queues = [rng.permutation(pool.by_stratum[label]) for label in present]
    used = np.zeros(len(present), np.int64)
    rows = []
    for size in sizes.tolist():
        mix = rng.dirichlet(np.full(len(present), alpha))
        counts = _limited_counts(mix, pool.sizes[present] - used, size, rng)
        rows += [queue[start : start + n] for queue, start, n in zip(queues, used, counts, strict=True)]
        used += counts
    return FixedPartition(np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), len(sizes))


def _limited_counts(mix: NDArray[np.float64], left: Counts, samples: int, rng: np.random.Generator) -> Counts:
    """Rows of each class: `samples` in all, drawn by this mix, at most `left` of each class."""
    counts = np.zeros(len(left), np.int64)
    while (missing := samples - int(counts.sum())) > 0:
        open_ = np.where(counts < left, mix, 0.0)
        if open_.sum() <= 0:  # the classes of the mix are used up: take from all others
            open_ = (left - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, open_ / open_.sum()), left)
    return counts


Divide = Callable[[RowPool, int, np.random.Generator], FixedPartition]
"""Divides the rows of a pool among so many clients."""


def partition_by_tier(
    pool: RowPool, tiers: Sequence[str], data: Data, divide: Divide, rng: np.random.Generator
) -> FixedPartition:
    """Divides rows among tiers, so that labels or features lean by tier, and those of each tier among its clients.

    `tiers`: the tier of each client. `divide`: the partition within a tier.
    """
    asked, by_label = f"data.lean = {data.lean:g}", data.lean_by == "labels"
    present = np.flatnonzero(pool.sizes)
    clients = {name: np.flatnonzero(np.array(tiers) == name) for name in dict.fromkeys(tiers)}
    if len(clients) < 2:
        raise SettingsError(f"{asked} needs clients of two tiers or more, and there is one; leave it out")
    if by_label and len(present) < len(clients):
        raise SettingsError(f"{asked} has {len(present)} classes for {len(clients)} tiers; leave it out")
    sizes = np.array([len(theirs) for theirs in clients.values()])
    if by_label:
        homes, groups = home_tiers(len(present), sizes, rng), [pool.by_stratum[label] for label in present]
    else:
        homes, groups = stretches(feature_order(pool.examples), sizes, rng)
    rows, owners = [], []
    for (name, theirs), held in zip(clients.items(), leaning_rows(groups, homes, sizes, data.lean, rng), strict=True):
        if len(held) < len(theirs) * (data.samples or 1):
            each = "" if data.samples is None else f" with data.samples = {data.samples}"
            raise SettingsError(
                f"{asked} leaves tier '{name}' {len(held)} rows for {len(theirs)} clients{each}; lower it"
            )
        found = divide(pool.subset(held), len(theirs), rng)
        shards = [held[found[index]] for index in range(len(theirs))]
        rows += shards
        owners.append(np.repeat(theirs, [len(shard) for shard in shards]))
    return FixedPartition(np.concatenate(rows), np.concatenate(owners), len(tiers))


def leaning_rows(
    groups: Sequence[Rows], homes: Rows, sizes: Counts, lean: float, rng: np.random.Generator
) -> list[Rows]:
    """The rows of each tier: a share `lean` of every group at its home, and of the rest as many as it has clients.

    `groups`: the rows of each class, or of each stretch of features; `homes`: the tier of each; `sizes`: the number of
    clients of each tier.
    """
    found: list[list[Rows]] = [[] for _ in sizes]
    others = []
    for group, home in zip(groups, homes, strict=True):
        order = rng.permutation(group)
        stay = round(lean * len(order))
        found[home].append(order[:stay])
        others.append(order[stay:])
    rest = rng.permutation(np.concatenate(others))
    cuts = np.cumsum(apportion(sizes / sizes.sum(), len(rest)))[:-1]
    return [np.concatenate([*own, more]) for own, more in zip(found, np.split(rest, cuts), strict=True)]


def stretches(order: Rows, sizes: Counts, rng: np.random.Generator) -> tuple[Rows, list[Rows]]:
    """Cuts rows in order into a stretch for each tier, as long as its share of the clients; the tier of each, and its
    rows. Which tier comes first is drawn."""
    homes = rng.permutation(len(sizes))
    cuts = np.cumsum(apportion(sizes[homes] / sizes.sum(), len(order)))[:-1]
    return homes, np.split(order, cuts)


def home_tiers(classes: int, sizes: Counts, rng: np.random.Generator) -> Rows:
    """The home tier of each class, at random: as many classes for a tier as its share of the clients, at least one."""
    counts = apportion(sizes / sizes.sum(), classes)
    for tier in np.flatnonzero(counts == 0):
        counts[np.argmax(counts)] -= 1
        counts[tier] += 1
    return rng.permutation(np.repeat(np.arange(len(sizes)), counts))


def partition_by_user(users: Rows, order: Rows, most: int | None, rng: np.random.Generator) -> FixedPartition:
    """One client per user, at most `most` rows each. `users`: the user of each row; `order`: of each client."""
    clients = np.full(max(users.max(initial=0), order.max()) + 1, -1)
    clients[order] = np.arange(len(order))
    rows = rng.permutation(len(users))
    owners = clients[users[rows]]
    return FixedPartition(rows[owners >= 0], owners[owners >= 0], len(order), most)


def group_users(users: Rows, count: int, groups: int, rng: np.random.Generator) -> Rows:
    """The group of each of `count` users; -1 for users without rows.

    Groups get nearly equal numbers of rows: the users with the most rows first (ties at random), each to the group
    that has the fewest rows so far.
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


def partition_by_groups(
    users: Rows, groups: Rows, clients: int, most: int | None, rng: np.random.Generator
) -> FixedPartition:
    """The rows of each group divided among its clients, at most `most` rows each. `groups`: the group of each user.

    Clients share groups in order: with six clients and three groups, the first two clients have the first group.
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
    return FixedPartition(rows, first[owner] + ranks % sharers[owner], clients, most)
