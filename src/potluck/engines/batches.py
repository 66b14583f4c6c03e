"""Tasks in batches on several workers: who runs what, what is sent again if a worker dies, results in order.

Small tasks are sent in batches: larger ones first, smaller ones at the end, so that workers finish together. Clients
that train stacked are sent in fixed batches, so that results do not depend on the number of workers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import Generic, TypeVar

from potluck.core import SERVER, ResourceError, Task
from potluck.engines.context import FoldRules, SimulationContext, TaskEnvelope, TaskResult
from potluck.parts import BLOCK

AHEAD = 4
"""Batches in progress or waiting to be returned, per worker."""
SMALL = 4_000_000
"""Tasks are sent in batches as long as their tensors have at most this many bytes."""
MANY = 256
"""The most tasks that are read ahead."""
BATCH = 16
"""The most tasks in a batch, unless run.stack is larger."""
BLOCKS_EACH = 2
"""Workers add up replies if there are so many blocks for each of them; with fewer, they would not finish together."""
TRIES = 3
"""How often a task is tried that is to be tried again, if its worker dies or hangs each time."""
DIED = "unreachable (its worker process died)"
RESUME = "Nothing that was saved is lost: potluck resume goes on."

W = TypeVar("W")


@dataclass(eq=False)
class EnvelopeBatch:
    """Tasks that are sent together, and their results so far."""

    envelopes: Sequence[TaskEnvelope]
    results: dict[int, TaskResult] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.envelopes)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The tasks of a batch that a worker is running."""

    batch: EnvelopeBatch
    places: Sequence[int]
    again: deque[Assignment]
    """The queue for a retry if the worker dies. It also identifies the send, as several sends may run at once."""
    tries: int = 1
    """Which try this is."""

    @property
    def envelopes(self) -> list[TaskEnvelope]:
        """Its tasks. Those of a batch that is sent again in pieces are no whole blocks, so each reply comes back."""
        found = [self.batch.envelopes[place] for place in self.places]
        whole = len(found) == len(self.batch.envelopes)
        return found if whole else list(map(_unsummed, found))

    def retry(self, places: Sequence[int], tries: int) -> None:
        """Queues some of the tasks again."""
        self.again.append(Assignment(self.batch, places, self.again, tries))


