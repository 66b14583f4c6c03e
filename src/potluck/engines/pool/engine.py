"""Persistent worker processes of one thread each.

Small tasks are sent in batches: larger ones first, smaller ones at the end, so that workers finish together. Clients
that train stacked are sent in fixed batches, so that results do not depend on the number of workers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import torch

from potluck.core import SERVER, ResourceError, SettingsError, Task, join_tensors, split_tensors
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cores import usable_cores
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
TRIES = 3
"""How often a task that the run needs is tried, if its worker dies or hangs each time."""
PER_CORE = 32
"""The most workers for each core. More of them would only cost memory."""
PATIENCE = 60.0
"""Seconds in which the fork server must answer."""
DIED = "unreachable (its worker process died)"
RESUME = "Nothing that was saved is lost: potluck resume goes on."


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """A worker process, as the pool sees it."""

    end: socket.socket
    down: SharedMemoryBuffer
    up: SharedMemoryBuffer
    process: int
    """A handle on the process (pidfd), which never means another process, as a process id may."""

    def close(self) -> None:
        """Kills the process: it may be in the middle of a task that never ends."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        os.close(self.process)
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
    tries: int = 1
    """Which try this is, for tasks that the run needs."""

    @property
    def envelopes(self) -> list[TaskEnvelope]:
        return [self.batch.envelopes[place] for place in self.places]

    def retry(self, places: Sequence[int], tries: int) -> None:
        """Queues some of the tasks again."""
        self.again.append(Assignment(self.batch, places, self.again, tries))


class Pool:
    """Runs tasks in worker processes; results do not depend on their number."""

    def __init__(self, context: SimulationContext, workers: int = 0) -> None:
        self.notes: list[str] = []
        if sys.platform != "linux":
            raise ResourceError(f"engine 'pool' needs Linux (here: {sys.platform}); use --engine serial")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ResourceError("engine 'pool' must start before CUDA is used in this process; use --engine serial")
        torch.set_num_threads(1)
        self.count = _worker_count(workers)
        self._stack, self._deadline = context.stack, context.deadline
        self._busy: dict[WorkerProcess, Assignment] = {}
        self._due: dict[WorkerProcess, float] = {}
        self._workers: list[WorkerProcess] = []
        self._forkserver, self._pid = forkserver.start(context)
        self._forkserver.settimeout(PATIENCE)
        try:
            self._workers += (self._start_worker() for _ in range(self.count))
        except BaseException:
            self.close()
            raise

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        batches = _batches(envelopes, self.count, self._stack, alone=self._deadline > 0)
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
        plain, body = split_tensors([envelope_fields(envelope) for envelope in assignment.envelopes], once=True)
        try:
            write(worker.end, [plain, worker.down.write(body)])
            self._busy[worker] = assignment
            self._due[worker] = time.monotonic() + self._deadline * len(assignment.places)
        except OSError:
            self._drop_worker(worker)
            self._retry_or_lose(assignment, DIED)

    def _collect(self) -> None:
        """Waits for workers and stores their results. Replaces those that died, or gave no answer in time."""
        ends = {worker.end: worker for worker in self._busy}
        wake = max(0.0, min(self._due[worker] for worker in self._busy) - time.monotonic()) if self._deadline else None
        for worker in [ends[end] for end in wait(list(ends), wake) if isinstance(end, socket.socket)]:
            assignment = self._busy[worker]
            found = read(worker.end)
            if found is None:
                self._drop_worker(worker)
                self._retry_or_lose(assignment, DIED)
                continue
            results = _results(found, worker.up)
            assignment.batch.results.update(zip(assignment.places, results, strict=True))
            del self._busy[worker]
        if self._deadline:
            self._replace_hung_workers()

    def _replace_hung_workers(self) -> None:
        """Kills workers that gave no answer in time. So no answer comes late: nobody is left to give it."""
        now = time.monotonic()
        for worker in [worker for worker in self._busy if self._due[worker] <= now]:
            assignment = self._busy[worker]
            self._drop_worker(worker)
            self._retry_or_lose(assignment, f"no answer within {self._deadline:g} s")

    def _retry_or_lose(self, assignment: Assignment, reason: str) -> None:
        """Handles the end of a worker.

        A single task of a client is lost, and several are tried again one by one. Tasks that the run needs are tried
        again, at first all together: stacked training gives other last bits alone.
        """
        places, tries = assignment.places, assignment.tries
        needed = all(envelope.needed for envelope in assignment.envelopes)
        if needed and tries < TRIES and (len(places) == 1 or tries == 1):
            assignment.retry(places, tries + 1)
        elif len(places) > 1:
            for place in places:
                assignment.retry([place], tries + 1)
        else:
            (envelope,) = assignment.envelopes
            if needed and envelope.task.to == SERVER:
                raise _server_task_error(envelope.task, reason)
            assignment.batch.results[places[0]] = _lost_result(envelope.task, reason)

    def _idle_worker(self) -> WorkerProcess | None:
        """A worker with nothing to do, or None; dead or dropped workers are replaced first."""
        while len(self._workers) < self.count:
            self._workers.append(self._start_worker())
        return next((worker for worker in self._workers if worker not in self._busy), None)

    def _drop_worker(self, worker: WorkerProcess) -> None:
        worker.close()
        self._workers.remove(worker)
        self._busy.pop(worker, None)
        self._due.pop(worker, None)

    def _start_worker(self) -> WorkerProcess:
        try:
            self._forkserver.sendall(b"!")
            message, handles, _, _ = socket.recv_fds(self._forkserver, 512, 4)
        except TimeoutError:
            message, handles = f"its fork server gave no answer within {PATIENCE:g} s".encode(), []
        except OSError:
            message, handles = b"", []
        if message != b"+" or len(handles) != 4:
            why = message.decode(errors="replace") or self._fork_server_end()
            raise ResourceError(f"the pool's worker processes cannot be started: {why}. {RESUME}")
        end, down, up, process = handles
        worker = WorkerProcess(socket.socket(fileno=end), SharedMemoryBuffer(down), SharedMemoryBuffer(up), process)
        worker.end.settimeout(self._deadline or None)
        return worker

    def _fork_server_end(self) -> str:
        """How the fork server ended."""
        with suppress(ChildProcessError):
            end = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)  # `close` buries it
            if end is not None and end.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                name = signal.Signals(end.si_status).name
                return f"their fork server (process {self._pid}) was killed by {name}, perhaps for lack of memory"
        return f"their fork server (process {self._pid}) is gone"


