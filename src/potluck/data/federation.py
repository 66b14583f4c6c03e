"""A federation's data: the server's sets, and each client's shard when it is asked for."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import torch

from potluck.core import Examples, SettingsError, dice
from potluck.data import partition as deals
from potluck.data.augment import CropFlip
from potluck.data.pool import Pool, Rows, spread
from potluck.data.settings import Data
from potluck.data.source import Source

DRAWN = 20
"""Samples of each client in a population larger than the data, where data.samples does not say."""


class Shard:
    """What one client holds; any of the three splits may be empty. Each is dealt when it is first asked for."""

    def __init__(self, federation: Federation, index: int, rows: Rows) -> None:
        self._federation, self._index, self._rows = federation, index, rows

    @cached_property
    def train(self) -> Examples:
        return self._federation._train.pick(self._rows)

    @cached_property
    def validation(self) -> Examples:
        return self._federation._own("validation", self._index, self._rows)

    @cached_property
    def test(self) -> Examples:
        return self._federation._own("test", self._index, self._rows)

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The classes among its training rows."""
        return self._federation._labels(self.train)


class Federation:
    """Who holds which rows of a source: a pure function of source, settings and seed.

    The server's sets and the clients' training rows are disjoint. A client's own validation and test rows come from
    the server's sets in the client's label mix, so clients may share them; with the partition "user" they are the
    user's own rows.
    """

    def __init__(self, source: Source, data: Data, seed: int) -> None:
        self.classes, self.shape = source.classes, source.shape
        self._data, self._seed = data, seed
        _check(source, data)
        self._users = source.users.numpy() if data.partition == "user" and source.users is not None else None
        cuts = self._cut(source)
        kinds, count = _kinds(source.train, source.classes)
        train, validation, test = (
            Pool(source.train.pick(torch.from_numpy(cuts[name])), kinds[cuts[name]], count)
            for name in ("train", "validation", "test")
        )
        if source.test is not None and self._users is None:
            test = Pool(source.test, _kinds(source.test, source.classes)[0], count)
        train.examples.vary = CropFlip() if data.augment == "crop_flip" else None
        self._train, self._validation, self._test = train, validation, test
        self.public = source.train.pick(torch.from_numpy(cuts["public"]))
        self.validation = validation.examples
        self.test = source.test if source.test is not None else test.examples
        self.clients = data.clients
        self._deal(cuts)
        self._shard = lru_cache(maxsize=1024)(self._made)

    @property
    def samples(self) -> int:
        """Training rows of a client, on average, rounded up."""
        return self._hands.samples

    def shard(self, index: int) -> Shard:
        """What this client holds."""
        if not 0 <= index < self.clients:
            raise IndexError(f"client {index} of {self.clients}")
        return self._shard(index)

    def _cut(self, source: Source) -> dict[str, Rows]:
        """The source's training rows, cut into the four sets."""
        data, rows = self._data, len(source.train)
        strata = self._users if self._users is not None else _kinds(source.train, source.classes)[0]
        order = spread(strata, dice(self._seed, "pools"))
        test = 0 if source.test is not None and self._users is None else round(data.test * rows)
        ends = np.cumsum([test, round(data.validation * rows), data.public])
        if ends[-1] >= rows:
            raise SettingsError(
                f"data.test, data.validation and data.public take {ends[-1]} of {rows} rows "
                "and leave none to train on; lower one of them"
            )
        parts = np.split(order, ends)
        return {
            name: np.sort(part) for name, part in zip(("test", "validation", "public", "train"), parts, strict=True)
        }

    def _deal(self, cuts: dict[str, Rows]) -> None:
        """Say who holds which training rows and, with the partition "user", which of the others."""
        self._mine: dict[str, deals.Deal] = {}
        if self._users is None:
            self._hands: deals.Partition = self._partition()
            return
        data = self._data
        order = dice(self._seed, "users").permutation(int(self._users.max()) + 1)
        # Who has so few rows that none is left to train on is no client.
        order = order[np.isin(order, self._users[cuts["train"]])][: data.clients]
        self.clients = len(order)
        most = {"train": data.samples, "validation": data.client_validation, "test": data.client_test}
        for name, limit in most.items():
            rng = dice(self._seed, "partition", name)
            self._mine[name] = deals.by_user(self._users[cuts[name]], order, limit, rng)
        self._hands = self._mine["train"]

    def _partition(self) -> deals.Partition:
        data, pool, rng = self._data, self._train, dice(self._seed, "partition")
        if data.clients * (data.samples or 1) > len(pool):
            return deals.Drawn(pool, data, data.samples or DRAWN, self._seed)
        if data.partition == "iid":
            return deals.iid(pool, data.clients, data.samples, rng)
        if data.partition == "labels":
            return deals.by_labels(pool, data.clients, data.labels, data.samples, rng)
        if data.samples is not None:
            return deals.by_mix(pool, data.clients, data.alpha, data.samples, rng)
        return deals.by_dirichlet(pool, data.clients, data.alpha, rng)

    def _made(self, index: int) -> Shard:
        return Shard(self, index, self._hands[index])

    def _own(self, name: str, index: int, train: Rows) -> Examples:
        """The client's own split of a pool: the user's rows there, or rows in the client's label mix."""
        pools = {"validation": self._validation, "test": self._test}
        sizes = {"validation": self._data.client_validation, "test": self._data.client_test}
        if name in self._mine:
            return pools[name].pick(self._mine[name][index])
        rng = dice(self._seed, "shard", index, name)
        return pools[name].pick(pools[name].like(self._train.mix(train), sizes[name], rng))

    def _labels(self, train: Examples) -> tuple[int, ...]:
        if self.classes == 0 or len(train) == 0:
            return ()
        return tuple(label for label in np.unique(train.column("y").numpy()).tolist() if label >= 0)


def _check(source: Source, data: Data) -> None:
    if data.partition == "user" and source.users is None:
        raise SettingsError(f"data.partition = 'user' needs a user column, and {source.name} has none; choose another")
    if data.partition in ("labels", "dirichlet") and (source.classes == 0 or source.train.columns["y"].dim() > 1):
        raise SettingsError(f"data.partition = '{data.partition}' needs one class per row; choose 'iid' or 'user'")
    if data.augment == "crop_flip" and len(source.shape) != 3:
        raise SettingsError(f"data.augment = 'crop_flip' needs images; {source.name} has rows of {source.shape}")
    if data.partition == "labels" and data.labels > source.classes:
        raise SettingsError(f"data.labels = {data.labels}, but {source.name} has {source.classes} classes; lower it")


def _kinds(examples: Examples, classes: int) -> tuple[Rows, int]:
    """The kind of each row and how many kinds there are: classes, or one kind where rows have no single class."""
    y = examples.column("y")
    if classes == 0 or y.dim() > 1:
        return np.zeros(len(examples), np.int64), 1
    return y.numpy(), classes