class BatchEngine(ABC, Generic[W]):
    """Runs tasks on workers of the type W; results do not depend on their number."""

    patient = False
    """Whether a client's task is sent again if its worker dies; if not, the client counts as absent."""
    sums = False
    """Whether workers add up the replies to tasks that have a place in a fold (`TaskEnvelope.fold`). Such tasks are
    posted together only if they are whole blocks."""

    together = 0
    """How many tasks a worker trains side by side, as on a GPU; 0: one after the other."""

    def __init__(self, context: SimulationContext, count: int) -> None:
        self.notes: list[str] = []
        self.count = count
        self._stack, self._deadline = context.stack, context.deadline
        self._workers: list[W] = []
        self._busy: dict[W, Assignment] = {}
        self._due: dict[W, float] = {}

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        alone = self._deadline > 0
        if self.sums and not alone and self._stack < 2:
            batches = _block_batches(envelopes, self.count)
        else:
            batches = _batches(envelopes, self.count, self._stack, alone, self.together)
        under_way: deque[EnvelopeBatch] = deque()
        again: deque[Assignment] = deque()
        more = True
        try:
            while more or under_way:
                while again and (worker := self._idle_worker(again[0].envelopes)):
                    self._assign(worker, again.popleft())
                while more and self._idle_worker() and len(under_way) < AHEAD * self.count:
                    batch = next(batches, None)
                    more = batch is not None
                    if batch is not None:
                        under_way.append(batch)
                        self._assign_when_idle(Assignment(batch, range(len(batch.envelopes)), again))
                if under_way and under_way[0].done:
                    batch = under_way.popleft()
                    yield from (batch.results[place] for place in range(len(batch.envelopes)))
                elif self._busy or not self._workers:  # the busy ones may work for another send
                    self._collect()
        finally:
            for worker in [worker for worker, assignment in self._busy.items() if assignment.again is again]:
                self._drop_worker(worker)

    @abstractmethod
    def close(self) -> None:
        """Ends every worker."""

    @abstractmethod
    def _replace_lost_workers(self) -> None:
        """Starts workers for those that are missing."""

    @abstractmethod
    def _end_worker(self, worker: W) -> None:
        """Ends a worker, whatever it does, and frees what belongs to it."""

    @abstractmethod
    def _post(self, worker: W, envelopes: Sequence[TaskEnvelope]) -> bool:
        """Sends tasks to a worker; False if it is gone."""

    @abstractmethod
    def _receive(self, timeout: float | None) -> Iterator[tuple[W, Sequence[TaskResult] | None]]:
        """Waits for busy workers, at most so many seconds; None instead of results: the worker died."""

    def _choose(self, idle: Sequence[W], envelopes: Sequence[TaskEnvelope]) -> W:
        """The worker to take for these tasks."""
        return idle[0]

    def _idle_worker(self, envelopes: Sequence[TaskEnvelope] = ()) -> W | None:
        """A worker with nothing to do, or None; dead or dropped workers are replaced first."""
        self._replace_lost_workers()
        idle = [worker for worker in self._workers if worker not in self._busy]
        return self._choose(idle, envelopes) if idle else None

    def _assign_when_idle(self, assignment: Assignment) -> None:
        while (worker := self._idle_worker(assignment.envelopes)) is None:  # reading tasks may have begun another send
            self._collect()
        self._assign(worker, assignment)

    def _assign(self, worker: W, assignment: Assignment) -> None:
        if self._post(worker, assignment.envelopes):
            self._busy[worker] = assignment
            self._due[worker] = time.monotonic() + self._deadline * len(assignment.places)
        else:
            self._drop_worker(worker)
            self._retry_or_lose(assignment, DIED)

    def _collect(self) -> None:
        """Waits for workers and stores their results. Drops those that died, or gave no answer in time."""
        wake = None
        if self._deadline and self._busy:
            wake = max(0.0, min(self._due[worker] for worker in self._busy) - time.monotonic())
        for worker, results in self._receive(wake):
            assignment = self._busy[worker]
            if results is None:
                self._drop_worker(worker)
                self._retry_or_lose(assignment, DIED)
            else:
                assignment.batch.results.update(zip(assignment.places, results, strict=True))
                del self._busy[worker]
        if self._deadline:
            self._drop_hung_workers()

    def _drop_hung_workers(self) -> None:
        """Ends workers that gave no answer in time. So no answer comes late: nobody is left to give it."""
        now = time.monotonic()
        for worker in [worker for worker in self._busy if self._due[worker] <= now]:
            assignment = self._busy[worker]
            self._drop_worker(worker)
            self._retry_or_lose(assignment, f"no answer within {self._deadline:g} s")

    def _drop_worker(self, worker: W) -> None:
        self._end_worker(worker)
        self._workers.remove(worker)
        self._busy.pop(worker, None)
        self._due.pop(worker, None)

    def _retry_or_lose(self, assignment: Assignment, reason: str) -> None:
        """Handles the end of a worker.

        Several tasks are tried again one by one; at first all together if they are stacked, as stacked training gives
        other last bits alone. A single task is tried again if the run needs it or the engine is patient, else it is
        lost.
        """
        places, tries = assignment.places, assignment.tries
        again = self.patient or all(envelope.needed for envelope in assignment.envelopes)
        if again and tries < TRIES and (len(places) == 1 or (tries == 1 and self._stack > 1)):
            assignment.retry(places, tries + 1)
        elif len(places) > 1:
            for place in places:
                assignment.retry([place], 1)
        else:
            (envelope,) = assignment.envelopes
            if envelope.task.to == SERVER:
                raise _server_task_error(envelope.task, reason)
            assignment.batch.results[places[0]] = _lost_result(envelope.task, reason)


