"""The roster: the nodes of a federation, of which tier, with how many samples, and who takes part in a round."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from potluck.core import Client, Tier, numpy_stream
from potluck.fleet import Draw, Odds, Profile, odds, tier_sizes

SECRET = "draw"
"""In the place of an id, in the state of a roster: what secret draws depend on."""


@dataclass(frozen=True)
class Member:
    """A node that agreed to the charter."""

    id: str
    """The fingerprint of its key."""
    name: str
    """What the operator calls it."""
    tier: str
    samples: int
    joined: int = 0
    """The first round that it could take part in, counted from 0."""
    missed: int = 0
    """Rounds in a row in which it was asked and gave no answer."""
    active: bool = True
    """Whether it is asked. A node that missed too many rounds is not, until it comes back."""


def _no_news(round: int, quorum: int) -> None:
    pass


class Roster:
    """The nodes of a federation, in the place of a simulated population.

    It changes between rounds only, and every checkpoint holds it. So the cohort of a round is a function of seed, round
    and roster.
    """

    def __init__(self, seed: int, misses: int = 3, draw: Draw = "uniform", secret: bool = False) -> None:
        self.tiers: Sequence[Tier] = ()
        self.devices: Mapping[str, Profile] = {}
        """The device of each tier, by name; nodes need none."""
        self.members: dict[str, Member] = {}
        self.news: Callable[[int, int], None] = _no_news
        """Called before every attempt at a round: takes in who came and who left."""
        self.there: Callable[[], frozenset[str]] = frozenset
        """The nodes that are connected now."""
        self.settle: Callable[[], None] = lambda: None
        """Called before models are scored: nodes that were just here may be on their way back."""
        self.traffic: Callable[[], Mapping[str, Sequence[int]]] = dict
        """Bytes that went to each node and came from it since the last call, as they were sent."""
        self._seed, self._misses, self._draw = seed, misses, draw
        self._secret = int.from_bytes(os.urandom(32)) if secret else None
        """If nodes must not know who is drawn, although they know the seed: what draws depend on instead."""

    @property
    def clients(self) -> int:
        return len(self.members)

    @property
    def present(self) -> int:
        return sum(member.active for member in self.members.values())

    def add(self, member: Member) -> None:
        """Takes a node in, or changes what is known of it."""
        self.members = dict(sorted({**self.members, member.id: member}.items()))

    def samples(self, client: str) -> int:
        """How many samples a node says it has."""
        return self.members[client].samples if client in self.members else 0

    def name(self, client: str) -> str:
        """A node's name for people."""
        return self.members[client].name if client in self.members else client[:8]

    def tier(self, name: str) -> Tier:
        return next(tier for tier in self.tiers if tier.name == name)

    def client(self, index: int, round: int) -> Client:
        member = list(self.members.values())[index]
        return Client(member.id, self.tier(member.tier))

    def index(self, id: str) -> int:
        if id not in self.members:
            raise ValueError(f"'{id[:40]}' is no node of this federation")
        return list(self.members).index(id)

    def device(self, client: Client) -> Profile:
        return self.devices[client.tier.name]

    def cohort(self, round: int, size: int, wanted: Callable[[Client], bool] = lambda client: True) -> list[Client]:
        """`size` active (and wanted) nodes, drawn as `fleet.draw` says, sorted by id; fewer if fewer are active."""
        found = [client for client in self.everyone(round) if wanted(client)]
        if size >= len(found):
            return found
        rng = numpy_stream(self._seed if self._secret is None else self._secret, "cohort", round)
        if self._draw == "poisson":
            drawn = rng.random(len(found)) < max(size, 0) / len(found)
            return [client for client, picked in zip(found, drawn, strict=True) if picked]
        if self._draw == "by_tier":
            tiers = [[client for client in found if client.tier.name == tier.name] for tier in self.tiers]
            sizes = tier_sizes([len(tier) for tier in tiers], size)
            picked_ids = {
                tier[index].id
                for tier, some in zip(tiers, sizes, strict=True)
                for index in rng.choice(len(tier), some, replace=False).tolist()
            }
            return [client for client in found if client.id in picked_ids]
        picked = rng.choice(len(found), max(size, 0), replace=False)
        return [found[index] for index in sorted(picked.tolist())]

    def odds(self, size: int) -> Mapping[str, Odds]:
        active = [member.tier for member in self.members.values() if member.active]
        return odds(self._draw, {tier.name: active.count(tier.name) for tier in self.tiers}, size)

    def everyone(self, round: int) -> Iterator[Client]:
        active = (member for member in self.members.values() if member.active)
        return (Client(member.id, self.tier(member.tier)) for member in active)

    def drops(self, id: str, round: int, attempt: int = 0) -> bool:
        return False

    def counts(self) -> dict[str, int]:
        tiers = [member.tier for member in self.members.values()]
        return {tier.name: tiers.count(tier.name) for tier in self.tiers}

    def scored(self, count: int, round: int) -> list[Client]:
        """The nodes that score models: those that are connected, at most so many."""
        self.settle()
        there = self.there()
        found = [client for client in self.everyone(round) if client.id in there]
        if count >= len(found):
            return found
        picked = numpy_stream(self._seed, "scored", round).choice(len(found), count, replace=False)
        return [found[index] for index in sorted(picked.tolist())]

    def shares(self) -> Mapping[str, float]:
        """How many nodes of each tier can take part."""
        active = [member.tier for member in self.members.values() if member.active]
        return {tier.name: float(active.count(tier.name)) for tier in self.tiers} if active else {}

    def begin(self, round: int, quorum: int) -> None:
        self.news(round, quorum)

    def end(self, round: int, answered: Mapping[str, bool]) -> list[dict[str, Any]]:
        """Counts who missed the round. The event says who was asked, who answered, and who was there."""
        for id, came in answered.items():
            member = self.members[id]
            missed = 0 if came else member.missed + 1
            self.add(replace(member, missed=missed, active=missed < self._misses))
        there, traffic = self.there(), self.traffic()
        event = {
            "event": "nodes",
            "round": round + 1,
            "nodes": [
                {
                    "client": member.id,
                    "name": member.name,
                    "tier": member.tier,
                    "there": member.id in there,
                    "asked": member.id in answered,
                    "answered": answered.get(member.id, False),
                    "bytes_down": traffic.get(member.id, (0, 0))[0],
                    "bytes_up": traffic.get(member.id, (0, 0))[1],
                }
                for member in self.members.values()
            ],
        }
        return [event]

    def facts(self) -> dict[str, Any]:
        names = {member.id: member.name for member in self.members.values()}
        return {"clients": self.clients, "nodes": names, "tiers": self.counts()}

    def state(self) -> dict[str, Any]:
        secret = {} if self._secret is None else {SECRET: {"seed": self._secret}}
        return {**secret, **{id: asdict(member) for id, member in self.members.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.members = {}
        known = {tier.name for tier in self.tiers}
        for id, fields in state.items():
            if id == SECRET:
                self._secret = int(fields["seed"])
                continue
            member = Member(**fields)
            if member.tier in known:
                self.add(member)
