"""The server's side of the conversation with nodes: greets who comes, asks for agreement, keeps the roster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol, runtime_checkable

from potluck.core import SERVER, Limits, MessageError, one_line
from potluck.engines.remote import Answer, Parts, Remote
from potluck.engines.remote.engine import FOREVER
from potluck.engines.remote.messages import pack_plain, read_head, word
from potluck.federation.charter import Charter, versions
from potluck.federation.roster import Member, Roster
from potluck.run.settings import Nodes

SMALL = Limits(bytes=1 << 20, nodes=10_000)
"""What a node may say of itself."""
AGAIN = 10.0
"""Seconds after which a node that could not answer is asked again."""
MOST_NOTES = 10
"""Lines about one node that does not take part, which may come back as often as it likes."""


@dataclass(frozen=True)
class NodeState:
    """A node as people see it."""

    id: str
    name: str
    tier: str
    samples: int
    state: str
    """here, away, asked (the charter was sent), declined."""
    reason: str = ""
    address: str = ""


@runtime_checkable
class HostListener(Protocol):
    """What a progress listener may have besides, to hear of nodes."""

    def nodes(self, nodes: Sequence[NodeState], waiting: str) -> None: ...


@dataclass(eq=False)
class Host:
    """Knows which nodes are there, and which of them have agreed to the charter."""

    remote: Remote
    charter: Charter
    roster: Roster
    settings: Nodes
    expected: Callable[[], Mapping[str, str]]
    """The names of the nodes that are admitted, by id."""
    tell: Callable[[Sequence[NodeState], str], None] = lambda nodes, waiting: None
    """Called when something changed, with what the server waits for."""
    clock: Callable[[], float] = time.monotonic
    notes: list[str] = field(default_factory=list)
    _greeted: dict[str, float] = field(default_factory=dict)
    """When each node connected that was sent the charter."""
    _asked: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Nodes by the number of the message that they are to answer, and when they had connected."""
    _agreed: dict[str, Member] = field(default_factory=dict)
    """Nodes that agreed in their present connection."""
    _new: set[str] = field(default_factory=set)
    """Nodes that agreed since the roster was last changed."""
    _compared: dict[str, Any] = field(default_factory=dict)
    """The versions that the operator was told of, by node."""
    _declined: dict[str, str] = field(default_factory=dict)
    _noted: dict[str, int] = field(default_factory=dict)
    """How often each node declined."""
    _again: dict[str, float] = field(default_factory=dict)
    """When to send the charter again to nodes that could not answer."""
    _began: bool = False
    _shown: object = None
    _waiting: str = ""

    def __post_init__(self) -> None:
        self.remote.other = self.take
        self.remote.attend = self.attend
        self.roster.news = self.gather
        self.roster.there = self.there
        self.roster.settle = self.settle
        self.roster.traffic = self.remote.take_traffic

    def attend(self) -> None:
        """Sends the charter to every node that has come since the last call."""
        present = self.remote.transport.present()
        for id in [id for id in self._greeted if id not in present]:
            del self._greeted[id]
            self._agreed.pop(id, None)
        for id, found in present.items():
            if self._greeted.get(id) != found.since or self._again.get(id, inf) <= self.clock():
                self._greeted[id] = found.since
                self._again.pop(id, None)
                self._declined.pop(id, None)
                self._agreed.pop(id, None)
                self.remote.forget(id)
                self._ask(id, pack_plain("charter", charter=self.charter.plain, versions=versions()))
        self._show()

    def take(self, answer: Answer) -> None:
        """Takes a node's answer to the charter, or to the offer of a tier."""
        node, since = self._asked.pop(answer.number, ("", 0.0))
        if node != answer.node or self._greeted.get(node) != since:
            return  # it has connected again since, and was asked again
        if answer.fault:
            self._ask_again(node)
            return
        try:
            self._agree(answer.node, read_head(answer.parts, SMALL))
        except MessageError as fault:
            self._decline(answer.node, f"its answer makes no sense: {fault}")

    def there(self) -> frozenset[str]:
        """The nodes that are connected and have agreed."""
        return frozenset(self._agreed) & self.remote.transport.present().keys()

    def gather(self, round: int, quorum: int) -> None:
        """Takes in who came; waits for nodes if there are too few. If none come, those that are there, but missed too
        many rounds, are asked again."""
        if not self._began:
            self._wait_at_start()
            self._began = True
        self.remote.look(0)
        least = max(1, quorum)
        what = f"{least} nodes for round {round + 1}"
        self._wait(lambda: len(self._ready()) >= least, self.settings.patience, what)
        if len(self._ready()) < least:
            self._new |= self.there()
        self._take_in(round)
        self._offer_smaller_tiers()

    def settle(self) -> None:
        """Waits for nodes that answered in the last round and are away, no longer than within a round. So scores are of
        the same nodes, whether a connection broke or not."""
        members = self.roster.members.items()
        back = {id for id, member in members if member.active and not member.missed and id not in self._declined}
        wanted = back & self.expected().keys()
        self._wait(lambda: wanted <= self.there(), self.settings.grace, "the nodes that score")

    def end(self, how: str) -> None:
        """Tells all nodes that the federation has ended."""
        for id in self.remote.transport.present():
            self._ask(id, pack_plain("end", how=how), 5.0)
        until = self.clock() + 5.0
        while self._asked and self.clock() < until:
            self.remote.look(0.2)

    def states(self) -> list[NodeState]:
        """Every node that is known, sorted by name."""
        present, expected = self.remote.transport.present(), self.expected()
        found = []
        for id in sorted({*present, *self.roster.members, *expected}):
            member = self._agreed.get(id) or self.roster.members.get(id)
            if id in self._declined:
                state = "declined"
            elif id in present:
                state = "here" if id in self._agreed else "asked"
            else:
                state = "away"
            name = expected.get(id) or self.roster.name(id)
            facts = (member.tier, member.samples) if member else ("", 0)
            address = present[id].address if id in present else ""
            found.append(NodeState(id, name, *facts, state, self._declined.get(id, ""), address))
        return sorted(found, key=lambda node: node.name)

    def _show(self) -> None:
        """Shows the nodes and what the server waits for, if something changed."""
        now = (self.states(), self._waiting)
        if now != self._shown:
            self._shown = now
            self.tell(*now)

    def _ready(self) -> frozenset[str]:
        """The nodes that are there and will be asked in the next round."""
        members = self.roster.members
        return frozenset(id for id in self.there() if id in self._new or (id in members and members[id].active))

    def _ask(self, id: str, parts: Parts, seconds: float = FOREVER) -> None:
        self._asked[self.remote.post(id, parts, seconds)] = (id, self._greeted.get(id, 0.0))

    def _agree(self, id: str, told: Mapping[str, Any]) -> None:
        if told["kind"] in ("goodbye", "looked"):  # one that looked at the charter may join later
            return
        if told["kind"] != "agreed":
            self._decline(id, word(told, "reason") or "it gave no reason")
            if told.get("later") is True:
                self._ask_again(id)
            return
        tier, samples = word(told, "tier"), told.get("samples")
        if word(told, "charter") != self.charter.hash or tier not in {each.name for each in self.roster.tiers}:
            self._decline(id, "it agreed to another charter, or to a tier that there is not")
            return
        if type(samples) is not int or not 1 <= samples <= self.settings.most_samples:
            self._decline(id, f"it says that it has {str(samples)[:20]} samples; nodes.most_samples bounds them")
            return
        name = self.expected().get(id) or self.roster.name(id)
        self._agreed[id] = Member(id, name, tier, samples)
        self._new.add(id)
        self._compare_versions(id, name, told.get("versions"))

    def _compare_versions(self, id: str, name: str, told: Any) -> None:
        """Tells of versions that differ from the server's, once."""
        theirs = {what: word(told, what)[:20] for what in versions()} if isinstance(told, Mapping) else {}
        if theirs and self._compared.get(id) != theirs:
            self._compared[id] = theirs
            self.notes += [
                f"{name} has {what} {theirs[what]}, the server {version}: the last bits of results may differ"
                for what, version in versions().items()
                if theirs[what] != version
            ]

    def _decline(self, id: str, reason: str) -> None:
        self._declined[id] = one_line(reason)
        self._agreed.pop(id, None)
        self._noted[id] = self._noted.get(id, 0) + 1
        if self._noted[id] <= MOST_NOTES:
            last = "; no more is said of this" if self._noted[id] == MOST_NOTES else ""
            self.notes.append(f"{self.expected().get(id) or id[:8]} does not take part: {one_line(reason)}{last}")

    def _ask_again(self, id: str) -> None:
        """Sends the charter again in a while: something stood in the way of an answer."""
        self._again[id] = self.clock() + AGAIN

    def _wait_at_start(self) -> None:
        """Waits for the nodes of the roster if a run goes on; else for as many as the settings say, for any time."""
        if self.roster.members:
            admitted = self.expected()
            back = {id for id, member in self.roster.members.items() if member.active and id in admitted}
            self._wait(
                lambda: back - self._declined.keys() <= self.there(), self.settings.patience, "the nodes to come back"
            )
            return
        wanted = self.settings.wait_for
        self._wait(lambda: len(self.there()) >= (wanted or max(1, len(self.expected()))), float("inf"), "nodes to join")

    def _wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        until = self.clock() + seconds
        while not done() and self.clock() < until:
            self._waiting = what
            self._show()
            self.remote.look(0.2)
        self._waiting = ""
        self._show()

    def _take_in(self, round: int) -> None:
        """Puts nodes that have just agreed into the roster; those that are back are asked again."""
        for id in sorted(self._new & self.there()):
            self._new.discard(id)
            new, old = self._agreed[id], self.roster.members.get(id)
            if old is None:
                self.roster.add(replace(new, joined=round))
                if round:
                    self.notes.append(f"{new.name} joins in round {round + 1}, in tier '{new.tier}'")
            else:
                same = old.active and old.tier == new.tier
                self.roster.add(replace(new, joined=old.joined, missed=old.missed if same else 0))
                if old.tier != new.tier:
                    self.notes.append(f"{new.name} is in tier '{new.tier}' from round {round + 1} on")

    def _offer_smaller_tiers(self) -> None:
        """Offers a smaller tier to nodes that are there, and yet too slow for several rounds."""
        order, waiting = [tier.name for tier in self.charter_tiers()], {id for id, _ in self._asked.values()}
        for id in sorted(self.there() & self.remote.silent - waiting):
            member = self.roster.members.get(id)
            slow = member is not None and member.missed >= max(1, self.settings.misses - 1)
            if member is not None and slow and order.index(member.tier) > 0:
                self._ask(id, pack_plain("tier", tier=order[order.index(member.tier) - 1]), 60.0)

    def charter_tiers(self) -> Sequence[Any]:
        """The tiers, smallest network first."""
        order = [name for name in self.charter.plain["networks"] if name != SERVER]
        return sorted(self.roster.tiers, key=lambda tier: order.index(tier.name))
