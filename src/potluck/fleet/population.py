"""The population: which clients there are, of which tier, who takes part in a round, and who drops out of it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Literal, Protocol

from potluck.core import Client, SettingsError, Tier, numpy_stream
from potluck.fleet.devices import DeviceFit
from potluck.fleet.draw import Draw, Odds, odds, tier_sizes
from potluck.fleet.profiles import Profile, profile


@dataclass(frozen=True)
class Fleet:
    """The settings under [fleet]: availability and dropout of clients, and the limits of their devices."""

    tiers: Literal["fixed", "redrawn"] = "fixed"
    """fixed: the tier of a client never changes; the first clients have the first tier, and so on by the shares.
    redrawn: in every round the tier of every client is drawn again by the shares."""
    draw: Draw = "uniform"
    """How a cohort is drawn. uniform: so many of all clients. by_tier: the same share of each tier, at least one where
    the cohort allows. poisson: each client takes part by itself with the probability cohort / clients, so that the size
    varies; it is drawn whether it is available or not."""
    availability: float = 1.0
    """The probability that a client is available in a round."""
    dropout: float = 0.0
    """The probability that a client of the cohort drops out during the round."""
    file: str = ""
    """A fleet fitted to a list of devices (`potluck fit-fleet` writes it): every client then has a device of its own,
    with memory and speed drawn from the fit. The [[tier]]s are listed weakest devices first, and share the fleet by
    speed. Availability follows from the fit too, if its list had traces."""
    round_hours: float = 1.0
    """Hours from one round to the next, for availability by the hour that fleet.file gives."""
    widths: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """The widths from which a tier with width = "fit" takes the largest that its device can train."""
    memory: float = 0.5
    """The share of a device's memory that training may take, for tiers with width = "fit" or depth = "fit"."""
    seconds: float | None = None
    """The modelled seconds that a round may take on a device, for tiers with width = "fit" or depth = "fit"; None: no
    limit."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        if self.tiers not in ("fixed", "redrawn"):
            raise ValueError(f"fleet.tiers = '{self.tiers}' must be 'fixed' or 'redrawn'")
        if self.draw not in ("uniform", "by_tier", "poisson"):
            raise ValueError(f"fleet.draw = '{self.draw}' must be 'uniform', 'by_tier' or 'poisson'")
        if self.draw == "by_tier" and self.tiers == "redrawn":
            raise ValueError('fleet.draw = "by_tier" needs tiers that stay the same; leave fleet.tiers = "redrawn" out')
        if not 0 < self.availability <= 1:
            raise ValueError(f"fleet.availability = {self.availability} must be above 0 and at most 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"fleet.dropout = {self.dropout} must be at least 0 and below 1")
        if not self.widths or not all(0 < width <= 1 for width in self.widths):
            raise ValueError(f"fleet.widths = {list(self.widths)} must hold numbers above 0 and at most 1")
        if not 0 < self.round_hours <= 10_000:
            raise ValueError(f"fleet.round_hours = {self.round_hours} must be above 0 and at most 10000")
        if self.file and self.tiers != "fixed":
            raise ValueError(f"fleet.tiers = '{self.tiers}' does not go with fleet.file: a client keeps its device")
        if not 0 < self.memory <= 1:
            raise ValueError(f"fleet.memory = {self.memory} must be above 0 and at most 1")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"fleet.seconds = {self.seconds} must be above 0; leave it out for no limit")


class Clients(Protocol):
    """The clients of a federation: simulated (`Population`), or real nodes that come and go."""

    @property
    def tiers(self) -> Sequence[Tier]: ...
    @property
    def devices(self) -> Mapping[str, Profile]:
        """The device of each tier, by name; empty where nothing is priced."""

    @property
    def clients(self) -> int:
        """How many there are."""

    @property
    def present(self) -> int:
        """How many can take part."""

    def client(self, index: int, round: int) -> Client: ...
    def index(self, id: str) -> int: ...
    def device(self, client: Client) -> Profile:
        """The device of this client, for its costs."""

    def cohort(self, round: int, size: int, wanted: Callable[[Client], bool] = ...) -> list[Client]: ...
    def everyone(self, round: int) -> Iterator[Client]: ...
    def drops(self, id: str, round: int, attempt: int = 0) -> bool: ...
    def counts(self) -> dict[str, int]: ...
    def scored(self, count: int, round: int) -> list[Client]: ...

    def odds(self, size: int) -> Mapping[str, Odds]:
        """For each tier, by its name, what is known of its part in a cohort of this size before it is drawn."""

    def shares(self) -> Mapping[str, float]:
        """The share of clients in each tier, by its name, if it is another than the settings say; else empty."""

    def begin(self, round: int, quorum: int) -> None:
        """Called before every attempt at a round: takes in who came and who left."""

    def end(self, round: int, answered: Mapping[str, bool]) -> list[dict[str, Any]]:
        """Called after a committed round, with who was asked and who answered; returns events for the ledger."""

    def facts(self) -> dict[str, Any]:
        """What the manifest should say of them, if it may change during a run; "tiers": the clients of each tier."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of them."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up the state of a checkpoint."""


def running_shares(shares: Sequence[float]) -> list[float]:
    """The running sum of the tiers' shares, as parts of the whole; the last is 1."""
    total = math.fsum(shares)
    return [*(min(share / total, 1.0) for share in accumulate(shares[:-1])), 1.0]


