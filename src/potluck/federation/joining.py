"""A node's process: its folder, and its connection to the server until the federation ends."""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from potluck.core import InputError
from potluck.engines.remote import Parts
from potluck.federation.kits import AUTHORITY, KEY, Kit
from potluck.federation.node import Node
from potluck.ledger import FolderError, Lock, write_atomically
from potluck.run.interrupts import Interrupts


def join(
    kit: Kit, node: Node, say: Callable[[str], None], stop: threading.Event | None = None, transport: str = "grpc"
) -> str:
    """Takes part in a federation until the server says that it has ended; returns how. Ctrl-C goes through.

    It goes on when the server is away: the server may be started again at any time. If the node cannot take part, the
    server hears why, and then this raises it.
    """
    stop = stop or threading.Event()
    with closing(_Held(node.folder)), tempfile.TemporaryDirectory(prefix="potluck-spool-") as spool:

        def respond(parts: Parts) -> Parts:
            answer = node.respond(parts)
            if node.ended or node.fault:
                stop.set()
            return answer

        with Interrupts():
            if transport == "flower":
                from potluck.engines.remote.flower_executor import attend_flower

                attend_flower(kit.address, kit.folder / AUTHORITY, kit.folder / KEY, respond, stop, say)
            else:
                from potluck.engines.remote.grpc_node import attend

                start = next_start(node.folder)
                attend(kit.address, kit.ca, kit.cert, kit.key, *start, respond, say, stop, Path(spool))
    if node.fault:
        raise node.fault
    return node.ended


def next_start(folder: Path) -> tuple[str, int]:
    """Who this node is to the server: a random name of its folder, and the number of this start.

    They tell a node that was started again from a copy of its key in another place.
    """
    path = folder / "instance.json"
    instance, counter = "", 0
    if path.exists():
        try:
            found = json.loads(path.read_bytes())
            instance, counter = str(found["instance"]), int(found["counter"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is damaged; remove it. The server may ask to wait a minute.") from None
    instance = instance or secrets.token_hex(16)
    write_atomically(path, json.dumps({"instance": instance, "counter": counter + 1}).encode())
    return instance, counter + 1


class _Held:
    """The lock of a node's folder: one process at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._lock = Lock(folder / "lock")
        except FolderError as fault:
            raise FolderError(str(fault).replace("choose another --out", "give another --state")) from None

    def close(self) -> None:
        with suppress(OSError):
            self._lock.release()
