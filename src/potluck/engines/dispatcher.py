"""The dispatcher between a method and an engine: sends tasks, checks replies at the gate, stages client memories.

All engines use the same dispatcher, so a method cannot see which engine runs its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import torch

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
    entropy,
    one_line,
    payload,
    shapes_of,
)
from potluck.engines.block_sums import can_check
from potluck.engines.context import FoldRules, FoldTask, SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.gate import Gate, strikes_out
from potluck.engines.serial import Engine
from potluck.engines.usual import Usual
from potluck.learn import map_tensors
from potluck.parts import Mask, OverlapMean, Part, Sums
from potluck.secure.settings import PHASES, REQUEST, is_protocol, phase_of

if TYPE_CHECKING:
    from potluck.secure.client import SecureClient

Verdict: TypeAlias = Literal["accepted", "absent", "quarantined"]
FoldPlaces: TypeAlias = Callable[[Task, int], FoldTask]
Check: TypeAlias = "Callable[[Task, Reply], str | None]"


class PrivateSums(Protocol):
    """Makes the sum of every fold private before the method gets it."""

    def ask(self, tasks: Iterable[Task]) -> Iterable[Task]:
        """The tasks as clients get them."""

    def release(
        self, session: RoundSession, mean: OverlapMean, summed: OverlapMean, replies: Sequence[Reply]
    ) -> Sequence[Reply]:
        """Adds the private sum to the method's mean; returns what the method may know of the replies."""


@dataclass(frozen=True, eq=False)
class LedgerEntry:
    """The outcome of one task, for the ledger."""

    position: int
    task: Task
    verdict: Verdict
    reason: str = ""
    weight: float = 0.0
    metrics: Mapping[str, Plain] = EMPTY
    cost: Cost = Cost()
    skipped: bool = False
    """Whether the client is absent because it had nothing to do."""
    lost: bool = False
    """Whether an update may have left the client although none came: its worker died or was given up."""

    def __post_init__(self) -> None:
        if self.reason:
            object.__setattr__(self, "reason", one_line(self.reason))


@dataclass
class Dispatcher:
    """Sends the tasks of one run."""

    engine: Engine
    method: Any
    zoo: Zoo
    gate: Gate = Gate()
    recall: Callable[[str], tuple[int, Mapping[str, Any]] | None] = lambda client: None
    """The version of a client's last committed memory, and the memory; None: it has none."""
    lost: Callable[[str, int, int], bool] = lambda client, index, attempt: False
    """Whether a client drops out of this attempt at this round, in the simulation."""
    strikes: dict[str, int] = field(default_factory=dict)
    """How often the gate refused each client in committed rounds."""
    charge: Callable[[Task], None] = lambda task: None
    """Called before a task goes to a client that will upload something."""
    samples: Callable[[str], int] | None = None
    """A client's number of samples, where it is known, as in a simulation."""
    usual: Usual = field(default_factory=Usual)
    """What the gate accepted in committed rounds."""
    heard: Callable[[RoundSession, LedgerEntry], None] | None = None
    """Called with the outcome of each task as soon as it is known."""
    secure: SecureClient | None = None
    """The settings and identities of secure aggregation; None: it is off."""
    session_label: str = ""
    """Names the run in secure sums, so that no two runs share a mask."""
    lost_phase: Callable[[str, int, int], int] = lambda client, index, attempt: (
        entropy(0, "phase", client, index, attempt)[0] % PHASES
    )
    """In which phase of a secure sum (0 to 4) a client that drops out of this attempt is lost, in the simulation."""
    private: PrivateSums | None = None
    """Adds noise to the sum of a fold, under [privacy] where = "server"."""

    def open(self, index: int, attempt: int = 0, everyone: bool = False, needed: bool = False) -> RoundSession:
        """A new session for one attempt at one round; with `everyone`, no client drops out or is blacklisted.

        With `everyone` or `needed`, a task whose worker died is sent again, as the server's own tasks always are.
        """
        return RoundSession(self, index, attempt, everyone, everyone or needed)


