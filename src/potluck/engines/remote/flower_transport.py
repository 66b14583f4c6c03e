"""The transport "flower": messages over a Flower SuperLink and its SuperNodes. See docs/flower.md.

The server's process holds the Flower run itself. It starts a run at the SuperLink's Control API, takes the run's task
as a SuperExec would, and then posts and fetches messages with the task's token. No ServerApp process is started.

A SuperLink that is started here keeps everything in memory. If it dies, it is started again, the keys are registered
anew, a new run begins, and messages without an answer are posted again. A message has a random key; a node that has
answered a key gives the same answer again.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from potluck.core import ResourceError, one_line
from potluck.engines.remote.flower_app import fingerprint
from potluck.engines.remote.flower_executor import attend_flower
from potluck.engines.remote.flower_objects import (
    MISSING,
    FlowerFault,
    HTTPError,
    Program,
    Puller,
    connect,
    listening,
    make,
    push,
    status_of,
)
from potluck.engines.remote.transport import Answer, Parts, Presence

try:
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        GetNodesRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.runtime import RuntimeHttpClient
except ImportError as error:
    raise ResourceError(MISSING) from error

__all__ = ["FlowerServer", "attend_flower", "fingerprint"]

SUPERLINK = 1
"""The SuperLink's own node id."""
START = 120.0
"""Seconds in which a SuperLink must be ready."""
BEAT = 8.0
"""Seconds between two signs of life to the SuperLink, which forgets a run after a minute without one."""
LATE = 600.0
"""So many seconds after its time an answer is still noticed, and dropped with a note."""
TRIES = 4
"""A message is posted at most so often."""
NODE_UNAVAILABLE = 5

APP = """
[project]
name = "potluck"
version = "1.0.0"
description = "A Potluck federation. Nodes run the Potluck that is installed there, and not this."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "potluck"
[tool.flwr.app.components]
serverapp = "potluck.none:app"
clientapp = "potluck.none:app"
[tool.flwr.app.config]
"""


@dataclass(eq=False)
class Post:
    """A message that has no answer yet."""

    node: str
    number: int
    parts: Parts
    seconds: float
    end: float
    """When its time is over, in seconds of the monotonic clock."""
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    names: set[str] = field(default_factory=set)
    """Flower's ids of it that may still be answered."""
    activated: str = ""
    """When the node connected to which it was sent, as the SuperLink says; empty: it is to be sent."""
    tries: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """A Flower run that this process holds."""

    id: int
    client: Any
    control: Any


@dataclass(frozen=True)
class Seen:
    """A node that a SuperLink says is there."""

    flower_id: int
    activated: str
    presence: Presence


