"""The engine of a federation: clients' tasks go to real nodes, the server's own run here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from potluck.core import SERVER, Bytes, Limits, Model, pack_array
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.remote.messages import (
    ReadResult,
    TaskMessage,
    Updates,
    bare_task,
    mark_of,
    pack_task,
    read_result,
)
from potluck.engines.remote.transport import Answer, Parts, Transport
from potluck.engines.serial import Engine

LARGE = 1 << 20
"""Bytes from which a part is kept in a file."""
FOREVER = 1e9
WAIT = 1.0
"""Seconds of one look for answers."""


@dataclass(frozen=True)
class Terms:
    """How an engine deals with its nodes."""

    charter: str
    """The hash of the charter that nodes agreed to."""
    limits: Limits = Limits()
    """The most that an answer may hold."""
    updates: Updates = "exact"
    deadline: Callable[[str], float] = lambda node: FOREVER
    """Seconds within which a node must answer a task."""
    oldest: Callable[[], int] = lambda: 0
    """The round of the oldest checkpoint."""
    name: Callable[[str], str] = lambda node: node
    """A node's name for people."""


@dataclass(eq=False)
class Asked:
    """A task that a node was asked to do."""

    message: TaskMessage
    again: bool = False
    """Whether it was sent a second time, with all models, because the node lacked some."""
    result: TaskResult | None = None


@dataclass(eq=False)
class Remote:
    """Sends tasks to nodes over a transport. Equal models are packed once, and sent to a node once."""

    transport: Transport
    local: Engine
    """Runs the server's own tasks."""
    terms: Terms
    spool: Path
    """A folder for large models on their way; what is there has no name, and goes with this process."""
    notes: list[str] = field(default_factory=list)
    other: Callable[[Answer], None] = lambda answer: None
    """Gets the answers to messages that are no tasks."""
    attend: Callable[[], None] = lambda: None
    """Called at every look: greets nodes that came."""
    _traffic: dict[str, list[int]] = field(default_factory=dict)
    _number: int = 0
    _asked: dict[int, Asked] = field(default_factory=dict)
    _held: dict[str, frozenset[str]] = field(default_factory=dict)

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        packed: dict[int, tuple[Model, str, Bytes]] = {}
        parts: dict[str, Bytes] = {}
        waiting: list[Asked | TaskEnvelope] = []
        for envelope in envelopes:
            if envelope.task.to == SERVER:
                waiting.append(envelope)
                continue
            models = {key: self._pack(model, packed, parts) for key, model in envelope.task.models.items()}
            terms = self.terms
            message = pack_task(envelope, models, terms.charter, terms.oldest(), terms.updates)
            waiting.append(self._ask(message))
        packed.clear()
        for each in waiting:
            if isinstance(each, TaskEnvelope):
                yield from self.local.run([each])
                continue
            while each.result is None:
                self.look(WAIT)
            yield each.result
            each.result = None  # the caller has it

    def post(self, node: str, parts: Parts, seconds: float = FOREVER) -> int:
        """Sends a message that is no task; its answer goes to `other`, under the number that this returns."""
        return self._post(node, parts, seconds)

    def look(self, seconds: float) -> None:
        """Takes the answers that came; waits for the first one at most so long."""
        self.attend()
        for answer in self.transport.fetch(seconds):
            self._traffic.setdefault(answer.node, [0, 0])[1] += sum(len(part) for part in answer.parts)
            asked = self._asked.pop(answer.number, None)
            if asked is None:
                self.other(answer)
            else:
                self._take(asked, answer)
        self.notes += self.transport.notes
        self.transport.notes.clear()

    def take_traffic(self) -> dict[str, list[int]]:
        """Bytes that went to each node and came from it since the last call."""
        found, self._traffic = self._traffic, {}
        return found

    def forget(self, node: str) -> None:
        """Forgets which models a node holds: it has started again."""
        self._held.pop(node, None)

    def close(self) -> None:
        self.transport.close()
        self.local.close()

    def _ask(self, message: TaskMessage) -> Asked:
        asked = Asked(message)
        self._send(asked, self._held.get(message.envelope.task.to, frozenset()))
        return asked

    def _send(self, asked: Asked, held: frozenset[str]) -> None:
        node = asked.message.envelope.task.to
        self._asked[self._post(node, asked.message.parts(held), self.terms.deadline(node))] = asked

    def _post(self, node: str, parts: Parts, seconds: float) -> int:
        self._number += 1
        self._traffic.setdefault(node, [0, 0])[0] += sum(len(part) for part in parts)
        self.transport.post(node, self._number, parts, seconds)
        return self._number

    def _take(self, asked: Asked, answer: Answer) -> None:
        envelope = asked.message.envelope
        if answer.fault or answer.node != envelope.task.to:
            why = answer.fault or "another node answered"
            asked.result = TaskResult(bare_task(envelope.task), fault=why, lost=True)
            self.forget(envelope.task.to)
            return
        found = read_result(answer.parts, envelope, self.terms.limits)
        if found.missing and not asked.again:
            asked.again = True
            self.forget(envelope.task.to)
            self._send(asked, frozenset())
            return
        self._held[envelope.task.to] = found.holds
        asked.result = found.result
        self._tell(found, envelope)

    def _tell(self, found: ReadResult, envelope: TaskEnvelope) -> None:
        if found.fresh:
            who = self.terms.name(envelope.task.to)
            self.notes.append(f"{who} has lost its memory, or was set back: it starts fresh")

    def _pack(
        self, model: Model, packed: dict[int, tuple[Model, str, Bytes]], parts: dict[str, Bytes]
    ) -> tuple[str, Bytes]:
        """The mark and the part of a model."""
        if id(model) not in packed:
            part = pack_array(model)
            mark = mark_of(part)
            if mark not in parts:
                parts[mark] = keep_in_file(part, self.spool)
            packed[id(model)] = (model, mark, parts[mark])
        return packed[id(model)][1:]


def keep_in_file(part: Bytes, folder: Path) -> Bytes:
    """A large part in a file without a name, so that it needs no memory; a small one as it is."""
    if len(part) < LARGE:
        return part
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(part.data)
        file.flush()
        return np.memmap(file, np.uint8, "r")
