"""The board's server: its page, a stream of events for each open page, and the stop button's request."""

from __future__ import annotations

import asyncio
import errno
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.resources import files
from pathlib import Path

from potluck.board.guard import Guard, is_loopback
from potluck.board.runs import FollowedRuns
from potluck.board.stopping import Refused, Stops
from potluck.board.stream import RETRY, Listener

MISSING = "the board needs packages that are not installed: pip install 'potluck[board]'"

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError:
    from potluck.core import ResourceError

    raise ResourceError(MISSING) from None

PERIOD = 1.0
"""Seconds between two looks at the folder, while a page is open."""
HEARTBEAT = 15.0
"""Seconds after which a page that nothing is new for gets an empty line, so that a lost one is noticed."""
STREAMS = 4
"""Streams that one address may hold open. Browsers open six connections to a server, and a seventh request would wait
for ever; so further pages get their news in one answer, and ask again."""
ASSETS = {
    "/": ("board.html", "text/html; charset=utf-8"),
    "/board.js": ("board.js", "text/javascript; charset=utf-8"),
    "/board.css": ("board.css", "text/css; charset=utf-8"),
    "/board.svg": ("board.svg", "image/svg+xml"),
}


class Board:
    """All that pages share: the runs, which are read once for all of them, and who looks at which."""

    def __init__(self, root: Path, allow_stop: bool = False) -> None:
        self.runs, self.allow_stop = FollowedRuns(root), allow_stop
        self.stops = Stops()
        self.closing = asyncio.Event()
        self._chosen: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")

    def routes(self) -> list[Route]:
        """What can be asked for."""
        found = [Route(path, _asset(*asset)) for path, asset in ASSETS.items()]
        found.append(Route("/events", self.events))
        if self.allow_stop:
            found.append(Route("/stop/{id}", self.stop, methods=["POST"]))
        return found

    async def events(self, request: Request) -> Response:
        """A stream of news for one page; the runs that it looks at are given as `run`."""
        listener = Listener(request.query_params.getlist("run"), self.allow_stop)
        address = request.client.host if request.client else ""
        stream = self._follow(listener, address)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _follow(self, listener: Listener, address: str) -> AsyncIterator[str]:
        stays = self._streams[address] < STREAMS
        self._streams[address] += stays
        self._chosen.update(listener.chosen)
        try:
            yield f"retry: {RETRY}\n\n"
            told = time.monotonic()
            fresh = True
            while True:
                await self._read(fresh and bool(listener.chosen))
                fresh = False
                for event in listener.news(self.runs):
                    yield event
                    told = time.monotonic()
                if time.monotonic() - told > HEARTBEAT:
                    yield ":\n\n"
                    told = time.monotonic()
                if not stays:
                    yield "event: pause\ndata: {}\n\n"
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.closing.wait(), PERIOD)
                    return
        finally:
            self._chosen.subtract(listener.chosen)
            self._streams[address] -= stays
            self._chosen, self._streams = +self._chosen, +self._streams

    async def _read(self, now: bool) -> None:
        """Reads the folder, unless that was done within the last period."""
        async with self._reading:
            if now or time.monotonic() - self._read_at >= 0.9 * PERIOD:
                await asyncio.to_thread(self.runs.update, frozenset(self._chosen))
                self._read_at = time.monotonic()

    async def stop(self, request: Request) -> Response:
        """Stops a run of the list."""
        run = self.runs.runs.get(request.path_params["id"])
        if run is None:
            return JSONResponse({"told": "there is no such run."}, 404)
        try:
            await asyncio.to_thread(self.stops.stop, run.path)
        except Refused as why:
            return JSONResponse({"told": str(why)}, 409)
        return JSONResponse({"told": "it saves and stops; `potluck resume` goes on with it."})


def _asset(name: str, kind: str) -> Callable[[Request], Response]:
    body = (files("potluck.board") / "assets" / name).read_bytes()

    def answer(request: Request) -> Response:
        return Response(body, headers={"content-type": kind})

    return answer


class BoardServer:
    """Serves the board of a folder, until Ctrl-C, SIGTERM or `close`."""

    def __init__(self, root: Path, host: str, token: str = "", allow_stop: bool = False) -> None:
        self.board = Board(root, allow_stop)
        config = uvicorn.Config(
            Guard(Starlette(routes=self.board.routes()), host, token),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(config)
        self._server.capture_signals = nullcontext  # it would raise the signal again at the end
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, listening: socket.socket) -> None:
        """Answers requests until the end."""
        with _signals(self.close):
            asyncio.run(self._serve(listening))

    async def _serve(self, listening: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[listening])

    def close(self) -> None:
        """Ends all streams, and then the server; from any thread, and from a signal."""
        self._server.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self.board.closing.set)


@contextmanager
def _signals(close: Callable[[], None]) -> Iterator[None]:
    """Has Ctrl-C and SIGTERM call `close`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, frame: close()) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def make_token(host: str, given: str, allow_stop: bool) -> str:
    """The token that a board asks for; empty: none. Other users of this machine can reach its loopback addresses, so a
    board that can stop runs has one in any case."""
    return given or ("" if is_loopback(host) and not allow_stop else secrets.token_urlsafe(24))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as fault:
        why = f"cannot listen on {host}, port {port}: {fault.strerror or fault}."
        if fault.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is in use; choose another --port, or leave it out."
    except (OverflowError, UnicodeError):
        why = f"cannot listen on {host}, port {port}: there is no such address."
    from potluck.core import ResourceError  # here, because it brings torch along, which takes seconds

    raise ResourceError(why)


def address_of(listening: socket.socket, host: str, token: str) -> str:
    """The link to open."""
    name = host if not is_wildcard(host) else socket.gethostname()
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{listening.getsockname()[1]}/" + (f"?token={token}" if token else "")


def is_wildcard(host: str) -> bool:
    """Whether a host stands for all addresses of this machine."""
    return host in ("0.0.0.0", "::", "")
