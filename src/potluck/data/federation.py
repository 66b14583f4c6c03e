"""The data of a federation: the server's sets, and each client's shard, made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core import Augmentation, Examples, SettingsError, numpy_stream
from potluck.data import partition
from potluck.data.augment import CropFlip, CropFlipCutout
from potluck.data.flower_partition import flower_shards
from potluck.data.partition import (
    Counts,
    RowPool,
    Rows,
    put_public_rows_first,
    put_users_first,
    strata_of,
    stratified_order,
)
from potluck.data.settings import FLOWER, Data
from potluck.data.source import InputScaling, Source

DRAWN_SAMPLES = 20
"""Rows of each client if there are more clients than rows and data.samples is not set."""


class ClientShard:
    """The data of one client: train, validation and test. Any of them may be empty; each is made at its first use."""

    def __init__(self, federation: Federation, index: int, rows: Rows) -> None:
        self._federation, self._index, self._rows = federation, index, rows

    @cached_property
    def train(self) -> Examples:
        return self._federation._train.pick(self._rows)

    @cached_property
    def validation(self) -> Examples:
        return self._federation._client_split("validation", self._index, self._rows)

    @cached_property
    def test(self) -> Examples:
        return self._federation._client_split("test", self._index, self._rows)

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The classes among its training rows."""
        return self._federation._labels(self.train)


