"""Persistent worker processes of one thread each.

Small tasks are sent in batches: larger ones first, smaller ones at the end, so that workers finish together. Clients
that train stacked are sent in fixed batches, so that results do not depend on the number of workers.
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
"""Batches in progress or waiting to be returned, per worker."""
SMALL = 4_000_000
"""Tasks are sent in batches as long as their tensors have at most this many bytes."""
MANY = 256
"""The most tasks that are read ahead."""
BATCH = 16
"""The most tasks in a batch, unless run.stack is larger."""


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


class Pool:
    """Runs tasks in worker processes; results do not depend on their number."""

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
                while again and self._idle_worker():
                    self._assign(again.popleft())
                while more and self._idle_worker() and len(under_way) < AHEAD * self.count:
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
        while (worker := self._idle_worker()) is None:  # reading tasks may have started another send
            self._collect()
        plain, body = split_tensors(
            [envelope_fields(assignment.batch.envelopes[place]) for place in assignment.places], once=True
        )
        try:
            write(worker.end, [plain, worker.down.write(body)])
            self._busy[worker] = assignment
        except OSError:
            self._drop_worker(worker)
            self._retry_or_lose(assignment)

    def _collect(self) -> None:
        """Waits for workers and stores their results."""
        ends = {worker.end: worker for worker in self._busy}
        for worker in [ends[end] for end in wait(list(ends)) if isinstance(end, socket.socket)]:
            assignment = self._busy[worker]
            found = read(worker.end)
            if found is None:
                self._drop_worker(worker)
                self._retry_or_lose(assignment)
                continue
            results = _results(found, worker.up)
            assignment.batch.results.update(zip(assignment.places, results, strict=True))
            del self._busy[worker]

    def _retry_or_lose(self, assignment: Assignment) -> None:
        """Handles the death of a worker: a single task is lost; several tasks are tried again one by one."""
        if len(assignment.places) == 1:
            (place,) = assignment.places
            assignment.batch.results[place] = _unreachable_result(assignment.batch.envelopes[place])
        else:
            assignment.again.extend(
                Assignment(assignment.batch, [place], assignment.again) for place in assignment.places
            )

    def _idle_worker(self) -> WorkerProcess | None:
        """A worker with nothing to do, or None; dead or dropped workers are replaced first."""
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
    """Groups tasks into batches: of fixed size if they train stacked, else smaller and smaller towards the end."""
    rest = iter(envelopes)
    while drawn := _draw(rest, max(stack, 1) if stack > 1 else MANY):
        while drawn:
            size = len(drawn) if stack > 1 else min(BATCH, max(1, len(drawn) // (4 * workers)))
            yield EnvelopeBatch(drawn[:size])
            drawn = drawn[size:]


def _draw(rest: Iterator[TaskEnvelope], most: int) -> list[TaskEnvelope]:
    """The next tasks, as long as their tensors are small in total; shared tensors count once."""
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


def _unreachable_result(envelope: TaskEnvelope) -> TaskResult:
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
