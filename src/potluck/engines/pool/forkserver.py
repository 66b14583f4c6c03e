"""A fork server, and the worker processes that it forks.

The fork server is forked once, before the run starts. It holds the simulation's context, does nothing else, and forks
workers on request. So a dead worker is replaced from a clean state, the data is shared by copy-on-write, no main module
is imported again, and nothing is pickled: tasks and results go through a socket as JSON, their tensors through shared
memory. A process exits when the other end of its socket closes, and the kernel kills children whose parent has died. So
no process outlives the run.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from potluck.core import Spec
from potluck.engines.batch_messages import read_batch
from potluck.engines.batch_run import run_batch
from potluck.engines.context import SimulationContext, TaskEnvelope
from potluck.engines.pool.shared_memory import SharedMemoryBuffer, Table
from potluck.engines.worker import Worker

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(context: SimulationContext) -> tuple[socket.socket, int]:
    """Starts a fork server; returns the socket for requests, and its process id."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A signal between fork and the child's first line would raise KeyboardInterrupt in a copy of our stack.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _become_child(_serve, [theirs.fileno()], context, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, pid


def _become_child(
    main: Callable[[list[int], SimulationContext], None], handles: list[int], context: SimulationContext, parent: int
) -> NoReturn:
    """Sets up a forked process and runs its main function; never returns into the parent's code.

    The child dies with its parent, ignores Ctrl-C, and closes all files except `handles`.
    """
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died between fork and prctl, so no signal will come
            os._exit(0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        limit = os.sysconf("SC_OPEN_MAX")
        start = 3
        for handle in sorted(handles):
            os.closerange(start, handle)
            start = handle + 1
        os.closerange(start, limit if 0 < limit < 1 << 20 else 1 << 20)
        main(handles, context)
    finally:
        os._exit(0)


def _serve(handles: list[int], context: SimulationContext) -> None:
    """The fork server's main function: forks a worker for each request, until the run ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    end = socket.socket(fileno=handles[0])
    while end.recv(1):
        made: list[int] = []
        try:
            _fork_worker(context, made)
            socket.send_fds(end, [b"+"], made)
        except OSError as fault:
            end.sendall(f"{fault.strerror} (a limit on memory, processes or open files)".encode())
        for handle in made:
            os.close(handle)


def _fork_worker(context: SimulationContext, made: list[int]) -> None:
    """Forks a worker. Adds the handles for the other side to `made`: socket, two buffers, process."""
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    with theirs:
        made.append(ours.detach())
        made += [SharedMemoryBuffer.make(), SharedMemoryBuffer.make()]
        pid = os.fork()
        if pid == 0:
            _become_child(_work, [theirs.fileno(), *made[1:]], context, parent)
        made.append(os.pidfd_open(pid))


def _work(handles: list[int], context: SimulationContext) -> None:
    """A worker's main function: runs tasks until its socket closes."""
    torch.set_num_threads(1)
    gc.freeze()  # what the fork left here stays, and need not be looked through for garbage
    end, down, up = socket.socket(fileno=handles[0]), SharedMemoryBuffer(handles[1]), SharedMemoryBuffer(handles[2])
    worker, known = Worker(context), dict[Spec, Spec]()
    while (found := read(end)) is not None:
        *message, table = found
        send(
            end,
            run_batch(
                worker,
                partial(_read_tasks, message, down, table, context, known),
                partial(_put, up),
            ),
        )


def _read_tasks(
    message: list[Any], down: SharedMemoryBuffer, table: Table, context: SimulationContext, known: dict[Spec, Spec]
) -> list[TaskEnvelope]:
    return read_batch(message, down.view(table), context.method, known)


def _put(up: SharedMemoryBuffer, message: list[Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The message as bytes, with its tensors in shared memory."""
    return encode([*message, up.write(tensors)])


def encode(message: list[Any]) -> bytes:
    """A message as bytes of JSON."""
    return json.dumps(message, separators=(",", ":")).encode()


def send(end: socket.socket, data: bytes) -> None:
    """Sends one message: its length, then its bytes."""
    end.sendall(struct.pack("<Q", len(data)) + data)


def read(end: socket.socket) -> list[Any] | None:
    """The next message, or None if the other side has closed."""
    head = _read_exactly(end, 8)
    data = None if head is None else _read_exactly(end, struct.unpack("<Q", head)[0])
    if data is None:
        return None
    found: list[Any] = json.loads(data)
    return found


def _read_exactly(end: socket.socket, count: int) -> bytes | None:
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
