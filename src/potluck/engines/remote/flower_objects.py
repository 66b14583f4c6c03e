"""Parts of a message as Flower's objects, sent and fetched piece by piece, and the HTTP client for that.

A Flower message is a tree of objects that are named by their hashes: the message, its records, the arrays, and pieces
of 5 MiB. A SuperLink keeps an object once, so a model for many nodes is sent once. Flower's own functions hold all
pieces in memory at once; these hold one.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from potluck.core import Bytes, ResourceError
from potluck.engines.remote import flower_app
from potluck.engines.remote.transport import Parts

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

MISSING = "the transport 'flower' needs the package flwr: pip install 'potluck[flower]' (docs/flower.md)"
try:
    import httpx
    from flwr.app import ArrayRecord, ConfigRecord, Metadata, RecordDict
    from flwr.app.message import Array, make_message, remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_children_ids_from_object_content,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
except ImportError as error:
    raise ResourceError(MISSING) from error

HTTPError = httpx.HTTPError
IN_FILES = 4 << 20
"""Parts of so many bytes lie in a file without a name, and are mapped."""
PIECE = 8 << 20
"""The most bytes that a piece of an array may have."""
PARTS = 100_000
"""The most parts that a message may have."""
KEY, BODY = "potluck", "parts"
"""The records of a message: its key, which no other node can guess, and the parts."""


class FlowerFault(Exception):
    """What Flower or the other side did was not as agreed. The message is one line."""


class Versioned:
    """Says our version of Flower in each request. (Flower's own does too, and ends the process if it is refused.)"""

    def __init__(self, name: str) -> None:
        self._head = dict(RuntimeVersionMetadata.from_local_component(name).as_metadata())

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers.update(self._head)
        return call_next(context)


def connect(
    kind: Any, base: str, uds: str = "", name: str = "SuperExec", token: str = "", secret: bytes = b"", ca: str = ""
) -> Any:
    """A client of Flower for a Unix socket, or for an address with TLS. It does not try again, and never sends signals
    to this process, as Flower's do."""
    interceptors: list[Any] = [Versioned(name)]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    if secret:
        methods = {"/flwr.proto.Runtime/AcquireTask"}
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods))
    verify = ssl.create_default_context(cafile=ca) if ca else ssl.create_default_context()
    client = kind(base, interceptors=interceptors, verify=verify)
    client._client.close()
    transport = httpx.HTTPTransport(uds=uds) if uds else httpx.HTTPTransport(verify=verify, trust_env=False)
    client._client = httpx.Client(transport=transport, timeout=30.0, trust_env=False)  # no proxy of the environment
    return client


def runtime_client(base: str, uds: str = "", **others: Any) -> Any:
    """A client of the API for the programs that serve a SuperLink or a SuperNode."""
    return connect(RuntimeHttpClient, base, uds, **others)


def listening(uds: str) -> bool:
    """Whether someone listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(uds) == 0


def status_of(fault: Exception) -> int:
    """The HTTP status of an error; 0 if there was no answer."""
    return int(fault.response.status_code) if isinstance(fault, httpx.HTTPStatusError) else 0


def make(
    key: str, parts: Parts, run: int, here: int, there: int, created: float, seconds: float, reply_to: str = ""
) -> Any:
    """A Flower message with our parts. The arrays are not copied."""
    arrays = ArrayRecord()
    for number, part in enumerate(parts):
        array = Array(dtype="uint8", shape=(part.size,), stype="potluck", data=b"")
        array.data = np.ascontiguousarray(part).data if part.size else b""
        arrays[str(number)] = array
    content = RecordDict({KEY: ConfigRecord({"key": key}), BODY: arrays})
    metadata = Metadata(
        run_id=run, message_id="", src_node_id=here, dst_node_id=there, reply_to_message_id=reply_to, group_id="",
        created_at=created, ttl=seconds, message_type="query",
    )  # fmt: skip
    return make_message(metadata=metadata, content=content)


def push(client: Any, message: Any) -> str:
    """Sends a message, and those of its objects that the other side lacks; returns the message's id."""
    with no_object_id_recompute():
        name = str(message.object_id)
        message.metadata.__dict__["_message_id"] = name
        head = message_to_proto(remove_content_from_message(message))
        tree = get_object_tree(message)
        answer = client.PushMessages(PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree]))
        if list(answer.message_ids) != [name]:
            raise FlowerFault("Flower did not take the message")
        lacking = set(answer.objects_to_push)
        for object_id, held in get_all_nested_objects(message).items():
            if object_id in lacking:
                request = PushObjectRequest(
                    node=Node(node_id=message.metadata.src_node_id), run_id=message.metadata.run_id,
                    object_id=object_id, object_content=held.deflate(), session_id=answer.session_id,
                )  # fmt: skip
                if not client.PushObject(request).stored:
                    raise FlowerFault("Flower did not store a piece of the message")
    return name


