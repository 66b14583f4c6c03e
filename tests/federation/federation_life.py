"""Federations of real processes on loopback: kits, a server, nodes, and ways to hold, kill and starve them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from small_nodes import NAMES, TIERS, Quiet, write_digits

from potluck.core import ResourceError
from potluck.engines.remote import InProcess
from potluck.engines.remote.grpc_node import attend
from potluck.federation import FederationSettings, provision
from potluck.federation.joining import next_start
from potluck.federation.kits import AUTHORITY, KEY, read_kit
from potluck.federation.listening import admitted_nodes, listen
from potluck.federation.node import Node, NodeOptions
from potluck.federation.rehearsal import HOST, free_port
from potluck.federation.server import prepare, serve
from potluck.ledger import read_journal
from potluck.run import read_experiment, toml

DEADLINE = 240.0
OWN = "held_nodes"
METHODS = '''\
import os
import time
from pathlib import Path

from dataclasses import dataclass
from potluck.core import on_client
from potluck.methods import METHODS

HeteroFL, Scaffold, FedRolex = METHODS["heterofl"], METHODS["scaffold"], METHODS["fedrolex"]


def wait(task):
    """Waits while the file `hold-ROUND` or `hold-NAME-ROUND` is there; NAME is this process's POTLUCK_NAME."""
    folder, name = Path(os.environ["POTLUCK_HOLD"]), os.environ.get("POTLUCK_NAME", "")
    (folder / f"asked-{name}-{task.round + 1}").touch()
    while any((folder / f"hold-{place}{task.round + 1}").exists() for place in ("", f"{name}-")):
        time.sleep(0.01)


@dataclass(frozen=True)
class HeldHeteroFL(HeteroFL):
    @on_client
    def train(self, task, device):
        wait(task)
        return super().train(task, device)


@dataclass(frozen=True)
class HeldScaffold(Scaffold):
    @on_client
    def train(self, task, device):
        wait(task)
        return super().train(task, device)


@dataclass(frozen=True)
class HeldFedRolex(FedRolex):
    @on_client
    def train(self, task, device):
        wait(task)
        return super().train(task, device)
