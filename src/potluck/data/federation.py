"""A federation's data: the server's sets, and each client's shard when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
import torch

from potluck.core import Examples, SettingsError, numpy_stream
from potluck.data import partition as deals
from potluck.data.augment import CropFlip
from potluck.data.pool import Pool, Rows, kinds_of, spread, whole_users
from potluck.data.settings import Data
from potluck.data.source import Source
from potluck.data.unrelated import unrelated

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
    the server's sets in the client's label mix, so clients may share them; with the partitions "user" and "groups" they
    are its users' own rows, unless whole users are held out. `public`: another source, of which the server's public
    rows are.
    """

    def __init__(self, source: Source, data: Data, seed: int, public: Source | None = None) -> None:
        self.classes, self.shape = source.classes, source.shape
        self._data, self._seed = data, seed
        _check(source, data)
        natural = data.partition in ("user", "groups")
        self._users, self._named = _users(source) if natural or data.held_out == "users" else (np.zeros(0, np.int64), 0)
        self._owning = natural and data.held_out == "rows"
        cuts = self._cut(source)
        kinds, count = kinds_of(source.train, source.classes)
        train, validation, test = (
            Pool(source.train.pick(torch.from_numpy(cuts[name])), kinds[cuts[name]], count)
            for name in ("train", "validation", "test")
        )
        if source.test is not None and not self._owning:
            test = Pool(source.test, kinds_of(source.test, source.classes)[0], count)
        train.examples.augment = CropFlip() if data.augment == "crop_flip" else None
        self._train, self._validation, self._test = train, validation, test
        rows = torch.from_numpy(cuts["public"])
        self.public = source.train.pick(rows) if public is None else unrelated(public, source, data, seed)
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
        strata = self._users if self._owning else kinds_of(source.train, source.classes)[0]
        order = spread(strata, numpy_stream(self._seed, "pools"))
        test = 0 if source.test is not None and not self._owning else round(data.test * rows)
        held = np.cumsum([test, round(data.validation * rows)])
        if data.held_out == "users":
            order, held = whole_users(self._users, order, held, numpy_stream(self._seed, "strangers"))
        ends = [*held, held[-1] + data.public]
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
        """Say who holds which training rows and, where users keep their own, which of the others."""
        self._mine: dict[str, deals.Deal] = {}
        if self._data.partition not in ("user", "groups"):
            self._hands: deals.Partition = self._partition()
            return
        deal = self._by_user(cuts["train"]) if self._data.partition == "user" else self._by_groups(cuts["train"])
        self._hands = deal("train", cuts["train"], self._data.samples)
        if self._owning:
            self._mine["validation"] = deal("validation", cuts["validation"], self._data.client_validation)
            self._mine["test"] = deal("test", cuts["test"], self._data.client_test)

    def _by_user(self, train: Rows) -> Callable[[str, Rows, int | None], deals.Deal]:
        """How rows are dealt to one client per user."""
        order = numpy_stream(self._seed, "users").permutation(self._named)
        # Who has so few rows that none is left to train on is no client.
        order = order[np.isin(order, self._users[train])][: self._data.clients]
        if not len(order):
            raise SettingsError("data.partition = 'user' finds no user with rows left to train on; lower data.test")
        self.clients = len(order)

        def deal(name: str, rows: Rows, most: int | None) -> deals.Deal:
            return deals.by_user(self._users[rows], order, most, numpy_stream(self._seed, "partition", name))

        return deal

    def _by_groups(self, train: Rows) -> Callable[[str, Rows, int | None], deals.Deal]:
        """How rows are dealt to clients of groups of users."""
        users, clients = self._users, self._data.clients
        count = self._data.groups or clients
        groups = deals.grouped(users[train], int(users.max()) + 1, count, numpy_stream(self._seed, "groups"))

        def deal(name: str, rows: Rows, most: int | None) -> deals.Deal:
            return deals.by_groups(users[rows], groups, clients, most, numpy_stream(self._seed, "partition", name))

        return deal

    def _partition(self) -> deals.Partition:
        data, pool, rng = self._data, self._train, numpy_stream(self._seed, "partition")
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
        rng = numpy_stream(self._seed, "shard", index, name)
        return pools[name].pick(pools[name].like(self._train.mix(train), sizes[name], rng))

    def _labels(self, train: Examples) -> tuple[int, ...]:
        if self.classes == 0 or len(train) == 0:
            return ()
        return tuple(label for label in np.unique(train.column("y").numpy()).tolist() if label >= 0)


def _check(source: Source, data: Data) -> None:
    for name, value in (("partition", data.partition), ("held_out", data.held_out)):
        if value in ("user", "groups", "users") and source.users is None:
            raise SettingsError(
                f"data.{name} = '{value}' needs a user column, and {source.name} has none; choose another"
            )
    if data.partition in ("labels", "dirichlet") and (source.classes == 0 or source.train.columns["y"].dim() > 1):
        raise SettingsError(f"data.partition = '{data.partition}' needs one class per row; choose 'iid' or 'user'")
    if data.augment == "crop_flip" and len(source.shape) != 3:
        raise SettingsError(f"data.augment = 'crop_flip' needs images; {source.name} has rows of {source.shape}")
    if data.partition == "labels" and data.labels > source.classes:
        raise SettingsError(f"data.labels = {data.labels}, but {source.name} has {source.classes} classes; lower it")


def _users(source: Source) -> tuple[Rows, int]:
    """Whose each row is, and how many users have a name: nobody's rows count as users of one row each, after these."""
    assert source.users is not None
    users = source.users.numpy().copy()
    named, alone = int(users.max()) + 1, users < 0
    users[alone] = named + np.arange(np.count_nonzero(alone))
    return users, named
