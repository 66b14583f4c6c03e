"""The two programs of Flower that Potluck starts, as Potluck runs them: a SuperLink and a SuperNode.

This file is run by its path, in a process of its own, and imports nothing of Potluck (and so not torch). The settings
come as JSON. Both programs end when their standard input closes: when the process that started them is gone.

Nothing in Flower's files is changed. Flower puts all its APIs on one port, and anyone who reaches it may register
nodes and start runs; here the port that nodes reach has the paths of the fleet alone, and everything else is on a
Unix socket in a folder of ours. Flower's intervals are constants of modules; the SuperNode's process sets them anew.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeAlias

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
"""What a node may ask for. `register-node` and `unregister-node` are not among them."""
LONGEST = 16 << 20
"""Bytes of a request. Flower sends arrays in pieces of 5 MiB and has no limit of its own."""
TRICKLE = 30.0
"""Seconds in which the next piece of a request must come."""
CONNECTIONS = 2000
"""So many connections at once; more are answered with 503."""

OPEN = threading.Event()
"""Set once the parent has registered the nodes' keys, and nodes may come."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def fingerprint(public_key: bytes) -> str:
    """A node's id, from its public key as PEM: what stands between the first and the last line is DER in base64."""
    lines = [line for line in public_key.decode("ascii").splitlines() if line and "-----" not in line]
    return hashlib.sha256(base64.b64decode("".join(lines), validate=True)).hexdigest()[:32]