def _batches(
    envelopes: Iterable[TaskEnvelope], workers: int, stack: int, alone: bool = False, together: int = 0
) -> Iterator[EnvelopeBatch]:
    """Groups tasks into batches: of fixed size if they train stacked, else smaller and smaller towards the end.

    With `alone`, each task that is not stacked is its own batch. With `together`, workers share the tasks out equally,
    and each gets at most so many at a time.
    """
    rest = iter(envelopes)
    if together:
        while shared := list(islice(rest, together * workers)):
            share = -(-len(shared) // workers)
            for start in range(0, len(shared), share):
                yield EnvelopeBatch(list(map(_unsummed, shared[start : start + share])))
        return
    while drawn := _draw(rest, max(stack, 1) if stack > 1 else MANY)[0]:
        while drawn:
            size = len(drawn) if stack > 1 else 1 if alone else min(BATCH, max(1, len(drawn) // (4 * workers)))
            yield EnvelopeBatch(list(map(_unsummed, drawn[:size])))
            drawn = drawn[size:]


def _block_batches(envelopes: Iterable[TaskEnvelope], workers: int) -> Iterator[EnvelopeBatch]:
    """Groups tasks into whole blocks of a fold, if there are enough of them and they are small; else as `_batches`.

    A batch of equal tasks has several blocks, fewer and fewer towards the end.
    """
    rest = iter(envelopes)
    first = next(rest, None)
    if first is None:
        return
    every = chain([first], rest)
    if first.fold is None or first.fold.rules.tasks < BLOCKS_EACH * BLOCK * workers:
        yield from _batches(every, workers, 0)
        return
    batch: list[TaskEnvelope] = []
    size = 0
    for _, group in groupby(every, lambda envelope: envelope.fold and envelope.fold.block):
        block = iter(group)
        drawn, more = _draw(block, BLOCK)
        left = list(islice(block, 1))
        whole = not left and all(envelope.fold is not None and envelope.fold.held is not None for envelope in drawn)
        if whole:
            batch, size = batch + drawn, size + more
        if batch and (not whole or size > SMALL or _enough(batch, first.fold.rules, workers)):
            yield EnvelopeBatch(batch)
            batch, size = [], 0
        if not whole:
            yield from _batches(chain(drawn, left, block), workers, 0)
    if batch:
        yield EnvelopeBatch(batch)


def _enough(batch: Sequence[TaskEnvelope], rules: FoldRules, workers: int) -> bool:
    """Whether a batch of blocks is half of a worker's share of the tasks that were left before it.

    If tasks are unequal, one block is enough: several may take longer than all that the others have to do.
    """
    start = batch[0].fold.position if batch[0].fold is not None else 0
    return not rules.alike or 2 * workers * len(batch) >= rules.tasks - start


def _unsummed(envelope: TaskEnvelope) -> TaskEnvelope:
    return envelope if envelope.fold is None else replace(envelope, fold=None)


def _draw(rest: Iterator[TaskEnvelope], most: int) -> tuple[list[TaskEnvelope], int]:
    """The next tasks, as long as their tensors are small in total, and that total; shared tensors count once."""
    found: list[TaskEnvelope] = []
    seen: dict[int, int] = {}
    read: set[int] = set()
    total = 0
    while len(found) < most and total <= SMALL:
        envelope = next(rest, None)
        if envelope is None:
            break
        found.append(envelope)
        for arrays in (envelope.task.arrays, *(model.arrays for model in envelope.task.models.values())):
            if arrays and id(arrays) not in read:
                read.add(id(arrays))
                seen |= {id(tensor): tensor.nbytes for tensor in arrays.values()}
                total = sum(seen.values())
    return found, total


def _lost_result(task: Task, reason: str) -> TaskResult:
    bare = Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
    return TaskResult(bare, fault=reason, lost=True)


def _server_task_error(task: Task, reason: str) -> ResourceError:
    what = f"'{task.verb}'" + (f" ({task.key})" if task.key else "")
    return ResourceError(f"the server's own {what} failed {TRIES} times: {reason}. {RESUME}")
