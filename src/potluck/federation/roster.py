"""The roster: the nodes of a federation, of which tier, with how many samples, and who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from potluck.core import Client, Tier, numpy_stream


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

    def __init__(self, seed: int, misses: int = 3) -> None:
        self.tiers: Sequence[Tier] = ()
        self.members: dict[str, Member] = {}
        self.news: Callable[[int, int], None] = _no_news
        """Called before every attempt at a round: takes in who came and who left."""
        self.there: Callable[[], frozenset[str]] = frozenset
        """The nodes that are connected now."""
        self.settle: Callable[[], None] = lambda: None
        """Called before models are scored: nodes that were just here may be on their way back."""
        self.traffic: Callable[[], Mapping[str, Sequence[int]]] = dict
        """Bytes that went to each node and came from it since the last call, as they were sent."""
        self._seed, self._misses = seed, misses

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

    def cohort(self, round: int, size: int, wanted: Callable[[Client], bool] = lambda client: True) -> list[Client]:
        """`size` active (and wanted) nodes, drawn uniformly, sorted by id; fewer if fewer are active."""
        found = [client for client in self.everyone(round) if wanted(client)]
        if size >= len(found):
            return found
        picked = numpy_stream(self._seed, "cohort", round).choice(len(found), max(size, 0), replace=False)
        return [found[index] for index in sorted(picked.tolist())]

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
        return {id: asdict(member) for id, member in self.members.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.members = {}
        known = {tier.name for tier in self.tiers}
        for fields in state.values():
            member = Member(**fields)
            if member.tier in known:
                self.add(member)
