"""Persistent worker processes of one thread each.

Small tasks travel in batches, larger at first and smaller towards the end, so that workers finish together. Clients
that train stacked come in fixed batches, so that what they compute does not depend on the number of workers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import torch

from potluck.core import ResourceError, Task, join_tensors, split_tensors
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.pool import forkserver
from potluck.engines.pool.forkserver import read, write
from potluck.engines.pool.shared_memory import SharedMemoryBuffer
from potluck.engines.serial import envelope_fields

AHEAD = 4
"""Batches under way or waiting to be given back, per worker."""
SMALL = 4_000_000
"""Tasks are batched while their tensors take no more bytes than this."""
MANY = 256
"""Tasks drawn at a time, at most."""
BATCH = 16
"""Tasks to a batch, at most, unless run.stack is larger."""


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """A worker process, as the pool sees it."""

    end: socket.socket
    down: SharedMemoryBuffer
    up: SharedMemoryBuffer

    def close(self) -> None:
        self.end.close()
        self.down.close()
        self.up.close()


@dataclass(eq=False)
class EnvelopeBatch:
    """Tasks that travel together, and what has come of each so far."""

    envelopes: Sequence[TaskEnvelope]
    results: dict[int, TaskResult] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.envelopes)


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a worker is busy with: some tasks of a batch."""

    batch: EnvelopeBatch
    places: Sequence[int]
    again: deque[Assignment]
    """Where it goes if its worker dies; also whose it is, for several sends may be under way, read side by side."""


class Pool:
    """Carries tasks to worker processes; results do not depend on how many there are."""

    def __init__(self, context: SimulationContext, workers: int = 0) -> None:
        self.notes: list[str] = []
        if sys.platform != "linux":
            raise ResourceError(f"engine 'pool' needs Linux (here: {sys.platform}); use --engine serial")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ResourceError("engine 'pool' must start before CUDA is used in this process; use --engine serial")
        torch.set_num_threads(1)
        self.count = workers or os.cpu_count() or 1
        self._stack = context.stack
        self._forkserver, self._pid = forkserver.start(context)
        self._workers = [self._start_worker() for _ in range(self.count)]
        self._busy: dict[WorkerProcess, Assignment] = {}

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        batches = _batches(envelopes, self.count, self._stack)
        under_way: deque[EnvelopeBatch] = deque()
        again: deque[Assignment] = deque()
        more = True
        try:
            while more or under_way:
                while again and self._idle():
                    self._assign(again.popleft())
                while more and self._idle() and len(under_way) < AHEAD * self.count:
                    batch = next(batches, None)
                    more = batch is not None
                    if batch is not None:
                        under_way.append(batch)
                        self._assign(Assignment(batch, range(len(batch.envelopes)), again))
                if under_way and under_way[0].done:
                    batch = under_way.popleft()
                    yield from (batch.results[place] for place in range(len(batch.envelopes)))
                elif self._busy:
                    self._collect()
        finally:
            for worker in [worker for worker, assignment in self._busy.items() if assignment.again is again]:
                self._drop_worker(worker)

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.close()
        self._forkserver.close()
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _assign(self, assignment: Assignment) -> None:
        while (worker := self._idle()) is None:  # drawing the tasks may have set others to work
            self._collect()
        plain, body = split_tensors(
            [envelope_fields(assignment.batch.envelopes[place]) for place in assignment.places], once=True
        )
        try:
            write(worker.end, [plain, worker.down.write(body)])
            self._busy[worker] = assignment
        except OSError:
            self._drop_worker(worker)
            self._failed(assignment)

    def _collect(self) -> None:
        """Waits for workers and takes what they bring."""
        ends = {worker.end: worker for worker in self._busy}
        for worker in [ends[end] for end in wait(list(ends)) if isinstance(end, socket.socket)]:
            assignment = self._busy[worker]
            found = read(worker.end)
            if found is None:
                self._drop_worker(worker)
                self._failed(assignment)
                continue
            results = _results(found, worker.up)
            assignment.batch.results.update(zip(assignment.places, results, strict=True))
            del self._busy[worker]

    def _failed(self, assignment: Assignment) -> None:
        """A worker died: a task that was alone is lost, of several each is tried again by itself."""
        if len(assignment.places) == 1:
            (place,) = assignment.places
            assignment.batch.results[place] = _unreachable(assignment.batch.envelopes[place])
        else:
            assignment.again.extend(
                Assignment(assignment.batch, [place], assignment.again) for place in assignment.places
            )

    def _idle(self) -> WorkerProcess | None:
        """A worker with nothing to do; those that died or were dismissed are replaced first."""
        while len(self._workers) < self.count:
            self._workers.append(self._start_worker())
        return next((worker for worker in self._workers if worker not in self._busy), None)

    def _drop_worker(self, worker: WorkerProcess) -> None:
        worker.close()
        self._workers.remove(worker)
        self._busy.pop(worker, None)

    def _start_worker(self) -> WorkerProcess:
        try:
            self._forkserver.sendall(b"!")
            message, handles, _, _ = socket.recv_fds(self._forkserver, 1, 3)
        except OSError:
            message, handles = b"", []
        if message != b"+" or len(handles) != 3:
            raise ResourceError("the pool's worker processes cannot be started: memory or process limit exhausted")
        end, down, up = handles
        return WorkerProcess(socket.socket(fileno=end), SharedMemoryBuffer(down), SharedMemoryBuffer(up))


def _batches(envelopes: Iterable[TaskEnvelope], workers: int, stack: int) -> Iterator[EnvelopeBatch]:
    """Tasks in batches: so many as are stacked or, of small ones, fewer and fewer towards the end."""
    rest = iter(envelopes)
    while drawn := _draw(rest, max(stack, 1) if stack > 1 else MANY):
        while drawn:
            size = len(drawn) if stack > 1 else min(BATCH, max(1, len(drawn) // (4 * workers)))
            yield EnvelopeBatch(drawn[:size])
            drawn = drawn[size:]


def _draw(rest: Iterator[TaskEnvelope], most: int) -> list[TaskEnvelope]:
    """The next tasks, as long as their tensors are small; those that they share count once."""
    found: list[TaskEnvelope] = []
    seen: dict[int, int] = {}
    while len(found) < most and sum(seen.values()) <= SMALL:
        envelope = next(rest, None)
        if envelope is None:
            break
        found.append(envelope)
        for arrays in (envelope.task.arrays, *(model.arrays for model in envelope.task.models.values())):
            seen |= {id(tensor): tensor.nbytes for tensor in arrays.values()}
    return found


def _unreachable(envelope: TaskEnvelope) -> TaskResult:
    task = envelope.task
    bare = Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
    return TaskResult(bare, fault="unreachable (its worker process died)")


def _results(message: list[Any], up: SharedMemoryBuffer) -> Iterator[TaskResult]:
    plains, table = message
    tensors = up.copy(table)
    for number, plain in enumerate(plains):
        mark = f"{number} "
        body = {name.removeprefix(mark): tensor for name, tensor in tensors.items() if name.startswith(mark)}
        yield TaskResult(**join_tensors(plain, body))
