"""Persistent worker processes of one thread each."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait

import torch

from potluck.core import ResourceError, SettingsError
from potluck.engines.batch_messages import read_results, write_batch
from potluck.engines.batches import RESUME, BatchEngine
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cores import usable_cores
from potluck.engines.pool import forkserver
from potluck.engines.pool.forkserver import encode, read, send
from potluck.engines.pool.shared_memory import SharedMemoryBuffer

PER_CORE = 32
"""The most workers for each core. More of them would only cost memory."""
PATIENCE = 60.0
"""Seconds in which the fork server must answer."""


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


class Pool(BatchEngine[WorkerProcess]):
    """Runs tasks in worker processes."""

    sums = True

    def __init__(self, context: SimulationContext, workers: int = 0) -> None:
        if sys.platform != "linux":
            raise ResourceError(f"engine 'pool' needs Linux (here: {sys.platform}); use --engine serial")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ResourceError("engine 'pool' must start before CUDA is used in this process; use --engine serial")
        torch.set_num_threads(1)
        super().__init__(context, _worker_count(workers))
        self._forkserver, self._pid = forkserver.start(context)
        self._forkserver.settimeout(PATIENCE)
        try:
            self._replace_lost_workers()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.close()
        self._forkserver.close()
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _replace_lost_workers(self) -> None:
        while len(self._workers) < self.count:
            self._workers.append(self._start_worker())

    def _end_worker(self, worker: WorkerProcess) -> None:
        worker.close()

    def _post(self, worker: WorkerProcess, envelopes: Sequence[TaskEnvelope]) -> bool:
        message, tensors = write_batch(envelopes)
        try:
            send(worker.end, encode([*message, worker.down.write(tensors)]))
        except OSError:
            return False
        return True

    def _receive(self, timeout: float | None) -> Iterator[tuple[WorkerProcess, Sequence[TaskResult] | None]]:
        ends = {worker.end: worker for worker in self._busy}
        for worker in [ends[end] for end in wait(list(ends), timeout) if isinstance(end, socket.socket)]:
            found = read(worker.end)
            if found is None:
                yield worker, None
                continue
            *message, table = found
            yield worker, read_results(message, worker.up.copy(table), self._busy[worker].envelopes)

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
