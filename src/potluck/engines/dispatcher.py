"""The desk between a method and an engine: stamps tasks, opens replies at the gate, keeps what must be remembered.

Every engine works behind the same desk, so a method cannot tell which one carried its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from potluck.core import (
    EMPTY,
    SERVER,
    Cost,
    Mean,
    Model,
    Plain,
    Reply,
    Selection,
    Task,
    Weight,
    Zoo,
    payload,
)
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.gate import Gate, strikes_out
from potluck.engines.serial import Engine

Verdict: TypeAlias = Literal["accepted", "absent", "quarantined"]


@dataclass(frozen=True, eq=False)
class Entry:
    """What became of one task, for the ledger."""

    position: int
    task: Task
    verdict: Verdict
    reason: str = ""
    weight: float = 0.0
    metrics: Mapping[str, Plain] = EMPTY
    cost: Cost = Cost()
    skipped: bool = False
    """Whether it is absent because it had nothing to do."""


@dataclass
class Dispatcher:
    """One run's desk."""

    engine: Engine
    method: Any
    zoo: Zoo
    gate: Gate = Gate()
    recall: Callable[[str], tuple[int, Mapping[str, Any]] | None] = lambda client: None
    """A client's last committed memory and its version."""
    lost: Callable[[str, int, int], bool] = lambda client, index, attempt: False
    """Whether a client is modelled to drop out of this attempt at this round."""
    strikes: dict[str, int] = field(default_factory=dict)
    """How often each client has been refused in committed rounds."""

    def open(self, index: int, attempt: int = 0) -> RoundSession:
        """A fresh session for one attempt at one round."""
        return RoundSession(self, index, attempt)


@dataclass
class RoundSession:
    """One attempt at one round. What it stages counts only if the run commits it."""

    dispatcher: Dispatcher
    index: int
    attempt: int
    entries: list[Entry] = field(default_factory=list)
    staged: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Memories written in this round, by client."""
    coverage: float = 1.0
    """The share of the server's numbers that the last fold trained."""
    held: list[Mapping[str, tuple[int, ...]] | None] = field(default_factory=list)
    """The units of every part that was folded; None: all of them, or parts that are not made of units."""
    _open: set[int] = field(default_factory=set)
    _addresses: set[tuple[int, str, str, str]] = field(default_factory=set)
    _sends: int = 0

    def send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Replies in the order of the tasks; clients that fail or are refused are absent."""
        number = self._sends = self._sends + 1
        self._open.add(number)
        return (reply for _, reply in self._replies(tasks, number))

    def fold(
        self, tasks: Iterable[Task], mean: Mean, held: Mapping[str, Selection], weigh: Callable[[Reply], Weight]
    ) -> Sequence[Reply]:
        """Sends, and adds every reply's ``model`` to the mean."""
        number = self._sends = self._sends + 1
        self._open.add(number)
        replies = []
        for position, reply in self._replies(tasks, number):
            model = reply.models["model"]
            mean.add(model.arrays or {}, held[reply.task.to], weigh(reply), position)
            self.held.append(getattr(held[reply.task.to], "units", None) or None)
            bare = {"model": Model(model.spec)}
            replies.append(Reply(bare, reply.arrays, reply.weight, reply.metrics, reply.task, reply.cost))
        self.coverage = mean.coverage()
        return replies

    def close(self) -> None:
        """Refuses a round that left replies unread."""
        if self._open:
            raise RuntimeError(
                f"{type(self.dispatcher.method).__name__}.round left a send undrained: read every reply it yields"
            )
        self.entries.sort(key=lambda entry: entry.position)

    @property
    def accepted(self) -> int:
        return sum(entry.verdict == "accepted" for entry in self.entries)

    def strikes(self) -> dict[str, int]:
        """Refusals of this session, by client."""
        count: dict[str, int] = {}
        for entry in self.entries:
            if entry.verdict == "quarantined":
                count[entry.task.to] = count.get(entry.task.to, 0) + 1
        return count

    def _replies(self, tasks: Iterable[Task], number: int) -> Iterator[tuple[int, Reply]]:
        waiting: dict[tuple[int, str, str, str], tuple[int, Task]] = {}
        start = len(self.entries)
        for outcome in self.dispatcher.engine.carry(self._envelopes(tasks, waiting, start)):
            position, task = waiting.pop(outcome.task.address)
            self.entries.append(self._judge(position + start, task, outcome))
            if self.entries[-1].verdict == "accepted" and outcome.reply is not None:
                yield position, outcome.reply
        self._open.discard(number)

    def _envelopes(
        self, tasks: Iterable[Task], waiting: dict[tuple[int, str, str, str], tuple[int, Task]], start: int
    ) -> Iterator[TaskEnvelope]:
        for position, task in enumerate(tasks):
            address = (self.index, task.verb, task.to, task.key)
            if address in self._addresses:
                raise RuntimeError(f"two tasks of round {self.index} are both {address[1:]}; give them a key")
            self._addresses.add(address)
            if reason := self._absence(task.to):
                cost = Cost(bytes_down=0 if reason == "blacklisted" else payload(task))
                bare = replace(task, round=self.index, models=EMPTY, arrays=EMPTY)
                self.entries.append(Entry(start + position, bare, "absent", reason, cost=cost))
                continue
            version, memory = self._memory(task.to)
            task = Task(task.verb, task.to, task.key, self.index, task.models, task.arrays, task.config, version)
            waiting[address] = (position, task)
            yield TaskEnvelope(task, memory)

    def _absence(self, client: str) -> str:
        if client == SERVER:
            return ""
        if strikes_out(self.dispatcher.gate, self.dispatcher.strikes, client):
            return "blacklisted"
        return "dropped out" if self.dispatcher.lost(client, self.index, self.attempt) else ""

    def _memory(self, client: str) -> tuple[int, Mapping[str, Any]]:
        if client in self.staged:
            return self.index, self.staged[client]
        return self.dispatcher.recall(client) or (-1, EMPTY)

    def _judge(self, position: int, task: Task, outcome: TaskResult) -> Entry:
        reply = outcome.reply
        if reply is None:
            reason = outcome.fault if outcome.skipped else f"failed: {outcome.fault}"
            cost = Cost(bytes_down=payload(task))
            return Entry(position, outcome.task, "absent", reason, cost=cost, skipped=outcome.skipped)
        refused = self.dispatcher.gate.refusal(task, reply, self.dispatcher.method.expects(task, self.dispatcher.zoo))
        if refused:
            return Entry(position, outcome.task, "quarantined", refused, cost=reply.cost)
        if outcome.memory is not None:
            self.staged[task.to] = outcome.memory
        return Entry(position, outcome.task, "accepted", "", reply.weight, reply.metrics, reply.cost)
