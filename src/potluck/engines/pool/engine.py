"""Persistent worker processes of one thread each.

Small letters travel in batches, larger at first and smaller towards the end, so that workers finish together. Clients
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
from potluck.engines.serial import sheet

AHEAD = 4
"""Batches under way or waiting to be given back, per worker."""
SMALL = 4_000_000
"""Letters are batched while their tensors take no more bytes than this."""
MANY = 256
"""Letters drawn at a time, at most."""
BATCH = 16
"""Letters to a batch, at most, unless the world stacks more."""


@dataclass(frozen=True, eq=False)
class _Worker:
    """A worker process, as the pool sees it."""

    end: socket.socket
    down: SharedMemoryBuffer
    up: SharedMemoryBuffer

    def close(self) -> None:
        self.end.close()
        self.down.close()
        self.up.close()


@dataclass(eq=False)
class _Batch:
    """Letters that travel together, and what has come of each so far."""

    envelopes: Sequence[TaskEnvelope]
    outcomes: dict[int, TaskResult] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.outcomes) == len(self.envelopes)


@dataclass(frozen=True, eq=False)
class _Errand:
    """What a worker is busy with: some letters of a batch."""

    batch: _Batch
    places: Sequence[int]
    again: deque[_Errand]
    """Where it goes if its worker dies; also whose it is, for several sends may be under way, read side by side."""


class Pool:
    """Carries letters to worker processes; results do not depend on how many there are."""

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
        self._workers = [self._hire() for _ in range(self.count)]
        self._busy: dict[_Worker, _Errand] = {}

    def carry(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        batches = _batches(envelopes, self.count, self._stack)
        under_way: deque[_Batch] = deque()
        again: deque[_Errand] = deque()
        more = True
        try:
            while more or under_way:
                while again and self._idle():
                    self._post(again.popleft())
                while more and self._idle() and len(under_way) < AHEAD * self.count:
                    batch = next(batches, None)
                    more = batch is not None
                    if batch is not None:
                        under_way.append(batch)
                        self._post(_Errand(batch, range(len(batch.envelopes)), again))
                if under_way and under_way[0].done:
                    batch = under_way.popleft()
                    yield from (batch.outcomes[place] for place in range(len(batch.envelopes)))
                elif self._busy:
                    self._collect()
        finally:
            for worker in [worker for worker, errand in self._busy.items() if errand.again is again]:
                self._dismiss(worker)

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.close()
        self._forkserver.close()
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _post(self, errand: _Errand) -> None:
        while (worker := self._idle()) is None:  # drawing the letters may have set others to work
            self._collect()
        plain, body = split_tensors([sheet(errand.batch.envelopes[place]) for place in errand.places], once=True)
        try:
            write(worker.end, [plain, worker.down.lay(body)])
            self._busy[worker] = errand
        except OSError:
            self._dismiss(worker)
            self._failed(errand)

    def _collect(self) -> None:
        """Waits for workers and takes what they bring."""
        ends = {worker.end: worker for worker in self._busy}
        for worker in [ends[end] for end in wait(list(ends)) if isinstance(end, socket.socket)]:
            errand = self._busy[worker]
            found = read(worker.end)
            if found is None:
                self._dismiss(worker)
                self._failed(errand)
                continue
            outcomes = _outcomes(found, worker.up)
            errand.batch.outcomes.update(zip(errand.places, outcomes, strict=True))
            del self._busy[worker]

    def _failed(self, errand: _Errand) -> None:
        """A worker died: a letter that was alone is lost, of several each is tried again by itself."""
        if len(errand.places) == 1:
            (place,) = errand.places
            errand.batch.outcomes[place] = _unreachable(errand.batch.envelopes[place])
        else:
            errand.again.extend(_Errand(errand.batch, [place], errand.again) for place in errand.places)

    def _idle(self) -> _Worker | None:
        """A worker with nothing to do; those that died or were dismissed are replaced first."""
        while len(self._workers) < self.count:
            self._workers.append(self._hire())
        return next((worker for worker in self._workers if worker not in self._busy), None)

    def _dismiss(self, worker: _Worker) -> None:
        worker.close()
        self._workers.remove(worker)
        self._busy.pop(worker, None)

    def _hire(self) -> _Worker:
        try:
            self._forkserver.sendall(b"!")
            message, handles, _, _ = socket.recv_fds(self._forkserver, 1, 3)
        except OSError:
            message, handles = b"", []
        if message != b"+" or len(handles) != 3:
            raise ResourceError("the pool's worker processes cannot be started: memory or process limit exhausted")
        end, down, up = handles
        return _Worker(socket.socket(fileno=end), SharedMemoryBuffer(down), SharedMemoryBuffer(up))


def _batches(envelopes: Iterable[TaskEnvelope], workers: int, stack: int) -> Iterator[_Batch]:
    """Letters in batches: so many as are stacked or, of small ones, fewer and fewer towards the end."""
    rest = iter(envelopes)
    while drawn := _drawn(rest, max(stack, 1) if stack > 1 else MANY):
        while drawn:
            size = len(drawn) if stack > 1 else min(BATCH, max(1, len(drawn) // (4 * workers)))
            yield _Batch(drawn[:size])
            drawn = drawn[size:]


def _drawn(rest: Iterator[TaskEnvelope], most: int) -> list[TaskEnvelope]:
    """The next letters, as long as their tensors are small; those that they share count once."""
    found: list[TaskEnvelope] = []
    seen: dict[int, int] = {}
    while len(found) < most and sum(seen.values()) <= SMALL:
        envelope = next(rest, None)
        if envelope is None:
            break
        found.append(envelope)
        for arrays in (envelope.task.arrays, *(model.arrays or {} for model in envelope.task.models.values())):
            seen |= {id(tensor): tensor.nbytes for tensor in arrays.values()}
    return found


def _unreachable(envelope: TaskEnvelope) -> TaskResult:
    task = envelope.task
    bare = Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
    return TaskResult(bare, fault="unreachable (its worker process died)")


def _outcomes(message: list[Any], up: SharedMemoryBuffer) -> Iterator[TaskResult]:
    plains, table = message
    tensors = up.fetch(table)
    for number, plain in enumerate(plains):
        mark = f"{number} "
        body = {name.removeprefix(mark): tensor for name, tensor in tensors.items() if name.startswith(mark)}
        yield TaskResult(**join_tensors(plain, body))
