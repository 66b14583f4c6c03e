"""The engine of a federation: clients' tasks go to real nodes, the server's own run here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import SERVER, Bytes, Limits, pack_array
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.remote.messages import TaskMessage, bare_task, mark_of, pack_task, read_result
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
    """Whether it was sent a second time, with all its parts, because the node lacked some."""
    unwanted: bool = False
    """Whether nobody reads the result any more."""
    result: TaskResult | None = None


@dataclass(eq=False)
class Remote:
    """Real nodes on other machines do the clients' work; not for --engine: start it with `potluck server`.

    Equal models are packed once, and sent to a node once.
    """

    transport: Transport
    local: Engine
    """Runs the server's own tasks."""
    terms: Terms
    spool: Path
    """A folder for large models on their way; what is there has no name, and goes with this process."""
    notes: list[str] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    """Nodes that gave no answer to the last task that they were asked to do."""
    other: Callable[[Answer], None] = lambda answer: None
    """Gets the answers to messages that are no tasks."""
    attend: Callable[[], None] = lambda: None
    """Called at every look: greets nodes that came."""
    _traffic: dict[str, list[int]] = field(default_factory=dict)
    _number: int = 0
    _asked: dict[int, Asked] = field(default_factory=dict)
    _held: dict[str, frozenset[str]] = field(default_factory=dict)

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        parts = _PackedParts(self.spool)
        waiting = [each if each.task.to == SERVER else self._ask(each, parts) for each in envelopes]
        parts.forget_values()
        try:
            for each in waiting:
                yield from self.local.run([each]) if isinstance(each, TaskEnvelope) else [self._wait_for(each)]
        finally:  # the reader may have left before the end
            for each in waiting:
                if isinstance(each, Asked):
                    each.unwanted = True

    def post(self, node: str, parts: Parts, seconds: float = FOREVER) -> int:
        """Sends a message; its answer comes under the number that this returns, to `other` if it is no task's."""
        self._number += 1
        self._traffic.setdefault(node, [0, 0])[0] += sum(len(part) for part in parts)
        self.transport.post(node, self._number, parts, seconds)
        return self._number

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
        """Forgets which parts a node holds: it has started again."""
        self._held.pop(node, None)

    def close(self) -> None:
        self.transport.close()
        self.local.close()

    def _ask(self, envelope: TaskEnvelope, parts: _PackedParts) -> Asked:
        task, terms = envelope.task, self.terms
        models = {key: parts.add(model, (id(model),)) for key, model in task.models.items()}
        loose = dict(task.arrays)
        arrays = parts.add(loose, (*loose, *map(id, loose.values()))) if loose else None
        asked = Asked(pack_task(envelope, models, arrays, terms.charter, terms.oldest()))
        on_the_way = (each.message for each in self._asked.values() if each.message.envelope.task.to == task.to)
        self._send(asked, self._held.get(task.to, frozenset()).union(*(message.tensors for message in on_the_way)))
        return asked

    def _wait_for(self, asked: Asked) -> TaskResult:
        while asked.result is None:
            self.look(WAIT)
        result, asked.result = asked.result, None  # the caller has it
        return result

    def _send(self, asked: Asked, held: Collection[str]) -> None:
        node = asked.message.envelope.task.to
        self._asked[self.post(node, asked.message.parts(held), self.terms.deadline(node))] = asked

    def _take(self, asked: Asked, answer: Answer) -> None:
        envelope = asked.message.envelope
        node = envelope.task.to
        if answer.fault or answer.node != node:
            why = answer.fault or "another node answered"
            asked.result = TaskResult(bare_task(envelope.task), fault=why, lost=True)
            self.silent.add(node)
            self.forget(node)
            return
        self.silent.discard(node)
        if asked.unwanted:
            return
        found = read_result(answer.parts, envelope, self.terms.limits)
        self._held[node] = found.holds
        if found.missing and not asked.again:
            asked.again = True
            self._send(asked, ())
            return
        asked.result = found.result
        if found.fresh:
            self.notes.append(
                f"{self.terms.name(node)} starts without memory: it lost the old one, was set back, or changed its tier"
            )


class _PackedParts:
    """The models and arrays of one run of tasks as parts; equal ones are packed or kept once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._values: dict[tuple[str | int, ...], tuple[Any, tuple[str, Bytes]]] = {}
        """Marks and parts by the identity of what they hold; it is kept alive meanwhile."""
        self._parts: dict[str, Bytes] = {}

    def add(self, value: Any, identity: tuple[str | int, ...]) -> tuple[str, Bytes]:
        """The mark and the part of a value."""
        if identity not in self._values:
            part = pack_array(value)
            mark = mark_of(part)
            if mark not in self._parts:
                self._parts[mark] = keep_in_file(part, self._folder)
            self._values[identity] = (value, (mark, self._parts[mark]))
        return self._values[identity][1]

    def forget_values(self) -> None:
        self._values.clear()


def keep_in_file(part: Bytes, folder: Path) -> Bytes:
    """A large part in a file without a name, so that it needs no memory; a small one as it is."""
    if len(part) < LARGE:
        return part
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(part.data)
        file.flush()
        return np.memmap(file, np.uint8, "r")
