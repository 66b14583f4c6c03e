"""Messages over gRPC with mutual TLS: the node's side. The server's, and how they speak, is in grpc_transport.py."""

from __future__ import annotations

import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from potluck.core import ResourceError, one_line
from potluck.engines.remote import frames
from potluck.engines.remote.frames import Arriving, FrameError
from potluck.engines.remote.grpc_library import CODES, FETCH, OPTIONS, POST, SERVICE, check_pems, fault_of, grpc, plain
from potluck.engines.remote.transport import Parts, Respond

_TICK = 0.2
"""Seconds after which the calling thread looks whether it should stop."""
_OURS = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 10_000))


@dataclass(frozen=True)
class Patience:
    """How long a node waits for what, in seconds."""

    first: float = 1.0
    """Before it tries again to connect; then twice as long, and so on."""
    most: float = 15.0
    """The longest wait before it tries again."""
    in_use: float = 90.0
    """While its key is in use at another place, which may be its own old connection."""


@dataclass(frozen=True, eq=False)
class _Job:
    """A message that this node has to answer."""

    session: str
    number: int
    parts: Parts
    fault: str = ""
    """Why it could not be taken."""


def attend(
    address: str,
    ca: bytes,
    cert: bytes,
    key: bytes,
    instance: str,
    counter: int,
    respond: Respond,
    watch: Callable[[str], None],
    stop: threading.Event,
    spool: Path,
    most: int = 4 << 30,
    patience: Patience | None = None,
) -> None:
    """Answers a server's messages until `stop` is set. It connects again and again, for the server may be restarted.

    `instance` names this node's state folder, and `counter` must be higher at each start than ever before. `respond` is
    called in the calling thread, `watch` in any. Messages above `most` bytes are refused; large ones lie in `spool`.
    """
    waits = patience or Patience()
    _Attendance(address, (ca, cert, key), (instance, counter), respond, watch, stop, spool, most, waits).run()