'''
"""Methods that a test can hold within a task; both sides import them."""
HELD = {
    "heterofl": "held_nodes:HeldHeteroFL",
    "scaffold": "held_nodes:HeldScaffold",
    "fedrolex": "held_nodes:HeldFedRolex",
}
SETTINGS = {
    "name": "life",
    "rounds": 3,
    "data": {"name": "npz", "test": 0.2, "validation": 0.1},
    "model": {"name": "mlp", "hidden": 16, "depth": 3},
    "tier": [{"name": name, "width": width} for name, width in zip(TIERS, (0.25, 0.5, 1.0), strict=True)],
    "local": {"epochs": 1, "batch": 16, "lr": 0.1},
    "nodes": {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": DEADLINE, "grace": DEADLINE, "wait_for": 3},
    "run": {"retries": 0},
}
SAME = [{"name": name} for name in TIERS]


def until(condition, seconds=DEADLINE):
    """Waits until something is the case, and returns it; an error if it is not within the deadline."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited for {seconds} s in vain")
        time.sleep(0.01)
    return found


def merge(plain, changes):
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(plain.get(name), dict)
        plain[name] = {**plain[name], **value} if both else value
    return plain


@dataclass
class Place:
    """The folder of a federation: kits, data, and the processes that run there."""

    folder: Path
    port: int
    transport: str = "grpc"
    started: list = field(default_factory=list)

    def settings(self, method="heterofl", name="life.toml", **changes):
        """Writes a file of settings; a section given as a mapping is merged into the small one."""
        told = {"method": {"name": HELD[method]}, **({"tier": SAME} if method == "scaffold" else {})}
        path = self.folder / name
        path.write_text(toml.write(merge({**SETTINGS, **told}, changes)))
        return path

    def start(self, name, *arguments, wrap=(), **more):
        """Starts a command in a process of its own; what it says is in NAME.txt."""
        env = {**os.environ, "POTLUCK_HOLD": str(self.folder), "POTLUCK_NAME": name, **more.pop("env", {})}
        env["PYTHONPATH"] = os.pathsep.join([str(self.folder), *more.pop("before", ()), env.get("PYTHONPATH", "")])
        command = [*wrap, sys.executable, "-m", "potluck", *map(str, arguments)]
        with (self.folder / f"{name}.txt").open("ab") as log:
            kept = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": self.folder, "env": env}
            process = subprocess.Popen(command, **kept, **more)
        self.started.append(process)
        return process

    def server(self, settings, out="run", **more):
        command = ("server", settings, "--kit", self.folder / "kits" / "server", "--out", self.folder / out)
        return self.start("server", *command, "--transport", self.transport, "--format", "json", **more)

    def node(self, name, *arguments, **more):
        number = NAMES.index(name)
        data = self.folder / f"part-{number}.npz"
        command = ("join", "--kit", self.folder / "kits" / name, "--data", data, "--tier", TIERS[number])
        return self.start(name, *command, "--transport", self.transport, "--trust", OWN, "--yes", *arguments, **more)

    def nodes(self, **more):
        return {name: self.node(name, **more) for name in NAMES}

    def said(self, name):
        """All that the processes of this name said."""
        path = self.folder / f"{name}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def hold(self, place):
        (self.folder / f"hold-{place}").touch()

    def release(self, place):
        (self.folder / f"hold-{place}").unlink(missing_ok=True)

    def asked(self, name, round):
        """Waits until a node was asked to train in a round."""
        until(lambda: (self.folder / f"asked-{name}-{round}").exists())

    def result(self, process, seconds=DEADLINE):
        """What a server that ended well said at its end."""
        code = process.wait(seconds)
        said = self.said("server")
        assert code == 0, said
        return json.loads(said[said.rindex("\n{") :])

    def events(self, kind, out="run"):
        path = self.folder / out / "ledger.jsonl"
        return [event for event in read_journal(path) if event["event"] == kind]

    def outcomes(self, id, out="run"):
        """{round: (outcome, reason)} of a node's training."""
        mine = [each for each in self.events("task", out) if each["client"] == id and each["verb"] == "train"]
        return {event["round"]: (event["outcome"], event.get("reason", "")) for event in mine}

    def id(self, name):
        told = json.loads((self.folder / "kits" / "server" / "nodes.json").read_text())
        return next(node["id"] for node in told["nodes"] if node["name"] == name)

    def states(self, out="run"):
        """What the server says of each node now, by name."""
        told = json.loads((self.folder / out / "status.json").read_text())
        return {node["name"]: node["state"] for node in told["nodes"]}

    def rounds_done(self, out="run"):
        path = self.folder / out / "ledger.jsonl"
        return len(self.events("round", out)) if path.exists() else 0

    def clear(self, *, states=True):
        """Forgets what was said and held; with `states`, also what nodes remember."""
        self.end()
        for path in [*self.folder.glob("hold-*"), *self.folder.glob("asked-*"), *self.folder.glob("*.txt")]:
            path.unlink()
        if states:
            for name in NAMES:
                shutil.rmtree(self.folder / "kits" / name / "state", ignore_errors=True)

    def end(self):
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()
        self.started.clear()


def make_place(folder, host=HOST, transport="grpc", **more):
    """Kits, data and methods of a federation of three clinics."""
    folder.mkdir(parents=True, exist_ok=True)
    write_digits(folder)
    (folder / "held_nodes.py").write_text(METHODS)
    port = free_port()
    provision(FederationSettings("life", f"{host}:{port}", NAMES, **more), folder / "kits")
    return Place(folder, port, transport)


def undisturbed(place, settings, out):
    """The same federation with the same keys in this process, which nothing disturbs."""
    threads = torch.get_num_threads()
    experiment = read_experiment(settings)
    nodes = {}
    for number, name in enumerate(NAMES):
        options = NodeOptions(place.folder / f"part-{number}.npz", None, TIERS[number], trusted=(OWN,))
        nodes[place.id(name)] = Node(place.id(name), place.folder / out / name, options, Quiet()).respond
    try:
        names = {place.id(name): name for name in NAMES}
        return serve(
            prepare(experiment, "life"), lambda spool: InProcess(nodes), lambda: names, place.folder / out / "run"
        )
    finally:
        torch.set_num_threads(threads)


def same(result, wanted):
    """Whether a run ended with the very weights and scores of the one that nothing disturbed."""
    assert result["weights_sha256"] == wanted.weights_sha256
    assert result["scores"] == wanted.plain()["scores"]
    return True


class Sites:
    """The nodes of a place in threads of this process, connected with their kits.

    `hostile` has by name what a node answers in place of its honest answer, from that and what it was asked.
    """

    def __init__(self, place, address=None, hostile=None):
        self.place, self.ended, self.hostile = place, {}, hostile or {}
        self.stops = {name: threading.Event() for name in NAMES}
        self.nodes, self._threads = {}, []
        for number, name in enumerate(NAMES):
            kit = read_kit(place.folder / "kits" / name, "node")
            kit = replace(kit, address=address or kit.address)
            options = NodeOptions(place.folder / f"part-{number}.npz", None, TIERS[number], trusted=(OWN,))
            self.nodes[name] = Node(kit.node_id, place.folder / "kits" / name / "state", options, Quiet())
            self._threads.append(threading.Thread(target=self._run, args=(name, kit), daemon=True))

    def _run(self, name, kit):
        node, stop = self.nodes[name], self.stops[name]

        def respond(parts):
            answer = node.respond(parts)
            if node.ended:
                stop.set()
            return self.hostile[name](parts, answer) if name in self.hostile else answer

        try:
            if self.place.transport == "flower":
                from potluck.engines.remote.flower_executor import attend_flower

                attend_flower(kit.address, kit.folder / AUTHORITY, kit.folder / KEY, respond, stop)
            else:
                start = (kit.address, kit.ca, kit.cert, kit.key, *next_start(node.folder))
                attend(*start, respond, lambda line: None, stop, self.place.folder)
            self.ended[name] = node.ended
        except ResourceError as fault:
            self.ended[name] = str(fault)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for stop in self.stops.values():
            stop.set()
        for thread in self._threads:
            thread.join(DEADLINE)


def serve_here(place, settings, out="run", watch=None):
    """A server in this process."""
    kit = read_kit(place.folder / "kits" / "server", "server")
    federation, admitted = prepare(read_experiment(settings), kit.federation), admitted_nodes(kit)
    grace, most = federation.setup.experiment.nodes.grace, federation.charter.limits.bytes
    start = listen(kit, admitted, grace, most, transport=place.transport)
    return serve(federation, start, admitted.names, place.folder / out, watch)


class Recorder:
    """A connection to a port through which all bytes go, and are kept: [(up, down) of each connection]."""

    def __init__(self, port):
        self._far, self._over = port, False
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(0.05)
        self.port = self._listener.getsockname()[1]
        self.kept, self._ends, self._threads = [], [], []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for thread in self._threads:
            thread.join()
        for end in [*self._ends, self._listener]:
            end.close()

    def _accept(self):
        while not self._over:
            try:
                near = self._listener.accept()[0]
            except TimeoutError:
                continue
            try:
                far = socket.create_connection((HOST, self._far))
            except OSError:
                near.close()
                continue
            pair = (bytearray(), bytearray())
            self.kept.append(pair)
            self._ends += [near, far]
            for start, to, kept in ((near, far, pair[0]), (far, near, pair[1])):
                self._threads.append(threading.Thread(target=self._carry, args=(start, to, kept), daemon=True))
                self._threads[-1].start()

    @staticmethod
    def _carry(start, to, kept):
        with suppress(OSError):
            while data := start.recv(1 << 16):
                kept += data
                to.sendall(data)
        for end in (start, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
