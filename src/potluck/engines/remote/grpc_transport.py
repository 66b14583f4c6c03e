"""Messages over gRPC with mutual TLS: the server's side. The node's is in grpc_node.py.

Nodes call, the server never does. A node keeps one call open all the time, `Fetch`, on which messages come down; so
the server knows at once when it leaves. It sends each answer up in a call of its own, `Post`, again and again until the
server has said that it has it. A node's id is the fingerprint of the key of its certificate.

One key is for one process. Each process says which state folder it works in (`instance`), how often that folder was
started (`counter`) and a random word of its own (`life`). A folder that was copied shows by its counter.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from potluck.core import ResourceError, one_line
from potluck.engines.remote import frames
from potluck.engines.remote.frames import Arriving, FrameError
from potluck.engines.remote.grpc_library import (
    CODES,
    FETCH,
    OPTIONS,
    POST,
    SERVICE,
    check_pems,
    fingerprint,
    grpc,
    x509,
)
from potluck.engines.remote.transport import Answer, Parts, Presence

_BEAT = 3.0
"""Seconds between signs of life; a key that is revoked is noticed within them."""
_REMEMBERED = 10_000
"""Numbers of messages of which the outcome is remembered."""
_MOST_NOTES = 1_000
"""Notes that wait for their reader."""
_IN_USE = "its key is in use at another place"


@lru_cache(maxsize=1_000)
def _identity(pem: bytes) -> tuple[str, float]:
    """The id of a node, and when its certificate ends, in seconds since 1970."""
    certificate = x509.load_pem_x509_certificate(pem)
    return fingerprint(certificate), certificate.not_valid_after_utc.timestamp()


@dataclass(frozen=True)
class GrpcLimits:
    """What one node, and all together, may ask of the server."""

    message: int = 4 << 30
    """Bytes of an answer."""
    connections: int = 1_000
    """Connections at once, those without a valid certificate too."""
    nodes: int = 500
    """Nodes that are connected at once."""
    calls: float = 20.0
    """Calls a second of one node; twice as many in a burst."""
    progress: float = 60.0
    """Seconds within which a frame of a message must cross."""
    handshake: float = 10.0
    """Seconds within which a connection must have proved who it is, and seconds that it may be without a call."""


@dataclass(eq=False)
class _Message:
    """A message that was posted and has no answer yet."""

    node: str
    number: int
    parts: Parts
    timer: asyncio.TimerHandle | None = None
    arriving: Arriving | None = None
    """The answer that comes in now; another one may take its place."""


@dataclass(eq=False)
class _Stream:
    """The call on which a node gets its messages."""

    queue: deque[int]
    """Numbers of messages to send, or to declare void."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, number: int) -> None:
        self.queue.append(number)
        self.wake.set()


@dataclass(eq=False)
class _Node:
    """What the server knows of a node that was admitted."""

    id: str
    expires: float
    counters: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """The highest counter of each instance."""
    instance: str = ""
    life: str = ""
    stream: _Stream | None = None
    messages: dict[int, _Message] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    """Runs while the node is away and may come back."""
    calls: float = 0.0
    called: float = 0.0

    def may_call(self, rate: float) -> bool:
        """Counts a call; false if there were too many of late."""
        now = time.monotonic()
        self.calls = max(0.0, self.calls - (now - self.called) * rate) + 1
        self.called = now
        return self.calls <= 2 * rate


class _CutOff(Exception):
    """A call that ended too early, as calls do when a connection is lost."""


def _head(number: int, parts: Parts) -> bytes:
    return frames.pack_head(frames.MESSAGE, {"number": number, "sizes": frames.sizes_of(parts)})