class FlowerServer:
    """The server's side of the transport "flower".

    `keys` gives the public keys (PEM) of the nodes that are admitted now. It is asked again every two seconds: nodes
    whose key is no longer there are shut out at once.
    """

    def __init__(
        self,
        keys: Callable[[], Iterable[bytes]],
        cert: Path,
        key: Path,
        ca: Path,
        address: str = "127.0.0.1:0",
        superlink: str = "",
        secret: bytes = b"",
        patience: float = 30.0,
        most: int = 8 << 30,
    ) -> None:
        """`address` is where nodes connect (host:port, port 0 for a free one). With `superlink` (host:port) none is
        started: that one must run with `--isolation process` and a secret for SuperExecs, which is `secret`.
        `patience` is for how many seconds a node that left is expected back; `most` limits an answer's bytes."""
        self._keys, self._patience, self._most = keys, patience, most
        self._superlink, self._secret, self._ca = superlink, secret, ca
        self.notes: list[str] = []
        self._change = threading.Condition()
        self._posts: dict[int, Post] = {}
        self._names: dict[str, Post] = {}
        self._late: dict[str, tuple[Post, float]] = {}
        self._fetching: set[str] = set()
        self._answers: list[Answer] = []
        self._seen: dict[str, Seen] = {}
        self._gone: dict[str, float] = {}
        self._addresses: dict[str, str] = {}
        self._registered: dict[str, int] = {}
        self._run: Run | None = None
        self._closed = False
        self._program: Program | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="potluck-flower-"))
        uds, folder = str(self._folder / "superlink"), str(self._folder)
        self._settings = {"cert": str(cert), "key": str(key), "ca": str(ca), "uds": uds, "folder": folder}
        self._listener: socket.socket | None = None
        self.address = superlink or self._listen(address)
        """Where nodes connect, with the port that was taken."""
        self._pool = ThreadPoolExecutor(16, "flower-answers")
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"flower-{work.__name__.strip('_')}", daemon=True)
            for work in (self._keep, self._send, self._collect)
        ]
        try:
            self._run = self._begin(time.monotonic() + START)
        except BaseException:
            self.close()
            raise
        for thread in self._threads:
            thread.start()

    def post(self, node: str, number: int, parts: Parts, seconds: float) -> None:
        """See `Transport`."""
        with self._change:
            post = Post(node, number, parts, seconds, time.monotonic() + seconds)
            if node not in self._seen and node not in self._gone:
                self._answers.append(Answer(node, number, fault="the node is not there"))
            else:
                self._posts[number] = post
            self._change.notify_all()

    def fetch(self, seconds: float) -> list[Answer]:
        """See `Transport`."""
        end = time.monotonic() + seconds
        with self._change:
            while True:
                for post in list(self._posts.values()):
                    self._check(post)
                left = end - time.monotonic()
                if self._answers or self._closed or left <= 0:
                    answers, self._answers = self._answers, []
                    return answers
                self._change.wait(min(left, 0.5))

    def present(self) -> Mapping[str, Presence]:
        """See `Transport`."""
        with self._change:
            return {node: seen.presence for node, seen in self._seen.items()}

    def close(self) -> None:
        """Ends the run, and the SuperLink that was started for it."""
        with self._change:
            already, self._closed = self._closed, True
            self._change.notify_all()
        if already:
            return
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._pool.shutdown(cancel_futures=True)
        if self._run is not None:
            with suppress(HTTPError):
                self._run.client.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))
            self._run.client.close()
            self._run.control.close()
        if self._program is not None:
            self._program.end()
        if self._listener is not None:
            self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # A SuperLink and a run.

    def _listen(self, address: str) -> str:
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=512)
        except (OSError, ValueError) as error:
            raise ResourceError(f"the server cannot listen at {address}: {one_line(str(error))}") from error
        return f"{host}:{self._listener.getsockname()[1]}"

    def _start_superlink(self) -> None:
        assert self._listener is not None
        with suppress(FileNotFoundError):
            os.unlink(self._settings["uds"])
        told, tell = os.pipe()
        keep = (self._listener.fileno(), tell)
        settings = {**self._settings, "socket": self._listener.fileno(), "told": tell}
        self._program = Program("superlink", settings, self._folder, keep)
        os.close(tell)
        threading.Thread(target=self._hear, args=(told,), name="flower-hear", daemon=True).start()

    def _hear(self, told: int) -> None:
        """Reads what the SuperLink's process refused, and who connected from where."""
        with os.fdopen(told) as lines:
            for line in lines:
                event = json.loads(line)
                if event["event"] == "connected":
                    self._addresses[event["node"]] = event["address"]
                else:
                    who = f"node {event['node']}" if event["node"] else "someone without a key"
                    self._note(f"refused: {who} from {event['address']}, {event['path']} ({event['status']})")

    def _note(self, line: str) -> None:
        with self._change:
            if line not in self.notes and len(self.notes) < 1000:
                self.notes.append(one_line(line))

    def _clients(self, kind: Any, name: str, token: str = "") -> Any:
        if self._superlink:
            base = f"https://{self._superlink}"
            return connect(kind, base, name=name, token=token, secret=self._secret, ca=str(self._ca))
        return connect(kind, "http://superlink", self._settings["uds"], name=name, token=token)

    def _begin(self, end: float) -> Run:
        """Starts what is needed for a new run; tries again until the time is over."""
        fault = "no answer"
        while not self._closed and time.monotonic() < end:
            if not self._superlink and (self._program is None or self._program.dead()):
                if self._program is not None:
                    fault = self._program.last_words()
                    self._program.end()
                self._start_superlink()
            try:
                if self._superlink or listening(self._settings["uds"]):
                    return self._new_run()
                time.sleep(0.1)
            except (HTTPError, FlowerFault) as error:
                fault = one_line(str(error)) or type(error).__name__
                time.sleep(0.2)
        raise ResourceError(f"the Flower SuperLink did not start within {START:.0f} s: {fault}")

    def _new_run(self) -> Run:
        with ExitStack() as opened:
            control = opened.enter_context(self._clients(ControlHttpClient, "flwr"))
            executor = opened.enter_context(self._clients(RuntimeHttpClient, "SuperExec"))
            run, token = self._take_run(control, executor)
            client = opened.enter_context(self._clients(RuntimeHttpClient, "flwr-serverapp", token))
            client.PullTaskInput(PullTaskInputRequest())
            if self._program is not None:
                self._program.open()
            opened.pop_all()
            executor.close()
            return Run(run, client, control)

    def _take_run(self, control: Any, executor: Any) -> tuple[int, str]:
        """Starts a run, and takes its task as a SuperExec does: the run's id, and the task's token."""
        self._registered = {}
        self._admit(control)
        run = int(control.StartRun(StartRunRequest(fab=Fab(content=_app()))).run_id)
        while True:
            taken = executor.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
            if not taken.HasField("task"):
                raise FlowerFault("the SuperLink gave the run to someone else: it needs --isolation process")
            if taken.task.run_id == run:
                return run, str(taken.token)

    def _admit(self, control: Any) -> None:
        """Registers the keys that are admitted and not known yet, and removes those that no longer are."""
        wanted = {fingerprint(key): bytes(key) for key in self._keys()}
        if not self._registered:
            known = control.ListNodes(ListNodesRequest()).nodes_info
            there = [node for node in known if node.public_key and node.status != "unregistered"]
            self._registered = {fingerprint(node.public_key): int(node.node_id) for node in there}
        for node in wanted.keys() - self._registered.keys():
            self._registered[node] = self._register(control, node, wanted[node])
        for node in self._registered.keys() - wanted.keys():
            if self._registered[node]:
                control.UnregisterNode(UnregisterNodeRequest(node_id=self._registered[node]))
            del self._registered[node]
            with self._change:
                self._seen.pop(node, None)
                self._gone[node] = -float("inf")

    def _register(self, control: Any, node: str, key: bytes) -> int:
        """Registers a key; returns the node's Flower id. Flower never takes a key again that was removed, so then a
        SuperLink of our own is started anew."""
        try:
            return int(control.RegisterNode(RegisterNodeRequest(public_key=key)).node_id)
        except HTTPError as error:
            if not 400 <= status_of(error) < 500:
                raise
            if self._program is not None and self._run is not None:
                self._program.end()
                raise FlowerFault(f"node {node} is admitted again, for which Flower needs a restart") from error
            self._note(f"node {node}: the SuperLink does not register its key")
            return 0

    # Three threads.

    def _guarded(self, work: Callable[[], None]) -> None:
        """Does a thread's work, whatever happens. That the SuperLink does not answer is the business of `_keep`."""
        while not self._closed:
            try:
                work()
            except HTTPError:
                self._pause(0.5)
            except Exception as error:
                self._note(f"Flower: {type(error).__name__}: {one_line(str(error))}")
                self._pause(1.0)

    def _pause(self, seconds: float) -> None:
        with self._change:
            if not self._closed:
                self._change.wait(seconds)

    def _keep(self) -> None:
        """Keeps the SuperLink, the run, the keys and the list of nodes."""
        beaten = 0.0
        while not self._closed:
            run = self._run
            if run is None:
                self._renew()
                continue
            try:
                if self._program is not None and self._program.dead():
                    raise FlowerFault("the SuperLink is gone")
                if time.monotonic() > beaten + BEAT:
                    if not run.client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                        raise FlowerFault("the Flower run is over")
                    beaten = time.monotonic()
                self._admit(run.control)
                self._look(run)
            except (HTTPError, FlowerFault) as error:
                if self._over(error):
                    self._abandon(run, one_line(str(error)))
                else:
                    self._pause(0.5)
                continue
            end = time.monotonic() + (0.5 if self._posts else 2.0)
            while not self._closed and time.monotonic() < end:
                self._pause(end - time.monotonic())

    def _over(self, error: Exception) -> bool:
        """Whether a run cannot go on after an error: the SuperLink knows no such run or task, or is gone."""
        dead = self._program is not None and self._program.dead()
        return dead or isinstance(error, FlowerFault) or status_of(error) in (401, 403, 404)

    def _abandon(self, run: Run, reason: str) -> None:
        """Leaves a run. What has no answer is to be sent again in the next one."""
        with self._change:
            self._note(f"Flower: {reason}; a new run begins")
            self._run = None
            self._gone.update(dict.fromkeys(self._seen, time.monotonic()))
            self._seen, self._names, self._late, self._fetching = {}, {}, {}, set()
            for post in self._posts.values():
                post.names, post.activated = set(), ""
        run.client.close()
        run.control.close()

    def _renew(self) -> None:
        """Begins a new run."""
        run = self._begin(time.monotonic() + START)
        with self._change:
            self._run = run
            # All nodes must come back: their SuperNodes end and are started again, because their Flower ids are new.
            self._gone = dict.fromkeys(self._gone, time.monotonic() + self._patience)
            self._change.notify_all()

    def _look(self, run: Run) -> None:
        """Who is there, and what that means for messages on the way."""
        seen: dict[str, Seen] = {}
        for info in run.client.GetNodes(GetNodesRequest()).nodes:
            if info.public_key and info.status == "online":
                node = fingerprint(info.public_key)
                since = datetime.fromisoformat(info.last_activated_at).timestamp()
                there = Presence(node, since, self._addresses.get(node, ""))
                seen[node] = Seen(int(info.node_id), info.last_activated_at, there)
        now = time.monotonic()
        with self._change:
            for node in self._seen.keys() - seen.keys():
                self._gone.setdefault(node, now)
            for node in seen:
                self._gone.pop(node, None)
            self._seen = seen
            for post in list(self._posts.values()):
                self._check(post)
            self._late = {name: (post, end) for name, (post, end) in self._late.items() if end > now}
            self._change.notify_all()

    def _check(self, post: Post) -> None:
        """Gives a message up if its time is over or its node gone, and has it sent again if the node is a new one."""
        now, there = time.monotonic(), self._seen.get(post.node)
        if now > post.end:
            self._fault(post, f"no answer within {post.seconds:g} s")
        elif there is None and now > self._gone.get(post.node, now) + self._patience:
            self._fault(post, "the node left and did not come back")
        elif post.tries >= TRIES and not post.activated:
            self._fault(post, post.reason or "the message was lost")
        elif there is not None and post.activated and post.activated != there.activated:
            post.activated, post.reason = "", "the node was started again and again"

    def _fault(self, post: Post, reason: str) -> None:
        del self._posts[post.number]
        end = time.monotonic() + LATE
        for name in post.names:
            self._late[name] = (post, end)
            self._names.pop(name, None)
        self._answers.append(Answer(post.node, post.number, fault=reason))
        self._change.notify_all()

    def _send(self) -> None:
        """Sends what was posted, in that order."""
        while not self._closed:
            with self._change:
                run = self._run
                waiting = (post for post in self._posts.values() if not post.activated and post.tries < TRIES)
                due = next((post for post in waiting if post.node in self._seen), None)
                if run is None or due is None:
                    self._change.wait(0.5)
                    continue
                there = self._seen[due.node]
                due.tries += 1
            seconds = max(due.end - time.monotonic(), 1.0) + LATE
            message = make(due.key, due.parts, run.id, SUPERLINK, there.flower_id, time.time(), seconds)
            try:
                name = push(run.client, message)
            except (HTTPError, FlowerFault) as error:
                with self._change:
                    due.tries -= status_of(error) == 0 and not isinstance(error, FlowerFault)  # no answer at all
                    due.reason = f"Flower did not take the message: {one_line(str(error)) or type(error).__name__}"
                self._pause(0.2)
                continue
            with self._change:
                if run is self._run and due.number in self._posts:
                    due.names.add(name)
                    due.activated = there.activated
                    self._names[name] = due
                    self._change.notify_all()

    def _collect(self) -> None:
        """Asks for answers, and has each fetched by a thread of the pool: their nodes may still be sending them."""
        pause = 0.05
        while not self._closed:
            with self._change:
                run = self._run
                names = {*self._names, *self._late} - self._fetching
                if run is None or not names:
                    self._change.wait(0.5)
                    pause = 0.05
                    continue
            answer = run.client.PullMessages(PullAppMessagesRequest(message_ids=sorted(names)))
            for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                pause = 0.05
                self._sort(run, head, tree)
            time.sleep(pause)
            pause = min(pause * 1.2, 0.5)

    def _sort(self, run: Run, head: Any, tree: Any) -> None:
        name = str(head.metadata.reply_to_message_id)
        with self._change:
            post, late = self._names.get(name), self._late.pop(name, None)
            if late is not None:
                if not head.HasField("error"):
                    self._note(f"node {late[0].node}: the answer to message {late[0].number} came too late")
                    self._pool.submit(self._drop, run, head.metadata.message_id)
                return
            if post is None:
                return
            del self._names[name]
            post.names.discard(name)
            if head.HasField("error"):
                post.reason = f"Flower says: {one_line(head.error.reason)}"
                if not post.names:
                    post.activated = ""
                if head.error.code == NODE_UNAVAILABLE:
                    post.tries -= 1  # it was not the message's fault; `_check` knows for how long to wait
                return
            self._fetching.add(name)
        self._pool.submit(self._fetch_answer, run, name, head.metadata.message_id, tree, post)

    def _lost(self, post: Post) -> None:
        """The SuperLink lost an answer. The node has it still, if the message comes again."""
        with self._change:
            if not post.names:
                post.activated, post.reason = "", "the answer was lost in the SuperLink"

    def _drop(self, run: Run, message: str) -> None:
        with suppress(HTTPError):
            Puller(run.client, SUPERLINK, run.id, lambda: True).done(message)

    def _fetch_answer(self, run: Run, name: str, message: str, tree: Any, post: Post) -> None:
        def over() -> bool:
            return self._closed or run is not self._run or post.number not in self._posts

        puller = Puller(run.client, SUPERLINK, run.id, over)
        try:
            key, parts = puller.fetch(tree, self._most)
            if key != post.key:
                raise FlowerFault("an answer to another message")
            answer = Answer(post.node, post.number, parts)
        except (HTTPError, FlowerFault) as error:
            answer = Answer(post.node, post.number, fault=f"the answer was lost: {one_line(str(error))}")
            if run is not self._run or isinstance(error, HTTPError):
                self._lost(post)
                return
        finally:
            with self._change:
                self._fetching.discard(name)
        with self._change:
            if self._posts.get(post.number) is post:
                del self._posts[post.number]
                for other in post.names:
                    self._names.pop(other, None)
                self._answers.append(answer)
                self._change.notify_all()
            elif answer.parts:
                self._note(f"node {post.node}: the answer to message {post.number} came too late")
        self._drop(run, message)


def _app() -> bytes:
    """The app without which Flower starts no run: a description, and no code."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (2024, 10, 1, 0, 0, 0)), APP)
    return made.getvalue()