class _Attendance:
    """A thread that listens to the server, and the calling thread that works."""

    def __init__(
        self,
        address: str,
        pems: tuple[bytes, bytes, bytes],
        start: tuple[str, int],
        respond: Respond,
        watch: Callable[[str], None],
        stop: threading.Event,
        spool: Path,
        most: int,
        patience: Patience,
    ) -> None:
        self._address, self._pems, self._start, self._patience = address, pems, start, patience
        self._respond, self._watch, self._stop, self._spool, self._most = respond, watch, stop, spool, most
        ca, cert, key = pems
        check_pems(ca, cert, key)
        self._credentials = grpc.ssl_channel_credentials(ca, key, cert)
        self._life = secrets.token_hex(16)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._session = ""
        self._held: set[int] = set()
        self._void: set[int] = set()
        self._answered: deque[int] = deque(maxlen=1_000)
        self._over = threading.Event()
        self._connected = threading.Event()
        self._fatal: ResourceError | None = None
        self._call: Any = None
        self._post: Any = None
        self._clash = 0.0
        self._said = ""

    def run(self) -> None:
        listener = threading.Thread(target=self._listen, name="potluck-listen", daemon=True)
        listener.start()
        try:
            while not self._stop.is_set():
                self._raise_fatal()
                with suppress(queue.Empty):
                    self._work(self._jobs.get(timeout=_TICK))
        finally:
            self._over.set()
            if self._call:
                self._call.cancel()
            listener.join()

    def _raise_fatal(self) -> None:
        if self._fatal:
            raise self._fatal

    # The thread that listens.

    def _listen(self) -> None:
        tries = 0
        while not self._over.is_set() and not self._fatal:
            try:
                with grpc.secure_channel(self._address, self._credentials, _OURS) as channel:
                    self._listen_on(channel)
            except grpc.RpcError as fault:
                self._lost(fault)
            except FrameError as fault:
                self._say(f"{self._address} sent what is no message: {fault}; trying again")
            except Exception as fault:
                self._fatal = ResourceError(f"the node cannot go on: {one_line(f'{type(fault).__name__}: {fault}')}")
            finally:
                tries = 0 if self._connected.is_set() else tries
                self._connected.clear()
                self._post = None
            wait = min(self._patience.most, self._patience.first * 2**tries)
            tries = min(tries + 1, 16)
            self._over.wait(random.uniform(wait / 2, wait))

    def _listen_on(self, channel: Any) -> None:
        """Takes messages as long as the connection lasts."""
        instance, counter = self._start
        with self._lock:
            held = sorted(self._held)[-1_000:]
            who = {"instance": instance, "counter": counter, "life": self._life}
            hello = frames.pack_head(frames.HELLO, {**who, "session": self._session, "held": held})
        call = self._call = channel.stream_stream(f"/{SERVICE}/{FETCH}")(iter([hello]))
        if self._over.is_set():
            return
        self._enter(frames.word(frames.read_head(next(call, b""), frames.WELCOME), "session"))
        self._post = channel.stream_unary(f"/{SERVICE}/{POST}")
        self._clash = 0.0
        self._connected.set()
        self._say(f"connected to {self._address}")
        inbox = Inbox(self._spool, self._most)
        for frame in call:
            if frame[:1] == frames.VOID:
                self._drop(frames.whole(frames.read_head(frame, frames.VOID), "number"), inbox)
            elif job := inbox.add(frame, self._session):
                self._take(job)

    def _enter(self, session: str) -> None:
        """Forgets what another server, or the same one before a restart, wanted."""
        with self._lock:
            if session != self._session:
                self._session = session
                self._held.clear()
                self._void.clear()
                self._answered.clear()

    def _take(self, job: _Job) -> None:
        with self._lock:
            if job.number in self._held or job.number in self._answered:
                return
            self._held.add(job.number)
        self._jobs.put(job)

    def _drop(self, number: int, inbox: Inbox) -> None:
        """The server does not want an answer any more."""
        inbox.drop(number)
        with self._lock:
            if number in self._held:
                self._void.add(number)

    def _lost(self, fault: Any) -> None:
        """Says why there is no connection; some reasons end the node."""
        if self._over.is_set():
            return
        code, text = fault.code(), one_line(fault.details() or "")
        self._judge(code, text)
        if self._fatal:
            return
        if code is CODES.ALREADY_EXISTS:
            self._say(f"{self._address} refuses this node for now: {text}")
        elif self._connected.is_set():
            self._say(f"lost {self._address}: {text or 'the connection ended'}; trying again")
        else:
            self._say(f"cannot reach or trust {self._address}: {plain(fault.details() or '')}; trying again")

    def _judge(self, code: Any, text: str) -> None:
        """Finds out whether waiting would help."""
        now = time.monotonic()
        if code in (CODES.PERMISSION_DENIED, CODES.UNAUTHENTICATED, CODES.UNIMPLEMENTED):
            self._fatal = ResourceError(f"{self._address} refuses this node: {text}")
        elif code is CODES.ALREADY_EXISTS:
            self._clash = self._clash or now
            if now - self._clash >= self._patience.in_use:
                self._fatal = ResourceError(
                    f"{self._address} refuses this node: {text}. Each place needs a kit of its own."
                )
        elif code is CODES.UNAVAILABLE and (reason := fault_of(*self._pems[:2])):
            self._fatal = ResourceError(f"{self._address} cannot trust this node: {reason}. Ask for a new kit.")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._watch(line)

    # The calling thread.

    def _work(self, job: _Job) -> None:
        if self._wanted(job):
            self._deliver(job, [] if job.fault else self._respond(job.parts))
        with self._lock:
            if job.session == self._session:
                self._held.discard(job.number)
                self._void.discard(job.number)
                self._answered.append(job.number)

    def _wanted(self, job: _Job) -> bool:
        with self._lock:
            return job.session == self._session and job.number not in self._void

    def _deliver(self, job: _Job, parts: Parts) -> None:
        """Sends an answer until the server has it, or wants it no more."""
        head = {"session": job.session, "number": job.number, "life": self._life, "fault": job.fault}
        frame = frames.pack_head(frames.MESSAGE, {**head, "sizes": frames.sizes_of(parts)})
        tries = 0
        while True:
            self._raise_fatal()
            with self._lock:
                if job.session != self._session:
                    self._watch(
                        f"{self._address} was restarted; the answer to message {job.number} is not wanted any more"
                    )
                    return
            post = self._post
            if post and self._sent(post, job, chain([frame], frames.data_frames(parts))):
                return
            if self._stop.is_set():
                return
            if post:
                self._stop.wait(min(self._patience.most, self._patience.first * 2**tries) * random.uniform(0.5, 1.0))
                tries = min(tries + 1, 16)
            else:
                self._connected.wait(_TICK)

    def _sent(self, post: Any, job: _Job, data: Iterator[bytes]) -> bool:
        """Whether the server has said what becomes of the answer."""
        try:
            call = post.future(data)
        except ValueError:  # the channel was closed meanwhile
            return False
        while True:
            try:
                reason = frames.word(frames.read_head(call.result(timeout=_TICK), frames.VOID), "reason")
            except grpc.FutureTimeoutError:
                continue
            except (grpc.RpcError, grpc.FutureCancelledError) as fault:
                if isinstance(fault, grpc.RpcError) and fault.code() is not CODES.UNAVAILABLE:
                    self._judge(fault.code(), one_line(fault.details() or ""))
                return False
            except BaseException:
                call.cancel()
                raise
            if reason:
                self._watch(f"{self._address} did not take the answer to message {job.number}: {one_line(reason)}")
            return True


class Inbox:
    """Puts the frames of messages together."""

    def __init__(self, spool: Path, most: int) -> None:
        self._spool, self._most = spool, most
        self._number = -1
        self._arriving: Arriving | None = None

    def add(self, frame: bytes, session: str) -> _Job | None:
        """Takes a frame; the message, if it was its last one or if there is no room for it."""
        try:
            if frame[:1] == frames.MESSAGE:
                self._begin(frames.read_head(frame, frames.MESSAGE))
            elif frame[:1] == frames.DATA and self._arriving:
                self._arriving.add(frame)
        except OSError as fault:
            return self._refuse(session, f"the node cannot store it: {fault.strerror}")
        if self._number >= 0 and not self._arriving:
            return self._refuse(session, f"a message above {self._most} bytes, which is this node's limit")
        if not self._arriving or not self._arriving.complete:
            return None
        job = _Job(session, self._number, self._arriving.parts())
        self._number, self._arriving = -1, None
        return job

    def drop(self, number: int) -> None:
        if number == self._number and self._arriving:
            self._arriving.close()
            self._number, self._arriving = -1, None

    def _begin(self, head: dict[str, Any]) -> None:
        self.drop(self._number)
        sizes = frames.wholes(head, "sizes")
        self._number = frames.whole(head, "number")
        if sum(sizes) <= self._most:
            self._arriving = Arriving(sizes, self._spool)

    def _refuse(self, session: str, reason: str) -> _Job:
        number = self._number
        self.drop(number)
        self._number = -1
        return _Job(session, number, (), reason)