def _worker_count(wanted: int) -> int:
    """The number of workers: one per core that this process may use, or as many as were asked for."""
    cores = os.cpu_count() or 1
    if wanted > PER_CORE * cores:
        raise SettingsError(
            f"run.workers = {wanted} is too many for a machine with {cores} cores: at most {PER_CORE * cores}. "
            "Leave it out for one per core."
        )
    return wanted or usable_cores()


def _batches(
    envelopes: Iterable[TaskEnvelope], workers: int, stack: int, alone: bool = False
) -> Iterator[EnvelopeBatch]:
    """Groups tasks into batches: of fixed size if they train stacked, else smaller and smaller towards the end.

    With `alone`, each task that is not stacked is its own batch.
    """
    rest = iter(envelopes)
    while drawn := _draw(rest, max(stack, 1) if stack > 1 else MANY):
        while drawn:
            size = len(drawn) if stack > 1 else 1 if alone else min(BATCH, max(1, len(drawn) // (4 * workers)))
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


def _lost_result(task: Task, reason: str) -> TaskResult:
    bare = Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
    return TaskResult(bare, fault=reason, lost=True)


def _server_task_error(task: Task, reason: str) -> ResourceError:
    what = f"'{task.verb}'" + (f" ({task.key})" if task.key else "")
    return ResourceError(f"the server's own {what} failed {TRIES} times: {reason}. {RESUME}")


def _results(message: list[Any], up: SharedMemoryBuffer) -> Iterator[TaskResult]:
    plains, table = message
    tensors = up.copy(table)
    for number, plain in enumerate(plains):
        mark = f"{number} "
        body = {name.removeprefix(mark): tensor for name, tensor in tensors.items() if name.startswith(mark)}
        yield TaskResult(**join_tensors(plain, body))