class FleetOnly:
    """What nodes may reach of a SuperLink: the fleet's paths, for registered keys, in requests of bounded size.

    It tells what it refused and who connected. Flower checks the signature behind it.
    """

    def __init__(self, app: Any, registered: Callable[[bytes], bool], tell: Callable[[dict[str, Any]], None]) -> None:
        self.app, self.registered, self.tell = app, registered, tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path, key = str(scope["path"]), _key(headers.get("flwr-public-key", ""))
        event = {
            "node": fingerprint(key) if key else "",
            "address": (scope.get("client") or ("",))[0],
            "path": path[:60],
        }
        if status := await self._verdict(scope["method"], path, key, headers.get("content-length", "")):
            if path != "/":  # that is a node that asks for the time: see `clock_offset`
                self.tell({"event": "refused", "status": status, **event})
            await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})
            return
        unread = True

        async def in_time() -> MutableMapping[str, Any]:
            nonlocal unread
            message = await asyncio.wait_for(receive(), TRICKLE if unread else None)
            unread = unread and bool(message.get("more_body"))
            return message

        async def watched(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status, activates = int(message["status"]), path == "/v1/fleet/activate-node"
                if status in (401, 403) or (activates and status >= 400):
                    self.tell({"event": "refused", "status": status, **event})
                elif activates:
                    self.tell({"event": "connected", **event})
            await send(message)

        await self.app(scope, in_time, watched)

    async def _verdict(self, method: str, path: str, key: bytes, length: str) -> int:
        """The HTTP status with which a request is refused before it is read; 0 if it is not."""
        if method != "POST" or path not in FLEET:
            return 404
        if not key or not await asyncio.to_thread(self.registered, key):
            return 401
        return 0 if length.isascii() and length.isdecimal() and int(length) <= LONGEST else 413


def _key(head: str) -> bytes:
    """The public key (PEM) in the head of a request; empty if there is none, or something else."""
    try:
        key = base64.b64decode(head, validate=True)
        fingerprint(key)
    except ValueError:
        return b""
    return key


def run_superlink(settings: dict[str, Any]) -> None:
    """A SuperLink in memory. `socket` is the descriptor of the port for nodes, `told` that of the pipe for reports."""
    sys.argv = [
        "flower-superlink", "--isolation", "process", "--enable-supernode-auth", "--ssl-certfile", settings["cert"],
        "--ssl-keyfile", settings["key"], "--ssl-ca-certfile", settings["ca"],
    ]  # fmt: skip
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    app = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    pipe = os.fdopen(settings["told"], "w", buffering=1)

    def tell(event: dict[str, Any]) -> None:
        pipe.write(json.dumps(event) + "\n")

    def registered(key: bytes) -> bool:
        return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None

    common: dict[str, Any] = {"access_log": False, "log_level": "warning", "workers": 1}
    inner = uvicorn.Server(uvicorn.Config(app, uds=settings["uds"], **common))
    outer = uvicorn.Server(
        uvicorn.Config(
            FleetOnly(app, registered, tell),
            lifespan="off",
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=30,
            ssl_certfile=settings["cert"],
            ssl_keyfile=settings["key"],
            **common,
        )
    )
    listener = socket.socket(fileno=settings["socket"])

    async def serve_nodes() -> None:
        while not OPEN.is_set() and not inner.should_exit:  # who connects meanwhile waits, and is not refused
            await asyncio.sleep(0.02)
        if OPEN.is_set():
            await outer.serve(sockets=[listener])

    async def serve() -> None:
        await asyncio.gather(inner.serve(), serve_nodes())

    asyncio.run(serve())


class QuickClock:
    """Stands for the module `time` in the loop of a SuperNode, which sleeps 3 s between two looks for a message and
    0.5 s while it waits for an answer. The first sleeps after a message are short; they grow with the silence."""

    SHORTEST, LONGEST, GROWTH = 0.1, 1.0, 1.15

    def __init__(self) -> None:
        self._next = self.SHORTEST

    def sleep(self, seconds: float) -> None:
        if seconds < 1:  # it waits for the node's answer, on this machine
            self._next = self.SHORTEST
            time.sleep(0.05)
            return
        time.sleep(self._next)
        self._next = min(self._next * self.GROWTH, self.LONGEST)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def clock_offset(address: str, ca: str, wrong: float = 0.0) -> float:
    """Seconds by which the server's clock is ahead, from the head of an answer of its; 0 if it is not known. Flower
    refuses a node whose clock is more than 5 s ahead of the server's. (`wrong` is for tests: seconds to add here.)"""
    context = ssl.create_default_context(cafile=ca)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    asked = time.time()
    try:
        head = opener.open(f"https://{address}/", timeout=10).headers
    except urllib.error.HTTPError as answer:
        head = answer.headers
    except OSError:
        return 0.0
    if not head.get("date"):
        return 0.0
    offset = parsedate_to_datetime(head["date"]).timestamp() + 0.5 - (asked + time.time()) / 2 - wrong
    return offset if abs(offset) > 2 else 0.0


def run_supernode(settings: dict[str, Any]) -> None:
    """A SuperNode that starts no process and leaves its messages to whoever asks at the Unix socket `uds`."""
    import uvicorn
    from flwr.supercore import date, heartbeat
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection, node_auth_http_interceptor, start_client_internal
    from flwr.supernode.main import create_app
    from flwr.supernode.nodestate import NodeStateFactory

    start_client_internal.time = QuickClock()
    http_retry.MAX_RETRY_DELAY = 2
    # A node that is gone is noticed after twice this time, and one that was killed can come back only then.
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = settings["heartbeat"]
    wrong = float(settings.get("wrong", 0.0))
    ahead = timedelta(seconds=clock_offset(settings["server"], settings["ca"], wrong) + wrong)
    node_auth_http_interceptor.now = lambda: date.now() + ahead

    key = bytes_to_private_key(Path(settings["key"]).read_bytes())
    objects = ObjectStoreFactory()
    states = NodeStateFactory(objectstore_factory=objects)
    config = uvicorn.Config(
        create_app(state_factory=states), uds=settings["uds"], access_log=False, log_level="warning"
    )
    threading.Thread(target=uvicorn.Server(config).run, daemon=True).start()
    start_client_internal.start_client_internal(
        state_factory=states,
        server_address=settings["server"],
        root_certificates=Path(settings["ca"]).read_bytes(),
        insecure=False,
        authentication_keys=(key, key.public_key()),
        node_config={},
        isolation="process",
    )


def end_with_parent(folder: str) -> None:
    """Ends this process when its standard input closes, and removes the folder that its parent left behind, if any. A
    byte that comes there opens the port for nodes."""
    while os.read(0, 1):
        OPEN.set()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    told = json.loads(sys.argv[2])
    threading.Thread(target=end_with_parent, args=(told.get("folder", ""),), daemon=True).start()
    {"superlink": run_superlink, "supernode": run_supernode}[sys.argv[1]](told)