@dataclass
class RoundSession:
    """One attempt at one round. Its staged memories count only if the run commits the round."""

    dispatcher: Dispatcher
    index: int
    attempt: int = 0
    everyone: bool = False
    needed: bool = False
    entries: list[LedgerEntry] = field(default_factory=list)
    staged: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """New client memories of this round, by client."""
    accepted_numbers: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of accepted replies on which the gate's limits in later rounds depend, by kind."""
    coverage: float = 1.0
    """The share of the server model's entries that clients trained in the last fold."""
    held: list[Mapping[str, tuple[int, ...]] | None] = field(default_factory=list)
    """The units of every folded part, by axis group. None: the whole model, or a part that is not made of units."""
    secure: list[dict[str, Any]] = field(default_factory=list)
    """What became of each secure sum, for the ledger."""
    opened: set[str] = field(default_factory=set)
    """Clients whose upload is in a sum that was opened."""
    quorum: int = 0
    """How many clients must have uploaded before a secure sum is opened: below it, the attempt will not count."""
    _open: set[int] = field(default_factory=set)
    _addresses: set[tuple[int, str, str, str]] = field(default_factory=set)
    _sends: int = 0

    def send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """The replies in the order of the tasks; clients that fail or are refused have none."""
        return (reply for _, reply, _ in self._replies(tasks, self._begin()))

    def ask(self, tasks: Iterable[Task], check: Check) -> list[Reply]:
        """The replies to tasks of a secure sum; `check` says why a reply cannot be used, or None."""
        return [reply for _, reply, _ in self._replies(tasks, self._begin(), check=check)]

    def fold(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]:
        """Sends tasks and adds each reply's ``model`` to the mean; returns the replies without these arrays.

        Without `weigh`, the method's own weights count, and workers may add up whole blocks of replies.
        """
        if self.dispatcher.secure is not None:
            from potluck.engines.secure_fold import secure_fold

            return secure_fold(self, tasks, mean, held, weigh)
        private, whole = self.dispatcher.private, mean
        if private is not None:
            assert isinstance(mean, OverlapMean)
            tasks, mean, weigh = private.ask(tasks), OverlapMean(mean.start), None
        place = None if weigh else self._fold_places(mean, held)
        weigh = weigh or partial(self.dispatcher.method.weigh, zoo=self.dispatcher.zoo)
        replies = []
        last: Sums | None = None
        for position, reply, block in self._replies(tasks, self._begin(), place):
            if block is None:
                model = reply.models["model"]
                mean.add(model.arrays, held[reply.task.to], weigh(reply), position)
                bare = {"model": Model(model.spec, EMPTY)}
                reply = Reply(bare, reply.arrays, reply.weight, reply.metrics, reply.task, reply.cost)
            elif block is not last:
                assert isinstance(mean, OverlapMean)
                mean.add_block(block, position)
                last = block
            self.held.append(getattr(held[reply.task.to], "units", None) or None)
            replies.append(reply)
        self.coverage = mean.coverage()
        if private is not None:
            assert isinstance(mean, OverlapMean)
            assert isinstance(whole, OverlapMean)
            return private.release(self, whole, mean, replies)
        return replies

    def close(self) -> None:
        """Ends the session; raises an error if the method did not read all replies."""
        if self._open:
            raise RuntimeError(
                f"{type(self.dispatcher.method).__name__}.round left a send undrained: read every reply it yields"
            )
        self.entries.sort(key=lambda entry: entry.position)

    @property
    def accepted(self) -> int:
        return sum(entry.verdict == "accepted" for entry in self.entries)

    def strikes(self) -> dict[str, int]:
        """The number of refused replies in this session, by client."""
        count: dict[str, int] = {}
        for entry in self.entries:
            if entry.verdict == "quarantined":
                count[entry.task.to] = count.get(entry.task.to, 0) + 1
        return count

    def _begin(self) -> int:
        """Registers a new send and returns its number."""
        self._sends += 1
        self._open.add(self._sends)
        return self._sends

    def _fold_places(self, mean: Mean, held: Mapping[str, Selection]) -> FoldPlaces | None:
        """Gives each task its place in a fold, for workers that add up replies; None if each reply must come here."""
        run = self.dispatcher
        # A worker counts samples itself, in the same way.
        counts = run.samples is None or getattr(run.samples, "__func__", None) is SimulationContext.samples
        plain = isinstance(mean, OverlapMean) and type(mean).add is OverlapMean.add and mean.empty
        if not isinstance(mean, OverlapMean) or not plain or not counts:
            return None
        alike = len(set(map(id, held.values()))) == 1
        rules = FoldRules(run.gate, run.usual, run.samples is not None, shapes_of(mean.start), len(held), alike)

        def place(task: Task, position: int) -> FoldTask:
            part = held.get(task.to)
            fits = task.to != SERVER and "model" in task.models and "model" in task.expects.models
            can = fits and type(part) in (Part, Mask) and can_check(task.expects, run.method)
            return FoldTask(rules, position, part if can else None, task.expects)  # type: ignore[arg-type]

        return place

    def _replies(
        self,
        tasks: Iterable[Task],
        number: int,
        place: FoldPlaces | None = None,
        check: Check = lambda task, reply: None,
    ) -> Iterator[tuple[int, Reply, Sums | None]]:
        """Accepted replies, each with its task's position, and with the sum that holds its model already, if any."""
        waiting: dict[tuple[int, str, str, str], tuple[int, Task]] = {}
        start = len(self.entries)
        for result in self.dispatcher.engine.run(self._envelopes(tasks, waiting, start, place)):
            position, task = waiting.pop(result.task.address)
            self._note(self._judge(position + start, task, result, check))
            if self.entries[-1].verdict == "accepted" and result.reply is not None:
                yield position, result.reply, result.block
        self._open.discard(number)

    def _envelopes(
        self,
        tasks: Iterable[Task],
        waiting: dict[tuple[int, str, str, str], tuple[int, Task]],
        start: int,
        place: FoldPlaces | None = None,
    ) -> Iterator[TaskEnvelope]:
        for position, task in enumerate(tasks):
            address = (self.index, task.verb, task.to, task.key)
            if address in self._addresses:
                raise RuntimeError(f"two tasks of round {self.index} are both {address[1:]}; give them a key")
            self._addresses.add(address)
            if reason := self._absence(task):
                cost = Cost(bytes_down=0 if reason == "blacklisted" else payload(task))
                bare = replace(task, round=self.index, models=EMPTY, arrays=EMPTY)
                self._note(LedgerEntry(start + position, bare, "absent", reason, cost=cost))
                continue
            version, memory = self._memory(task.to)
            waiting[address] = (position, task)
            sent = Task(task.verb, task.to, task.key, self.index, task.models, task.arrays, task.config, version)
            if task.to != SERVER and uploads(task):
                self.dispatcher.charge(sent)
            needed = task.to == SERVER or self.needed
            yield TaskEnvelope(sent, memory, self.attempt, needed, place(task, position) if place else None)

    def _note(self, entry: LedgerEntry) -> None:
        self.entries.append(entry)
        if self.dispatcher.heard is not None:
            self.dispatcher.heard(self, entry)

    def _absence(self, task: Task) -> str:
        client, run = task.to, self.dispatcher
        if client == SERVER or self.everyone:
            return ""
        if strikes_out(run.gate, run.strikes, client):
            return "blacklisted"
        if not run.lost(client, self.index, self.attempt):
            return ""
        if REQUEST in task.config and phase_of(task) < run.lost_phase(client, self.index, self.attempt):
            return ""
        return "dropped out"

    def _memory(self, client: str) -> tuple[int, Mapping[str, Any]]:
        if client in self.staged:
            return self.index, map_tensors(self.staged[client], torch.clone)  # a task that fails must not leave a trace
        return self.dispatcher.recall(client) or (-1, EMPTY)

    def _judge(self, position: int, task: Task, result: TaskResult, check: Check) -> LedgerEntry:
        reply = result.reply
        if reply is None:
            reason = result.fault if result.skipped else f"failed: {result.fault}"
            cost = Cost(bytes_down=payload(task))
            lost = result.lost and uploads(task)
            return LedgerEntry(position, result.task, "absent", reason, cost=cost, skipped=result.skipped, lost=lost)
        known = self.dispatcher.samples is not None
        refused = result.refused or (result.block is None and (self._refusal(task, reply) or check(task, reply)))
        if refused:
            return LedgerEntry(position, result.task, "quarantined", refused, cost=reply.cost)
        measures = self.dispatcher.gate.measures(task, reply, known) if result.block is None else result.measures
        for kind, number in measures.items() if task.to != SERVER else ():
            self.accepted_numbers.setdefault(kind, []).append(number)
        if result.memory is not None:
            self.staged[task.to] = result.memory
        return LedgerEntry(position, result.task, "accepted", "", reply.weight, reply.metrics, reply.cost)

    def _refusal(self, task: Task, reply: Reply) -> str | None:
        """The gate's reason to refuse a reply."""
        run = self.dispatcher
        known = None if task.to == SERVER or run.samples is None else partial(run.samples, task.to)
        return run.gate.refusal(task, reply, known, run.usual)


def uploads(task: Task) -> bool:
    """Whether the reply to this task holds tensors that tell of a client's data. Of the phases of a secure sum,
    only the upload does."""
    return not is_protocol(task) and bool(task.expects.models or task.expects.arrays)
