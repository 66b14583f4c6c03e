"""What tests of the gRPC transport share: a server, nodes in threads and processes, hostile callers, a cable to cut.

python grpc_life.py ADDRESS NAME INSTANCE COUNTER FOLDER [hang]      a node that echoes; it reads its PEM files there
"""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from pki import identity

from potluck.core import ResourceError
from potluck.engines.remote import frames
from potluck.engines.remote.grpc_library import FETCH, POST, SERVICE, grpc
from potluck.engines.remote.grpc_node import Patience, attend
from potluck.engines.remote.grpc_transport import GrpcServer

DEADLINE = 120.0
SOON = Patience(first=0.05, most=0.2, in_use=0.5)
HOST = "127.0.0.1"


def until(condition, seconds=DEADLINE):
    """Waits until something is the case, and returns it; an error if it is not within the deadline."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited for {seconds} s in vain")
        time.sleep(0.002)
    return found


@contextmanager
def serving(folder, admitted=lambda node: "", grace=60.0, port=0, limits=None, name="server", host=HOST):
    """A server; everybody with a certificate of its authority is admitted unless told otherwise."""
    own = identity(name, host=host)
    server = GrpcServer(f"{HOST}:{port}", own.ca, own.cert, own.key, admitted, grace, folder, limits)
    try:
        yield server
    finally:
        server.close()


class Site:
    """A node in a thread. By default it echoes."""

    def __init__(self, folder, port, name="a", respond=None, instance="", counter=1, who=None, ca=None, **more):
        self.who = who or identity(name)
        self.lines, self.asked, self.fault, self.stop = [], [], None, threading.Event()
        self._respond = respond or (lambda parts: parts)
        start = (f"{HOST}:{port}", ca or self.who.ca, self.who.cert, self.who.key, instance or f"at {name}", counter)
        more = {"patience": SOON, "spool": folder, **more}
        self.thread = threading.Thread(target=self._run, args=start, kwargs=more)

    @property
    def id(self):
        return self.who.id

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def _run(self, *start, **more):
        try:
            attend(*start, self._answer, self.lines.append, self.stop, **more)
        except ResourceError as fault:
            self.fault = fault

    def _answer(self, parts):
        self.asked.append(parts)
        return self._respond(parts)

    def heard(self, text):
        return any(text in line for line in self.lines)


def ended(site):
    """What a node ended with."""
    site.thread.join(DEADLINE)
    return str(site.fault)


def there(server, *sites):
    until(lambda: all(site.id in server.present() for site in sites))


def text(*words):
    """A message: a part for each word."""
    return [np.frombuffer(word.encode(), np.uint8) for word in words]


def words(answer):
    assert answer.fault == ""
    return [part.tobytes().decode() for part in answer.parts]


def answers(server, count=1):
    """The next answers; there must be so many and no more."""
    found = []
    end = time.monotonic() + DEADLINE
    while len(found) < count and time.monotonic() < end:
        found += server.fetch(0.1)
    assert len(found) == count, found
    return found


def echoed(server, site, number, *said):
    """Whether a node answers with what it was sent."""
    server.post(site.id, number, text(*said), DEADLINE)
    (answer,) = answers(server)
    assert (answer.node, answer.number) == (site.id, number)
    return words(answer) == list(said)


class Caller:
    """Somebody with a certificate who sends frames of his own making."""

    def __init__(self, port, name="a", who=None):
        who = who or identity(name)
        keys = grpc.ssl_channel_credentials(who.ca, who.key, who.cert)
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_send_message_length", -1),
        )
        self.id = who.id
        self.channel = grpc.secure_channel(f"{HOST}:{port}", keys, options)
        self.life, self.session, self._calls = f"life of {name}", "", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def fetch(self, *sent):
        return self.channel.stream_stream(f"/{SERVICE}/{FETCH}")(iter(sent))

    def enter(self, instance="i", counter=1, held=()):
        """Begins as a node does; returns the call, after its first frame."""
        hello = {"instance": instance, "counter": counter, "life": self.life, "session": self.session}
        call = self.fetch(frames.pack_head(frames.HELLO, {**hello, "held": list(held)}))
        self._calls.append(call)  # a call that nobody holds is cancelled
        self.session = frames.read_head(next(call), frames.WELCOME)["session"]
        return call

    def head(self, number, sizes=(), **more):
        head = {"session": self.session, "life": self.life, "number": number, "sizes": list(sizes), "fault": "", **more}
        return frames.pack_head(frames.MESSAGE, head)

    def post(self, *sent):
        """What the server says to these frames: why it does not want them, or nothing."""
        return frames.read_head(self.channel.stream_unary(f"/{SERVICE}/{POST}")(iter(sent)), frames.VOID)["reason"]


def refused(call):
    """(code, text) of a call that the server ends."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as fault:
        return fault.code().name, fault.details()
    return "OK", ""


@contextmanager
def process(folder, port, name="a", counter=1, mode="echo"):
    """A node in a process of its own."""
    who = identity(name)
    for file, pem in (("ca", who.ca), ("cert", who.cert), ("key", who.key)):
        (folder / f"{name}.{file}").write_bytes(pem)
    command = [sys.executable, __file__, f"{HOST}:{port}", name, f"at {name}", str(counter), str(folder), mode]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class Cable:
    """A connection to a port that can be cut and mended, on a port of its own."""

    def __init__(self, port):
        self._far, self._whole, self._over = port, True, False
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._pairs, self._ends = {}, []
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        self._thread.join()
        self._listener.close()

    def cut(self):
        self._whole = False
        until(lambda: not self._pairs)

    def mend(self):
        self._whole = True

    def _carry(self):
        while not self._over:
            ready, _, _ = select.select([self._listener, *self._pairs], [], [], 0.01)
            if not self._whole:
                self._close(*self._pairs)
            for end in ready:
                if end is self._listener:
                    self._accept()
                elif end in self._pairs:
                    self._move(end)
        self._close(*self._pairs)

    def _accept(self):
        near = self._listener.accept()[0]
        try:
            far = socket.create_connection((HOST, self._far)) if self._whole else None
        except OSError:
            far = None
        if not far:
            near.close()
            return
        self._pairs |= {near: far, far: near}

    def _move(self, end):
        data = b""
        with suppress(OSError):
            data = end.recv(1 << 16)
            self._pairs[end].sendall(data)
        if not data:
            self._close(end, self._pairs[end])

    def _close(self, *ends):
        for end in ends:
            self._pairs.pop(end, None)
            end.close()


def main(address, name, instance, counter, folder, mode):
    pems = [(Path(folder) / f"{name}.{file}").read_bytes() for file in ("ca", "cert", "key")]
    parent = os.getppid()

    def respond(parts):
        if mode == "hang":
            (Path(folder) / "asked").touch()
            while os.getppid() == parent:
                time.sleep(0.05)
        return parts

    stop = threading.Event()
    try:
        attend(address, *pems, instance, int(counter), respond, print, stop, Path(folder), patience=SOON)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