class GrpcServer:
    """The server's side. It works in a thread of its own, with one event loop for all nodes.

    `admitted` is called in that thread, often; it says why a node may not take part, or nothing.
    """

    def __init__(
        self,
        address: str,
        ca: bytes,
        cert: bytes,
        key: bytes,
        admitted: Callable[[str], str],
        grace: float,
        spool: Path,
        limits: GrpcLimits | None = None,
    ) -> None:
        check_pems(ca, cert, key)
        self.port = 0
        """Where it listens."""
        self.notes: list[str] = []
        self._address, self._admitted, self._grace, self._spool = address, admitted, grace, spool
        self._limits = limits or GrpcLimits()
        self._session = secrets.token_hex(8)
        self._nodes: dict[str, _Node] = {}
        self._past: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._told: set[tuple[str, str]] = set()
        self._presence: Mapping[str, Presence] = {}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._disk = ThreadPoolExecutor(2, "potluck-spool")
        started: Future[int] = Future()
        credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
        work = self._serve(credentials, started)
        self._thread = threading.Thread(target=asyncio.run, args=(work,), name="potluck-grpc", daemon=True)
        self._thread.start()
        self.port = started.result()

    def post(self, node: str, number: int, parts: Parts, seconds: float) -> None:
        frames.pack_head(
            frames.MESSAGE, {"number": number, "sizes": frames.sizes_of(parts)}
        )  # an error here, not later
        self._loop.call_soon_threadsafe(self._begin, _Message(node, number, parts), seconds)

    def fetch(self, seconds: float) -> list[Answer]:
        try:
            found = [self._answers.get(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))]
        except queue.Empty:
            return []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def present(self) -> Mapping[str, Presence]:
        return self._presence

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        self._disk.shutdown()

    async def _serve(self, credentials: Any, started: Future[int]) -> None:
        try:
            self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
            self._loop.set_exception_handler(self._odd)
            server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=4 * self._limits.nodes + 64)
            calls = {
                FETCH: grpc.stream_stream_rpc_method_handler(self._guarded(self._serve_fetch)),
                POST: grpc.stream_unary_rpc_method_handler(self._guarded(self._serve_post)),
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, calls),))
            port = server.add_secure_port(self._address, credentials)
            await server.start()
        except Exception as fault:
            text = f"cannot listen on {self._address}: {one_line(str(fault))}"
            started.set_exception(ResourceError(f"{text} Is the port in use?"))
            return
        started.set_result(port)
        await self._closing.wait()
        await server.stop(None)
        if rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=2.0)

    def _options(self) -> tuple[tuple[str, int], ...]:
        wait = max(1, int(1_000 * self._limits.handshake))
        return (
            *OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", 16),
            ("grpc.max_allowed_incoming_connections", self._limits.connections),
            ("grpc.server_handshake_timeout_ms", wait),
            ("grpc.max_connection_idle_ms", wait),
        )

    # What follows is run by the event loop alone.

    def _odd(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault within the event loop. Loops in one process wake each other up in vain, and after they ended."""
        fault = context.get("exception")
        if not isinstance(fault, BlockingIOError) and str(fault) != "Event loop is closed":
            text = one_line(f"{context.get('message')}: {type(fault).__name__}: {fault}")
            self._note("", text, f"a fault in the transport: {text}")

    def _note(self, node: str, reason: str, line: str) -> None:
        """Tells the operator, once for each node and reason."""
        if (node, reason) not in self._told and len(self.notes) < _MOST_NOTES:
            self._told.add((node, reason))
            self.notes.append(line)

    def _begin(self, message: _Message, seconds: float) -> None:
        node = self._nodes.get(message.node)
        fault = self._refusal(node.id, node.expires) if node and (node.stream or node.timer) else "is not there"
        if not node or fault:
            self._end(message, Answer(message.node, message.number, fault=fault))
            if node and node.stream:
                node.stream.wake.set()  # to end it
            return
        node.messages[message.number] = message
        late = Answer(message.node, message.number, fault=f"no answer within {seconds:g} s")
        message.timer = self._loop.call_later(seconds, self._end, message, late)
        if node.stream:
            node.stream.add(message.number)

    def _end(self, message: _Message, answer: Answer) -> None:
        """Gives the one answer to a message."""
        self._answers.put(answer)
        self._past[message.number] = (message.node, "fault" if answer.fault else "answer")
        if len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)
        if message.timer:
            message.timer.cancel()
        if message.arriving:
            message.arriving.close()
        message.parts, message.arriving = (), None
        node = self._nodes.get(message.node)
        if node and node.messages.pop(message.number, None) and node.stream and answer.fault:
            node.stream.add(message.number)

    def _end_all(self, node: _Node, fault: str) -> None:
        for message in list(node.messages.values()):
            self._end(message, Answer(node.id, message.number, fault=fault))

    def _refusal(self, node: str, expires: float) -> str:
        """Why a node may not take part; empty if it may."""
        if time.time() > expires:
            return "its certificate has expired"
        try:
            return self._admitted(node)
        except Exception as fault:
            return f"who is admitted cannot be read: {one_line(str(fault))}"

    async def _check(self, node: str, expires: float, context: Any) -> None:
        """Refuses a node that is not admitted, or not any more."""
        reason = self._refusal(node, expires)
        if reason:
            self._note(node, reason, f"node {node} was refused: {reason}")
            if node in self._nodes:
                self._end_all(self._nodes[node], reason)
            await context.abort(CODES.PERMISSION_DENIED, reason)

    async def _caller(self, context: Any) -> _Node:
        """Who calls, by its certificate."""
        pem = (context.auth_context().get("x509_pem_cert") or [b""])[0]
        try:
            name, expires = _identity(pem)
        except ValueError:
            await context.abort(CODES.UNAUTHENTICATED, "no certificate that can be read")
        await self._check(name, expires, context)
        node = self._nodes.setdefault(name, _Node(name, expires))
        node.expires = expires
        if not node.may_call(self._limits.calls):
            self._note(name, "calls", f"node {name} calls more than {self._limits.calls:g} times a second")
            await context.abort(CODES.RESOURCE_EXHAUSTED, "too many calls; wait a little")
        return node

    async def _read(self, context: Any) -> object:
        """The next frame that a node sends."""
        async with asyncio.timeout(self._limits.progress):
            frame = await context.read()
        if frame is grpc.aio.EOF:
            raise _CutOff
        return frame

    async def _write(self, context: Any, frame: bytes) -> None:
        async with asyncio.timeout(self._limits.progress):
            await context.write(frame)

    def _guarded(self, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """A handler that answers nonsense with a status and a note."""

        async def handler(_: object, context: Any) -> Any:
            try:
                return await call(context)
            except grpc.aio.BaseError:  # a call that was refused, or that ended meanwhile
                raise
            except _CutOff:
                return await context.abort(CODES.CANCELLED, "it was cut off")
            except TimeoutError:
                reason, status = f"no progress within {self._limits.progress:g} s", CODES.DEADLINE_EXCEEDED
            except FrameError as fault:
                reason, status = str(fault), CODES.INVALID_ARGUMENT
            except OSError as fault:
                reason, status = f"the server cannot store it: {fault.strerror}", CODES.RESOURCE_EXHAUSTED
            except Exception as fault:
                reason, status = f"a fault in the transport: {type(fault).__name__}: {fault}", CODES.INTERNAL
            node = _identity(context.auth_context()["x509_pem_cert"][0])[0]
            self._note(node, reason, one_line(f"a call of node {node} was dropped: {reason}"))
            return await context.abort(status, reason)

        return handler

    async def _serve_fetch(self, context: Any) -> None:
        """The call that a node keeps open: sends it its messages."""
        node = await self._caller(context)
        hello = frames.read_head(await self._read(context), frames.HELLO)
        known = set(frames.wholes(hello, "held")) if frames.word(hello, "session") == self._session else set()
        if not self._claim(node, hello):
            await self._refuse_clone(node, context)
        if not node.stream and len(self._presence) >= self._limits.nodes:
            text = f"the server is full: {self._limits.nodes} nodes"
            self._note(node.id, "full", f"node {node.id} was refused: {text}")
            await context.abort(CODES.RESOURCE_EXHAUSTED, text)
        stream = _Stream(deque(number for number in node.messages if number not in known))
        self._arrive(node, stream, context.peer())
        try:
            await self._write(context, frames.pack_head(frames.WELCOME, {"session": self._session}))
            while node.stream is stream:
                await self._check(node.id, node.expires, context)
                await self._send_next(node, stream, context)
        finally:
            self._leave(node, stream)
        await context.abort(CODES.ABORTED, "another connection of this node took its place")

    def _claim(self, node: _Node, hello: Mapping[str, Any]) -> bool:
        """Whether this process may speak for the node: one key, one process.

        A counter that went back is that of a copy, as long as the first one is here or may come back. After that it may
        be the same place, whose folder was restored from an older copy.
        """
        instance, life = frames.word(hello, "instance"), frames.word(hello, "life")
        counter = frames.whole(hello, "counter")
        if life and life == node.life:
            return True
        set_back = counter <= node.counters.get(instance, -1)
        if (set_back and (node.stream or node.timer)) or (node.stream and instance != node.instance):
            return False
        node.instance, node.life, node.counters[instance] = instance, life, counter
        if len(node.counters) > 100:
            node.counters.popitem(last=False)
        return True

    async def _refuse_clone(self, node: _Node, context: Any) -> None:
        self._note(node.id, _IN_USE, f"the key of {node.id} is in use at another place; that one was refused")
        await context.abort(CODES.ALREADY_EXISTS, _IN_USE)

    def _arrive(self, node: _Node, stream: _Stream, peer: str) -> None:
        if node.timer:
            node.timer.cancel()
        if node.stream:
            node.stream.wake.set()
        node.timer, node.stream = None, stream
        self._told = {(name, reason) for name, reason in self._told if name != node.id}
        place = unquote(peer).partition(":")[2]
        self._presence = {**self._presence, node.id: Presence(node.id, time.time(), place)}

    def _leave(self, node: _Node, stream: _Stream) -> None:
        if node.stream is not stream:
            return
        node.stream = None
        self._presence = {name: there for name, there in self._presence.items() if name != node.id}
        node.timer = self._loop.call_later(self._grace, self._give_up, node)

    def _give_up(self, node: _Node) -> None:
        node.timer = None
        self._end_all(node, f"left and did not come back within {self._grace:g} s")

    async def _send_next(self, node: _Node, stream: _Stream, context: Any) -> None:
        """Sends one message, or a sign of life if there is none for a while."""
        if not stream.queue:
            stream.wake.clear()
            try:
                async with asyncio.timeout(_BEAT):
                    await stream.wake.wait()
            except TimeoutError:
                await self._write(context, frames.BEAT)
            return
        number = stream.queue.popleft()
        message = node.messages.get(number)
        if message:
            parts = message.parts
            checked = time.monotonic()
            for frame in chain([_head(number, parts)], frames.data_frames(parts)):
                await self._write(context, frame)
                if number not in node.messages or node.stream is not stream:
                    break
                if time.monotonic() > checked + _BEAT:
                    await self._check(node.id, node.expires, context)
                    checked = time.monotonic()
            else:
                return
        await self._write(context, frames.pack_head(frames.VOID, {"number": number}))

    async def _serve_post(self, context: Any) -> bytes:
        """Takes an answer. What it returns tells the node to send it no more."""
        node = await self._caller(context)
        head = frames.read_head(await self._read(context), frames.MESSAGE)
        number, sizes, fault = frames.whole(head, "number"), frames.wholes(head, "sizes"), frames.word(head, "fault")
        if frames.word(head, "session") != self._session:
            return self._unwanted(node, number, "it is for a server that ended")
        if frames.word(head, "life") != node.life:
            await self._refuse_clone(node, context)
        message = node.messages.get(number)
        if not message:
            return self._unasked(node, number)
        node.calls -= 1  # as many as were asked for
        if fault:
            return self._taken(message, Answer(node.id, number, fault=f"could not take it: {one_line(fault)}"))
        if sum(sizes) > self._limits.message:
            text = f"an answer of {sum(sizes)} bytes; at most {self._limits.message} are taken"
            return self._bad(message, text)
        try:
            parts = await self._receive(node, message, sizes, context)
        except FrameError as odd:
            return self._bad(message, f"its answer is broken: {odd}")
        return self._taken(message, Answer(node.id, number, parts))

    async def _receive(self, node: _Node, message: _Message, sizes: Sequence[int], context: Any) -> Parts:
        """The parts of an answer. One that comes a second time takes the place of the first, which may be stuck."""
        if message.arriving:
            message.arriving.close()
        arriving = message.arriving = Arriving(sizes, self._spool)
        try:
            while not arriving.complete and message.arriving is arriving:
                frame = await self._read(context)
                if arriving.in_file:
                    await self._loop.run_in_executor(self._disk, arriving.add, frame)
                else:
                    arriving.add(frame)
            if message.arriving is arriving:
                return arriving.parts()
        except ValueError:
            if message.arriving is arriving:
                raise
        finally:
            arriving.close()
        await context.abort(CODES.ABORTED, "the answer was sent again, or is not wanted any more")
        raise AssertionError

    def _unasked(self, node: _Node, number: int) -> bytes:
        """Refuses an answer to no open message of this node."""
        owner, outcome = self._past.get(number, ("", ""))
        if any(number in other.messages for other in self._nodes.values() if other is not node):
            owner = "another"
        reason = "it was not asked for"
        if owner == node.id:
            reason = "it came too late" if outcome == "fault" else "it came before"
            if outcome == "answer":  # sent a second time because our word on the first was lost
                self._past[number] = (owner, "answered twice")
                return frames.pack_head(frames.VOID, {"reason": ""})
        return self._unwanted(node, number, reason, f"{reason} {number}" if owner else reason)

    def _unwanted(self, node: _Node, number: int, reason: str, key: str = "") -> bytes:
        self._note(node.id, key or reason, f"an answer of node {node.id} to message {number} was dropped: {reason}")
        return frames.pack_head(frames.VOID, {"reason": reason})

    def _bad(self, message: _Message, fault: str) -> bytes:
        self._note(message.node, fault, f"an answer of node {message.node} was refused: {fault}")
        self._taken(message, Answer(message.node, message.number, fault=fault))
        return frames.pack_head(frames.VOID, {"reason": fault})

    def _taken(self, message: _Message, answer: Answer) -> bytes:
        message.arriving = None
        self._end(message, answer)
        return frames.pack_head(frames.VOID, {"reason": ""})