def tier_ends(shares: Sequence[float], clients: int) -> list[int]:
    """Where each tier ends among the clients, if tiers are fixed: the first clients have the first tier, and so on."""
    # Round the running sum, not each share, so that every client has exactly one tier.
    return [math.floor(share * clients + 0.5) for share in running_shares(shares)]


def tier_bands(shares: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The part of the fleet that each tier has, as shares of it from the weakest device on; tiers are listed so."""
    ends = running_shares(list(shares.values()))
    return dict(zip(shares, zip([0.0, *ends], ends, strict=False), strict=True))


class Population:
    """All clients of a federation. None is kept in memory: everything is a pure function of seed, round and index."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        clients: int,
        settings: Fleet,
        seed: int,
        devices: Mapping[str, Profile] | None = None,
        fit: DeviceFit | None = None,
    ) -> None:
        """`devices` are those of the tiers, by name; None: their built-in profiles. `fit` is what fleet.file holds."""
        if not tiers:
            raise SettingsError("there is no tier; add one under [[tier]]")
        for tier in tiers:
            if not (tier.share > 0 and math.isfinite(tier.share)):
                raise SettingsError(f"tier '{tier.name}' has share = {tier.share}; give a number above 0")
        if len({tier.name for tier in tiers}) < len(tiers):
            raise SettingsError("two tiers have the same name; give each its own under [[tier]]")
        if clients < 1:
            raise SettingsError(f"data.clients = {clients} is below 1")
        self.tiers, self.clients, self.settings = tuple(tiers), clients, settings
        self._seed, self._fit = seed, fit
        self.devices = {tier.name: profile(tier.profile) for tier in tiers} if devices is None else dict(devices)
        self._shares = running_shares([tier.share for tier in tiers])
        self._ends = tier_ends([tier.share for tier in tiers], clients)
        self._bands = tier_bands({tier.name: tier.share for tier in tiers})

    @property
    def present(self) -> int:
        """The number of clients that can take part; with redrawn tiers the mean, rounded."""
        counts = self.counts()
        return sum(counts[tier.name] for tier in self.tiers if not tier.absent)

    def client(self, index: int, round: int) -> Client:
        """The client with this index, with its tier in this round."""
        if not 0 <= index < self.clients:
            raise IndexError(f"client {index} of {self.clients}")
        if self.settings.tiers == "fixed":
            place = bisect_right(self._ends, index)
        else:
            place = bisect_right(self._shares, self._uniform("tier", round, index))
        return Client(f"c{index}", self.tiers[place])

    def index(self, id: str) -> int:
        """The index of the client with this id."""
        with suppress(ValueError):
            index = int(id[1:])
            if id == f"c{index}" and 0 <= index < self.clients:
                return index
        raise ValueError(f"'{id}' is no client of this fleet; its clients are c0 to c{self.clients - 1}")

    def device(self, client: Client) -> Profile:
        """The device of this client: that of its tier, or with a fit its own."""
        like = self.devices[client.tier.name]
        if self._fit is None:
            return like
        return self._fit.device(like, self._seed, self.index(client.id), self._bands[client.tier.name])

    def cohort(self, round: int, size: int, wanted: Callable[[Client], bool] = lambda client: True) -> list[Client]:
        """`size` available (and wanted) clients, drawn as `fleet.draw` says, sorted by index; fewer if fewer are there.

        It depends only on seed and round, so every method meets the same clients. Clients of an absent tier are drawn
        and then left out, so the others come as often as they would with them.
        """

        def taken(indices: Iterator[int]) -> Iterator[Client]:
            there = (self.client(index, round) for index in indices if self._available(index, round))
            return (client for client in there if wanted(client))

        if self.settings.draw == "by_tier":
            sizes = tier_sizes(list(self.counts().values()), size)
            tiers = zip([0, *self._ends], self._ends, sizes, strict=False)
            picked = [
                client
                for tier, (start, end, some) in enumerate(tiers)
                for client in islice(taken(self._random_order(round, start, end, tier)), some)
            ]
        elif self.settings.draw == "poisson":
            # A binomial number of clients, drawn without replacement, is the same as a coin for each client.
            rng = numpy_stream(self._seed, "poisson", round)
            count = int(rng.binomial(self.clients, min(max(size, 0) / self.clients, 1.0)))
            picked = list(taken(islice(self._random_order(round), count)))
        else:
            picked = list(islice(taken(self._random_order(round)), max(size, 0)))
        return sorted((c for c in picked if not c.tier.absent), key=lambda client: self.index(client.id))

    def odds(self, size: int) -> Mapping[str, Odds]:
        found = odds(self.settings.draw, self.counts(), size)
        there = self.settings.availability if self.settings.draw == "poisson" else 1.0
        present = [tier.name for tier in self.tiers if not tier.absent]
        return {name: found[name]._replace(expected=found[name].expected * there) for name in present}

    def everyone(self, round: int) -> Iterator[Client]:
        """Every client that is available in this round, sorted by index; none of an absent tier."""
        found = (self.client(index, round) for index in range(self.clients) if self._available(index, round))
        return (client for client in found if not client.tier.absent)

    def drops(self, id: str, round: int, attempt: int = 0) -> bool:
        """Whether this client drops out during this attempt of this round."""
        if self.settings.dropout == 0:
            return False
        return self._uniform("drop", round, self.index(id), attempt) < self.settings.dropout

    def counts(self) -> dict[str, int]:
        """The number of clients of each tier; with redrawn tiers the mean, rounded."""
        starts = [0, *self._ends[:-1]]
        return {tier.name: end - start for tier, start, end in zip(self.tiers, starts, self._ends, strict=True)}

    def scored(self, count: int, round: int) -> list[Client]:
        """The clients that score models on their own splits: the same ones every time."""
        size = min(count, self.clients)
        picked = numpy_stream(self._seed, "scored").choice(self.clients, size, replace=False, shuffle=False)
        clients = (self.client(int(index), round) for index in sorted(picked))
        return [client for client in clients if not client.tier.absent]

    def shares(self) -> Mapping[str, float]:
        return {}

    def begin(self, round: int, quorum: int) -> None:
        """Nobody comes or goes in a simulation."""

    def end(self, round: int, answered: Mapping[str, bool]) -> list[dict[str, Any]]:
        return []

    def facts(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

    def _random_order(self, round: int, start: int = 0, end: int | None = None, *key: int) -> Iterator[int]:
        """All clients (from `start`, before `end`) in random order: a Fisher-Yates shuffle that goes only as far as it
        is read."""
        rng = numpy_stream(self._seed, "cohort", round, *key)
        end = self.clients if end is None else end
        moved: dict[int, int] = {}
        for front in range(start, end):
            taken = int(rng.integers(front, end))
            yield moved.get(taken, taken)
            moved[taken] = moved.pop(front, front)

    def _available(self, index: int, round: int) -> bool:
        if self._fit is not None and not self._fit.is_available(self._seed, index, round * self.settings.round_hours):
            return False
        return self.settings.availability == 1 or self._uniform("available", round, index) < self.settings.availability

    def _uniform(self, purpose: str, *key: int) -> float:
        return float(numpy_stream(self._seed, purpose, *key).random())
