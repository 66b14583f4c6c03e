"""The node's side of the transport "flower": a SuperNode, and a warm executor for its messages in this process.

Flower starts a process for each message, installs the app that the server sent (FAB), and runs it. Here one process
stays: it asks the SuperNode for its next task as a SuperExec does, and answers it with the function that is installed
here. The app that the server sent lies unused in the memory of the SuperNode.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck.core import Bytes, ResourceError, one_line
from potluck.engines.remote.flower_objects import (
    MISSING,
    FlowerFault,
    HTTPError,
    Program,
    Puller,
    listening,
    make,
    push,
    runtime_client,
)
from potluck.engines.remote.transport import Parts, Respond

try:
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
except ImportError as error:
    raise ResourceError(MISSING) from error

HEARTBEAT = 10
"""Seconds between two signs of life of a node; Flower accepts no fewer, and takes 30 itself. A node that is gone is
noticed after twice that time, and one that was killed can come back only then."""
BEAT = 8.0
"""Seconds between two signs of life of a task to its SuperNode."""
REMEMBERED = 2
"""So many answers are kept, in case that their message is posted again."""


def attend_flower(
    address: str,
    ca: Path,
    key: Path,
    respond: Respond,
    stop: threading.Event | None = None,
    note: Callable[[str], None] = lambda line: None,
    most: int = 8 << 30,
) -> None:
    """Answers messages of the server at `address` until `stop` is set. `key` is the node's private key (PEM), `ca` the
    certificate of the authority that signed the server's. A SuperNode that ends is started again, each time with a
    note; `most` limits a message's bytes."""
    stop = stop or threading.Event()
    folder = Path(tempfile.mkdtemp(prefix="potluck-flower-"))
    uds = str(folder / "supernode")
    settings = {
        "server": address, "ca": str(ca), "key": str(key), "uds": uds, "folder": str(folder), "heartbeat": HEARTBEAT,
    }  # fmt: skip
    over = threading.Event()
    keeper = threading.Thread(target=_keep_supernode, args=(settings, folder, over, note), name="flower-keep")
    keeper.start()
    try:
        Executor(uds, respond, stop, most).serve()
    finally:
        over.set()
        keeper.join()
        shutil.rmtree(folder, ignore_errors=True)


def _keep_supernode(settings: dict[str, Any], folder: Path, over: threading.Event, note: Callable[[str], None]) -> None:
    """Runs a SuperNode, and a new one when it ends: also while a message is being answered."""
    pause = 0.5
    while not over.is_set():
        Path(settings["uds"]).unlink(missing_ok=True)
        started = time.monotonic()
        program = Program("supernode", settings, folder)
        while not over.wait(0.2) and not program.dead():
            pass
        program.end()
        if not over.is_set():
            # Flower's client ends its process by a signal, with 0 and without a word, when the server answers 401.
            refused = "the server refuses this node's key" if program.process.returncode == 0 else ""
            note(f"the SuperNode ended and is started again: {one_line(program.last_words()) or refused}")
            pause = 0.5 if time.monotonic() > started + 60 else min(pause * 1.5, 5.0)
            over.wait(pause)


class Executor:
    """Answers the messages that a SuperNode has, one after the other."""

    def __init__(self, uds: str, respond: Respond, stop: threading.Event, most: int) -> None:
        self._uds, self._respond, self._stop, self._most = uds, respond, stop, most
        self._answered: OrderedDict[str, Parts] = OrderedDict()

    def serve(self) -> None:
        """Works until it is to stop."""
        while not self._stop.is_set():
            if listening(self._uds):
                with suppress(HTTPError), runtime_client("http://supernode", self._uds) as client:
                    self._serve(client)
            self._stop.wait(0.1)

    def _serve(self, client: Any) -> None:
        pause = 0.05
        while not self._stop.is_set():
            task = client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
            if task.HasField("task") and task.token:
                with suppress(FlowerFault):  # the SuperNode tells the server that the task had no end
                    self._answer(task.token)
                pause = 0.05
            else:
                self._stop.wait(pause)
                pause = min(pause * 1.1, 0.3)

    def _answer(self, token: str) -> None:
        client = runtime_client("http://supernode", self._uds, name="flwr-clientapp", token=token)
        over, done = threading.Event(), threading.Event()
        beats = threading.Thread(target=self._beat, args=(client, over, done), name="flower-beat", daemon=True)
        try:
            given = client.PullTaskInput(PullTaskInputRequest())
            beats.start()
            here, run = int(given.context.node_id), int(given.run.run_id)
            del given  # with the app that the server sent
            while not (found := client.PullMessages(PullAppMessagesRequest())).messages_list:
                if over.wait(0.05):
                    raise FlowerFault("the SuperNode took the message back")
            asked = found.messages_list[0].metadata
            puller = Puller(client, here, run, lambda: over.is_set() or self._stop.is_set())
            key, parts = puller.fetch(found.message_object_trees[0], self._most)
            puller.done(asked.message_id)
            answer = self._answer_once(key, parts)
            # The times are the server's, so that this machine's clock does not matter.
            reply = make(key, answer, run, here, int(asked.src_node_id), asked.created_at, asked.ttl, asked.message_id)
            push(client, reply)
            client.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))
        finally:
            done.set()
            if beats.is_alive():
                beats.join()
            client.close()

    def _answer_once(self, key: str, parts: list[Bytes]) -> Parts:
        if key not in self._answered:
            self._answered[key] = self._respond(parts)
            while len(self._answered) > REMEMBERED:
                self._answered.popitem(last=False)
        return self._answered[key]

    @staticmethod
    def _beat(client: Any, over: threading.Event, done: threading.Event) -> None:
        while not done.wait(BEAT):
            try:
                if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                    over.set()
            except HTTPError:
                over.set()
