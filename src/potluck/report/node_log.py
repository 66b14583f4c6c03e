"""The nodes of a federation, as the ledger tells of them: who was there in each round, and bytes of messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.records import ANSWERED, AWAY, SILENT, THERE, UNKNOWN, NodeRecord

MAX_ROUND = 100_000
"""A larger round of a federation is a broken value."""

SHORT_ID = 8
"""Digits of a node's id that people are shown."""


class NodeRound(NamedTuple):
    """A node in one round."""

    state: str
    tier: str
    bytes_down: float
    bytes_up: float


@dataclass
class NodeLog:
    """The events about nodes. A round that was done again after a stop appears twice; the later event counts."""

    manifest: Json
    _names: dict[str, str] = field(default_factory=dict)
    _rounds: dict[int, dict[str, NodeRound]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names |= {text(id): text(name) for id, name in mapping(self.manifest.get("nodes")).items()}

    @property
    def is_federation(self) -> bool:
        """Whether the clients of the run are real nodes."""
        return bool(self._names or text(self.manifest.get("charter")))

    def add(self, event: Json) -> None:
        """Adds an event about all nodes in one round."""
        round = integer(event.get("round")) or 0
        if not 1 <= round <= MAX_ROUND:
            return
        told = [(text(node.get("client")), node) for node in map(mapping, sequence(event.get("nodes")))]
        self._names |= {id: text(node.get("name")) for id, node in told if id and text(node.get("name"))}
        self._rounds[round] = {id: _parse(node) for id, node in told if id}

    def names(self) -> dict[str, str]:
        """Each node's name for people, by id; with the first digits of the id where two nodes have the same name."""
        known = {id: self._names.get(id) or id[:SHORT_ID] for id in [*self._names, *self._ids()]}
        count = Counter(known.values())
        return {id: name if count[name] == 1 else f"{name} ({id[:SHORT_ID]})" for id, name in known.items()}

    def records(self, scores: Sequence[Json]) -> tuple[NodeRecord, ...]:
        """A record for each node, sorted by name; `scores` are the lines of scores, by round."""
        last = next((found for line in reversed(scores) if (found := _scores_by_id(line))), {})
        nodes = [self._record(id, name, last.get(id)) for id, name in self.names().items()]
        return tuple(sorted(nodes, key=lambda node: (_by_number(node.name), node.id)))

    def tier_bytes(self) -> dict[str, tuple[float, float]]:
        """Bytes that went to the nodes of each tier and came from them; a node counts where it was in that round."""
        found: dict[str, tuple[float, float]] = {}
        for nodes in self._rounds.values():
            for node in nodes.values():
                down, up = found.get(node.tier, (0.0, 0.0))
                found[node.tier] = (down + node.bytes_down, up + node.bytes_up)
        return found

    def _ids(self) -> dict[str, None]:
        return dict.fromkeys(id for nodes in self._rounds.values() for id in nodes)

    def _record(self, id: str, name: str, score: float | None) -> NodeRecord:
        rounds = {round: nodes[id] for round, nodes in sorted(self._rounds.items()) if id in nodes}
        if not rounds:
            return NodeRecord(id, name, score=score)
        letters = (rounds[round].state if round in rounds else UNKNOWN for round in range(1, max(self._rounds) + 1))
        down, up = sum(each.bytes_down for each in rounds.values()), sum(each.bytes_up for each in rounds.values())
        return NodeRecord(id, name, rounds[max(rounds)].tier, "".join(letters), down, up, score)


def name_nodes(words: str, names: Mapping[str, str]) -> str:
    """The words with names in the place of nodes' ids."""
    return re.sub(r"\b[0-9a-f]{32}\b", lambda found: names.get(found[0], found[0]), words) if names else words


def _parse(node: Json) -> NodeRound:
    if node.get("answered") is True:
        state = ANSWERED
    elif node.get("asked") is True:
        state = SILENT
    else:
        state = THERE if node.get("there") is True else AWAY
    down, up = (max(0.0, number(node.get(key)) or 0.0) for key in ("bytes_down", "bytes_up"))
    return NodeRound(state, text(node.get("tier"), "no tier"), down, up)


def _scores_by_id(line: Json) -> dict[str, float]:
    clients = mapping(line.get("clients"))
    pairs = zip(sequence(clients.get("ids")), map(number, sequence(clients.get("values"))), strict=False)
    return {text(id): value for id, value in pairs if value is not None}


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    parts = re.split(r"(\d+)", name)
    return [(len(part.lstrip("0")) if index % 2 else 0, part) for index, part in enumerate(parts)]