class Puller:
    """Fetches the objects of one message. The sender may still be sending them, so it waits until `end` says so."""

    def __init__(self, client: Any, node: int, run: int, over: Callable[[], bool]) -> None:
        self._client, self._node, self._run, self._over = client, Node(node_id=node), run, over

    def fetch(self, tree: Any, most: int) -> tuple[str, list[Bytes]]:
        """The key and the parts of a message. An error if it is not one of ours, or has more than so many bytes."""
        try:
            records = self._names(tree.children[0].object_id)
            key = ConfigRecord.inflate(self._object(records[KEY]))["key"]
            arrays = self._names(records[BODY])
            if list(arrays) != [str(number) for number in range(min(len(arrays), PARTS))] or not isinstance(key, str):
                raise FlowerFault("a message that is not one of Potluck's")
            parts: list[Bytes] = []
            for name in arrays.values():
                parts.append(self._array(name, most))
                most -= parts[-1].size
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise FlowerFault("a message that is not one of Potluck's") from error
        return key, parts

    def done(self, message: str) -> None:
        """Says that a message was fetched; then the other side forgets it."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run, message_object_id=message)
        self._client.ConfirmMessageReceived(request)

    def _object(self, name: str) -> bytes:
        pause = 0.02
        while True:
            answer = self._client.PullObject(PullObjectRequest(node=self._node, run_id=self._run, object_id=name))
            if not answer.object_found:
                raise FlowerFault("a part of the message is lost")
            if answer.object_available:
                return bytes(answer.object_content)
            if self._over():
                raise FlowerFault("the message did not come to its end")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _names(self, name: str) -> dict[str, str]:
        content = self._object(name)
        found = json.loads(content[content.index(b"\0") + 1 :])
        if not isinstance(found, dict):
            raise FlowerFault("a message that is not one of Potluck's")
        return found

    def _array(self, name: str, most: int) -> Bytes:
        content = self._object(name)
        head = json.loads(content[content.index(b"\0") + 1 :])
        children = get_object_children_ids_from_object_content(content)
        pieces = [children[index] for index in head["arraychunk_ids"]]
        (size,) = head["shape"]
        if not isinstance(size, int) or not 0 <= size <= len(pieces) * PIECE:
            raise FlowerFault("an array that does not have the size that it states")
        if size > most:
            raise FlowerFault("a message that is too large")
        made = blank(size)
        at = 0
        for piece in pieces:
            data = self._object(piece)
            body = np.frombuffer(data, np.uint8, offset=data.index(b"\0") + 1)
            if at + body.size > size:
                raise FlowerFault("an array that does not have the size that it states")
            made[at : at + body.size] = body
            at += body.size
        if at != size:
            raise FlowerFault("an array that does not have the size that it states")
        return made


def blank(size: int) -> Bytes:
    """An array of bytes to be filled; a large one lies in a file without a name."""
    if size < IN_FILES:
        return np.empty(size, np.uint8)
    with tempfile.TemporaryFile(prefix="potluck-") as file:
        file.truncate(size)
        return np.memmap(file, np.uint8, "r+", shape=(size,))


class Program:
    """A program of `flower_app` in a process of its own. It ends when this process does."""

    def __init__(self, name: str, settings: dict[str, Any], folder: Path, keep: Sequence[int] = ()) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", flower_app.__file__, name, json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=keep, start_new_session=True, bufsize=0,
                env={**os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_LOG_LEVEL": "WARNING"},
            )  # fmt: skip

    def open(self) -> None:
        """Says that the keys are registered: a SuperLink then serves the port for nodes."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, which is seen elsewhere
            self.process.stdin.write(b"\n")

    def dead(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def last_words(self) -> str:
        """The last line of its log that says something."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line and "https://" not in line), "")[-300:]

    def end(self, seconds: float = 8.0) -> None:
        """Asks it to end, and kills it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        stdin: IO[bytes] | None = self.process.stdin
        if stdin is not None:
            stdin.close()
