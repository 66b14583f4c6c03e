"""Persistent worker processes of one thread each.

A *nursery* is forked once, before the run starts: a process that owns the world, does nothing, and forks workers on
request. So a worker that dies is replaced from a clean state, the data is shared by copy-on-write, no main module is
imported again, and nothing is pickled: tasks and replies cross a socket in the message format. Whoever loses the other
end of its socket exits, and the kernel ends orphans with their parent, so no process outlives the run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import NoReturn

import torch

from potluck.core import ResourceError, pack
from potluck.engines.serial import letter_of, outcome_of, posted, sheet
from potluck.engines.site import Letter, Outcome, Site, World

AHEAD = 4
"""Letters drawn before the oldest one is answered, per worker."""


class Pool:
    """Carries letters to worker processes; results do not depend on how many there are."""

    def __init__(self, world: World, workers: int = 0) -> None:
        if sys.platform != "linux":
            raise ResourceError(f"engine 'pool' needs Linux (here: {sys.platform}); use --engine serial")
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ResourceError("engine 'pool' must start before CUDA is used in this process; use --engine serial")
        torch.set_num_threads(1)
        self.count = workers or os.cpu_count() or 1
        self._nursery, self._pid = _start_nursery(world)
        self._workers = [self._hire() for _ in range(self.count)]
        self._busy: dict[socket.socket, tuple[int, Letter, dict[int, Outcome]]] = {}
        """Who works on what, and where the outcome goes: several sends may be under way, read side by side."""

    def carry(self, letters: Iterable[Letter]) -> Iterator[Outcome]:
        rest = enumerate(letters)
        done: dict[int, Outcome] = {}
        drawn = given = 0
        more = True
        try:
            while more or given < drawn:
                while more and self._idle() and drawn - given < AHEAD * self.count:
                    number, letter = next(rest, (-1, None))
                    more = letter is not None
                    if letter is not None:
                        drawn = number + 1
                        self._post(number, letter, done)
                if given in done:
                    yield done.pop(given)
                    given += 1
                elif self._busy:
                    self._collect()
        finally:
            for worker in [worker for worker, (_, _, where) in self._busy.items() if where is done]:
                self._dismiss(worker)

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.close()
        self._nursery.close()
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _post(self, number: int, letter: Letter, done: dict[int, Outcome]) -> None:
        while (worker := self._idle()) is None:  # drawing the letter may have set others to work
            self._collect()
        try:
            write(worker, pack(sheet(letter)))
            self._busy[worker] = (number, letter, done)
        except OSError:
            done[number] = _unreachable(letter)
            self._dismiss(worker)

    def _collect(self) -> None:
        """Waits for workers and takes what they bring."""
        for worker in wait(list(self._busy)):
            assert isinstance(worker, socket.socket)
            number, letter, done = self._busy[worker]
            data = read(worker)
            if data is None:
                done[number] = _unreachable(letter)
                self._dismiss(worker)
            else:
                done[number] = outcome_of(data)
                del self._busy[worker]

    def _idle(self) -> socket.socket | None:
        """A worker with nothing to do; those that died or were dismissed are replaced first."""
        while len(self._workers) < self.count:
            self._workers.append(self._hire())
        return next((worker for worker in self._workers if worker not in self._busy), None)

    def _dismiss(self, worker: socket.socket) -> None:
        worker.close()
        self._workers.remove(worker)
        self._busy.pop(worker, None)

    def _hire(self) -> socket.socket:
        try:
            self._nursery.sendall(b"!")
            message, handles, _, _ = socket.recv_fds(self._nursery, 1, 1)
        except OSError:
            message, handles = b"", []
        if message != b"+" or not handles:
            raise ResourceError("the pool's worker processes cannot be started: memory or process limit exhausted")
        return socket.socket(fileno=handles[0])


def _unreachable(letter: Letter) -> Outcome:
    task = letter.task
    bare = type(task)(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
    return Outcome(bare, fault="unreachable (its worker process died)")


def write(end: socket.socket, data: bytes) -> None:
    """One message: its length, then its bytes."""
    end.sendall(struct.pack("<Q", len(data)))
    end.sendall(data)


def read(end: socket.socket) -> bytes | None:
    """The next message, or None when the other side is gone."""
    head = _exactly(end, 8)
    return None if head is None else _exactly(end, struct.unpack("<Q", head)[0])


def _exactly(end: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        try:
            more = end.recv_into(view[got:])
        except OSError:
            return None
        if not more:
            return None
        got += more
    return bytes(buffer)


def _start_nursery(world: World) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _live(_nurse, theirs, world)
    theirs.close()
    return ours, pid


def _live(life: Callable[[socket.socket, World], None], end: socket.socket, world: World) -> NoReturn:
    """Makes a forked process a quiet child (it dies with its parent, leaves Ctrl-C to it, holds none of its files),
    lives its life, and never returns into the parent's code."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(3, end.fileno())
        os.closerange(end.fileno() + 1, limit if 0 < limit < 1 << 20 else 1 << 20)
        life(end, world)
    finally:
        os._exit(0)


def _nurse(end: socket.socket, world: World) -> None:
    """The nursery's life: fork a worker for every request, until the run is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while end.recv(1):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            _live(_work, theirs, world)
        theirs.close()
        socket.send_fds(end, [b"+"], [ours.fileno()])
        ours.close()


def _work(end: socket.socket, world: World) -> None:
    """A worker's life: answer letters until nobody sends any."""
    torch.set_num_threads(1)
    site = Site(world)
    while (data := read(end)) is not None:
        write(end, posted(site.answer(letter_of(data))))