class Federation:
    """Which rows of a source each client and the server hold: a pure function of source, settings and seed.

    The server's sets and the clients' training rows are disjoint. A client's own validation and test rows are drawn
    from the server's sets in the client's label mix, so two clients may hold the same row. With the partitions "user"
    and "groups" they are the users' own rows, unless whole users are held out. `public` is another source for the
    server's public rows. `tiers` is the tier of each client, which data.lean needs.
    """

    def __init__(
        self, source: Source, data: Data, seed: int, public: Source | None = None, tiers: Sequence[str] = ()
    ) -> None:
        self.classes, self.shape = source.classes, source.shape
        self._data, self._seed, self._tiers = data, seed, tiers
        _check_settings(source, data)
        natural = data.partition in ("user", "groups")
        self._users, self._named = (
            _user_of_each_row(source) if natural or data.held_out == "users" else (np.zeros(0, np.int64), 0)
        )
        self._users_keep_rows = natural and data.held_out == "rows"
        self._source_users = None if source.users is None else source.users.numpy()
        splits = self._split(source)
        strata, count = strata_of(source.train, source.classes)
        train, validation, test = (
            RowPool(source.train.pick(torch.from_numpy(splits[name])), strata[splits[name]], count)
            for name in ("train", "validation", "test")
        )
        if source.test is not None and not self._users_keep_rows:
            test = RowPool(source.test, strata_of(source.test, source.classes)[0], count)
        train.examples.augment = _augmentation(source, data)
        self._train, self._validation, self._test = train, validation, test
        rows = torch.from_numpy(splits["public"])
        self.public = source.train.pick(rows) if public is None else unrelated_public_rows(public, source, data, seed)
        self.validation = validation.examples
        self.test = source.test if source.test is not None else test.examples
        self.clients = data.clients
        self._assign_rows(splits)
        self._shard = lru_cache(maxsize=1024)(self._make_shard)

    @property
    def samples(self) -> int:
        """Mean number of training rows per client, rounded up."""
        return self._partition.samples

    def shard(self, index: int) -> ClientShard:
        """The data of the client with this index."""
        if not 0 <= index < self.clients:
            raise IndexError(f"client {index} of {self.clients}")
        return self._shard(index)

    def label_counts(self, index: int) -> Counts:
        """How many training rows of each class the client with this index holds; all rows as one if they have none."""
        return self._train.stratum_counts(self._partition[index])

    @property
    def idle_rows(self) -> int:
        """Training rows that no client holds, if a partitioner of flwr-datasets left some over."""
        if not self._data.partition.startswith(FLOWER):
            return 0
        return len(self._train) - sum(len(self._partition[index]) for index in range(self.clients))

    def _split(self, source: Source) -> dict[str, Rows]:
        """Splits the source's training rows into test, validation, public and train."""
        data, rows = self._data, len(source.train)
        seed = self._seed if data.test_seed is None else data.test_seed
        strata = self._users if self._users_keep_rows else strata_of(source.train, source.classes)[0]
        order = stratified_order(strata, numpy_stream(seed, "pools"))
        test = 0 if source.test is not None and not self._users_keep_rows else round(data.test * rows)
        held = np.cumsum([test, round(data.validation * rows)])
        if data.held_out == "users":
            order, held = put_users_first(self._users, order, held, numpy_stream(seed, "strangers"))
        ends = [*held, held[-1] + data.public]
        if ends[-1] >= rows:
            raise SettingsError(
                f"data.test, data.validation and data.public take {ends[-1]} of {rows} rows "
                "and leave none to train on; lower one of them"
            )
        kinds, rng = strata_of(source.train, source.classes)[0], numpy_stream(seed, "public rows")
        order = np.concatenate([order[: held[-1]], put_public_rows_first(order[held[-1] :], kinds, data, rng)])
        parts = np.split(order, ends)
        return {
            name: np.sort(part) for name, part in zip(("test", "validation", "public", "train"), parts, strict=True)
        }

    def _assign_rows(self, splits: dict[str, Rows]) -> None:
        """Decides who holds which training rows and, if users keep their own, which validation and test rows."""
        self._own_rows: dict[str, partition.FixedPartition] = {}
        if self._data.partition not in ("user", "groups"):
            self._partition: partition.Partition = self._make_partition(splits["train"])
            return
        by_user = self._data.partition == "user"
        assign = self._by_user(splits["train"]) if by_user else self._by_groups(splits["train"])
        self._partition = assign("train", splits["train"], self._data.samples)
        if self._users_keep_rows:
            self._own_rows["validation"] = assign("validation", splits["validation"], self._data.client_validation)
            self._own_rows["test"] = assign("test", splits["test"], self._data.client_test)

    def _by_user(self, train: Rows) -> Callable[[str, Rows, int | None], partition.FixedPartition]:
        """A function that divides rows among clients, one client per user."""
        order = numpy_stream(self._seed, "users").permutation(self._named)
        # A user who has no row left to train on is not a client.
        order = order[np.isin(order, self._users[train])][: self._data.clients]
        if not len(order):
            raise SettingsError("data.partition = 'user' finds no user with rows left to train on; lower data.test")
        self.clients = len(order)

        def assign(name: str, rows: Rows, most: int | None) -> partition.FixedPartition:
            rng = numpy_stream(self._seed, "partition", name)
            return partition.partition_by_user(self._users[rows], order, most, rng)

        return assign

    def _by_groups(self, train: Rows) -> Callable[[str, Rows, int | None], partition.FixedPartition]:
        """A function that divides rows among clients, whose users are put into groups."""
        users, clients = self._users, self._data.clients
        count = self._data.groups or clients
        groups = partition.group_users(users[train], int(users.max()) + 1, count, numpy_stream(self._seed, "groups"))

        def assign(name: str, rows: Rows, most: int | None) -> partition.FixedPartition:
            rng = numpy_stream(self._seed, "partition", name)
            return partition.partition_by_groups(users[rows], groups, clients, most, rng)

        return assign

    def _make_partition(self, train: Rows) -> partition.Partition:
        data, pool, rng = self._data, self._train, numpy_stream(self._seed, "partition")
        if data.partition.startswith(FLOWER):
            columns = dict(self._columns_to_divide_by(train))
            found, self.clients = flower_shards(data, columns, len(pool), self._seed)
            return found
        if data.lean:
            return partition.partition_by_tier(pool, self._tiers, data, self._divide, rng)
        if data.clients * (data.samples or 1) > len(pool):
            if data.quantity_skew != "none":
                raise SettingsError(
                    f"data.quantity_skew = '{data.quantity_skew}' needs rows for all clients, and {data.clients} of "
                    f"them want more than the {len(pool)} there are; lower data.clients or data.samples"
                )
            return partition.DrawnPartition(pool, data, data.samples or DRAWN_SAMPLES, self._seed)
        return self._divide(pool, data.clients, rng)

    def _columns_to_divide_by(self, train: Rows) -> Iterator[tuple[str, NDArray[Any]]]:
        """The label and the user of each training row, as far as there are any."""
        labels = self._train.examples.column("y")
        if labels.dim() == 1:
            yield "label", labels.numpy()
        if self._source_users is not None:
            yield "user", self._source_users[train]

    def _divide(self, pool: RowPool, clients: int, rng: np.random.Generator) -> partition.FixedPartition:
        """Divides the rows of a pool among clients, without regard to their tiers."""
        data, sizes = self._data, None
        if data.quantity_skew != "none":
            rows = len(pool) if data.samples is None else clients * data.samples
            sizes = partition.skewed_sizes(rows, clients, data, rng)
        if data.partition == "iid":
            return partition.partition_iid(pool, clients, data.samples, rng, sizes)
        if data.partition == "labels":
            return partition.partition_by_labels(pool, clients, data.labels, data.samples, rng, sizes, data.least)
        if sizes is None and data.samples is not None:
            sizes = np.full(clients, data.samples)
        if sizes is not None:
            return partition.partition_by_client_dirichlet(pool, sizes, data.alpha, rng)
        if data.balance:
            return partition.partition_balanced(pool, clients, data.alpha, rng)
        return partition.partition_by_class_dirichlet(pool, clients, data.alpha, rng)

    def _make_shard(self, index: int) -> ClientShard:
        return ClientShard(self, index, self._partition[index])

    def _client_split(self, name: str, index: int, train: Rows) -> Examples:
        """A client's validation or test rows: its users' own rows, or rows in its label mix."""
        pools = {"validation": self._validation, "test": self._test}
        sizes = {"validation": self._data.client_validation, "test": self._data.client_test}
        pool = pools[name]
        if name in self._own_rows:
            return pool.pick(self._own_rows[name][index])
        rng = numpy_stream(self._seed, "shard", index, name)
        return pool.pick(pool.sample_in_proportion(self._train.stratum_counts(train), sizes[name], rng))

    def _labels(self, train: Examples) -> tuple[int, ...]:
        if self.classes == 0 or len(train) == 0:
            return ()
        return tuple(label for label in np.unique(train.column("y").numpy()).tolist() if label >= 0)


def unrelated_public_rows(other: Source, source: Source, data: Data, seed: int) -> Examples:
    """`data.public` rows of another source, as `data.public_partition` says and with its own input scaling.

    They have inputs and no labels: a label of another set of classes would be learned as a class of this source.
    """
    if any(one.train.columns["x"].dtype == torch.int64 for one in (other, source)):
        raise SettingsError(
            "data.public_from needs rows of numbers, not of tokens: two vocabularies give the same token other "
            "meanings; leave data.public_from out"
        )
    if other.shape != source.shape:
        raise SettingsError(
            f"data.public_from has rows of {other.shape}, {source.name} has {source.shape}; "
            "set data.public_from.shape or data.public_from.size to make them equal"
        )
    if data.public > len(other.train):
        raise SettingsError(f"data.public = {data.public}, but data.public_from has {len(other.train)} rows; lower it")
    strata = strata_of(other.train, other.classes)[0]
    order = stratified_order(strata, numpy_stream(seed, "public"))
    order = put_public_rows_first(order, strata, data, numpy_stream(seed, "public rows"))
    rows = torch.from_numpy(np.sort(order[: data.public]))
    return Examples({"x": other.train.pick(rows).column("x")}, prepare=other.train.prepare)


def _check_settings(source: Source, data: Data) -> None:
    for name, value in (("partition", data.partition), ("held_out", data.held_out)):
        if value in ("user", "groups", "users") and source.users is None:
            raise SettingsError(
                f"data.{name} = '{value}' needs a user column, and {source.name} has none; choose another value"
            )
    if data.partition in ("labels", "dirichlet") and (source.classes == 0 or source.train.columns["y"].dim() > 1):
        raise SettingsError(f"data.partition = '{data.partition}' needs one class per row; choose 'iid' or 'user'")
    if data.lean and data.partition not in ("iid", "dirichlet"):
        raise SettingsError(
            f"data.lean = {data.lean:g} needs data.partition = 'iid' or 'dirichlet', not '{data.partition}'; "
            "change one of them"
        )
    if data.lean and data.lean_by == "features" and source.train.columns["x"].dtype == torch.int64:
        raise SettingsError(
            f"data.lean_by = 'features' needs inputs of numbers, and {source.name} has tokens; choose 'labels'"
        )
    several = source.classes == 0 or source.train.columns["y"].dim() > 1
    if data.lean and data.lean_by == "labels" and several:
        raise SettingsError(f"data.lean = {data.lean:g} needs one class per row; leave it out")
    if data.public_partition == "dirichlet" and (source.classes == 0 or source.train.columns["y"].dim() > 1):
        raise SettingsError("data.public_partition = 'dirichlet' needs one class per row; choose 'stratified' or 'iid'")
    if data.augment != "none" and len(source.shape) != 3:
        raise SettingsError(
            f"data.augment = '{data.augment}' needs images; {source.name} has rows of {source.shape}; leave it out"
        )
    if data.partition == "labels" and data.labels > source.classes:
        raise SettingsError(f"data.labels = {data.labels}, but {source.name} has {source.classes} classes; lower it")


def _augmentation(source: Source, data: Data) -> Augmentation | None:
    """The random changes to training images that the settings ask for."""
    if data.augment == "none":
        return None
    if data.augment == "crop_flip":
        return CropFlip()
    prepare, (_, height, width) = source.train.prepare, source.shape
    found = CropFlipCutout((height, width), prepare.mean if isinstance(prepare, InputScaling) else (0.0,))
    if min(height, width) <= found.side:
        raise SettingsError(
            f"data.augment = 'crop_flip_cutout' cuts squares of {found.side}x{found.side} out of images; {source.name} "
            f"has {height}x{width}; leave it out, or set data.size"
        )
    return found


def _user_of_each_row(source: Source) -> tuple[Rows, int]:
    """The user of each row, and the number of named users. A row without a user counts as a user of its own."""
    assert source.users is not None
    users = source.users.numpy().copy()
    named, alone = int(users.max()) + 1, users < 0
    users[alone] = named + np.arange(np.count_nonzero(alone))
    return users, named
