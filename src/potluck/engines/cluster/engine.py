"""Workers on a Ray cluster: actors of one thread, or of one GPU, spread over its nodes. Only this file knows Ray.

Of ours, Ray pickles the actor's class (by its name) and arrays of bytes, nothing else: tasks, results and faults are
Potluck messages. A worker makes its simulation from the settings and its own copy of the data, and is used only if
checksums of data and code are equal to those here.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import torch

from potluck.core import Bytes, ResourceError, SettingsError, one_line, pack_array, unpack_array
from potluck.engines.batch_messages import read_results
from potluck.engines.batches import RESUME, BatchEngine
from potluck.engines.cluster.guardian import VARIABLE, Guardian
from potluck.engines.cluster.messages import Parcels, pack_tasks, unpack_message
from potluck.engines.cluster.worker import ClusterWorker, machine
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cores import usable_cores

MISSING = "engine 'ray' needs the package ray: pip install 'potluck[ray]'"
PATIENCE = 120.0
"""Seconds in which the first worker must be ready."""
COMPANY = 20.0
"""Seconds that the first round waits for more workers after the first one is ready."""
KNOCK = 10.0
"""Seconds in which a cluster must take a connection."""
FAILED_STARTS = 6
"""So many workers in a row that die while they start end the run, if there is no other worker."""
REMEMBERED = 100_000
"""Clients of which is known who ran their last task."""
NO_TOKEN = (
    "this Ray cluster has no token, so whoever reaches it can run code on it. Set RAY_AUTH_MODE=token and "
    "RAY_AUTH_TOKEN_PATH (a file with the same token) on every node and here; see docs/cluster.md."
)


@dataclass(eq=False)
class RayWorker:
    """An actor, as the engine sees it."""

    actor: Any
    answer: Any = None
    """The reference to what it was asked last."""
    host: str = ""


@dataclass(eq=False)
class Connection:
    """This process's connection to a cluster. Runs of one process share it, and workers that are still good."""

    ray: Any
    address: str
    local: bool
    """Whether only this machine can reach it."""
    cpus: float
    """Cores that it was started with, if it was started here."""
    spare: dict[tuple[float, float], list[Any]] = field(default_factory=dict)
    """Actors that no run uses, by their cores and GPUs."""
    guardian: Guardian | None = None
    """Ends Ray's processes when this one is gone, if they were started here."""

    def take(self, cpus: float, gpus: float) -> Any:
        """A worker: one that is spare, or a new one."""
        spare = self.spare.get((cpus, gpus))
        return spare.pop() if spare else self.make(ClusterWorker, cpus, gpus)

    def make(self, kind: type, cpus: float, gpus: float) -> Any:
        """A new actor of this class. It is not restarted: what it was doing is sent to another."""
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        return self.ray.remote(kind).options(**options, scheduling_strategy="SPREAD").remote()

    def capacity(self, cpus: float, gpus: float) -> int:
        """How many actors the cluster has room for, whoever uses it at the moment."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if self.guardian:
            nodes = [{**nodes[0], "CPU": max(usable_cores(), cpus)}] if nodes else []
        needs = {name: need for name, need in (("CPU", cpus), ("GPU", gpus)) if need}
        return sum(int(min(node.get(name, 0.0) // need for name, need in needs.items())) for node in nodes)


_connection: Connection | None = None


class Ray(BatchEngine[RayWorker]):
    """Runs tasks on a Ray cluster, or on workers that Ray starts on this machine."""

    patient = True
    sums = True

    def __init__(self, context: SimulationContext, workers: int = 0) -> None:
        if context.cluster is None:
            raise SettingsError("engine 'ray' makes its workers from settings; start the run with them")
        self._plan = context.cluster
        self._connection = connect(self._plan.address, workers * self._plan.cpus)
        self._ray = self._connection.ray
        self._asked = workers
        super().__init__(context, workers or self._capacity())
        if not self._connection.capacity(self._plan.cpus, self._plan.gpus):
            raise self._no_worker("no node has room for one")
        torch.set_num_threads(1)
        self._starting: list[RayWorker] = []
        self._failed_starts = self._refused = 0
        self._begun = False
        self._last: OrderedDict[str, RayWorker] = OrderedDict()
        self._parcels: Parcels[Any] = Parcels(self._ray.put)
        self._here = machine()
        self._told: set[str] = set()
        plan = self._plan
        recipe = {"maker": plan.maker, "recipe": plan.recipe, "folder": os.getcwd(), "paths": own_paths()}
        self._recipe = self._ray.put(pack_array(recipe))
        self._data = None if plan.pack_data is None else self._ray.put(plan.pack_data())
        if plan.gpus:
            self.together, self.sums = context.streams, False
        try:
            self._await_workers()
            self._begun = True
        except BaseException:
            self.close()
            raise

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        self._failed_starts = 0
        if not self._asked:  # nodes that joined since the last round are used from here on
            self.count = self._capacity()
        return super().run(envelopes)

    def close(self) -> None:
        """Keeps idle workers for the next run of this process; ends those that are busy or not ready."""
        spare = self._connection.spare.setdefault((self._plan.cpus, self._plan.gpus), [])
        for worker in [*self._workers, *self._starting]:
            if worker in self._busy or worker in self._starting:
                self._end_worker(worker)
            else:
                spare.append(worker.actor)
        self._workers, self._starting, self._busy = [], [], {}

    def _capacity(self) -> int:
        return max(1, self._connection.capacity(self._plan.cpus, self._plan.gpus))

    def _replace_lost_workers(self) -> None:
        if self._failed_starts >= FAILED_STARTS and self._workers:  # nodes are dying; try again with the next tasks
            return
        while len(self._workers) + len(self._starting) < max(1, self.count - self._refused):
            worker = RayWorker(self._connection.take(self._plan.cpus, self._plan.gpus))
            self._prepare(worker)
            self._starting.append(worker)

    def _prepare(self, worker: RayWorker) -> None:
        worker.answer = worker.actor.prepare.remote(self._recipe, *([] if self._data is None else [self._data]))

    def _end_worker(self, worker: RayWorker) -> None:
        with suppress(Exception):  # it may be dead already
            self._ray.kill(worker.actor)

    def _post(self, worker: RayWorker, envelopes: Sequence[TaskEnvelope]) -> bool:
        message, refs = pack_tasks(envelopes, self._parcels)
        try:
            worker.answer = worker.actor.run.remote(message, *refs)
        except self._ray.exceptions.RayError:
            return False
        for envelope in envelopes:
            self._last[envelope.task.to] = worker
            self._last.move_to_end(envelope.task.to)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True

    def _receive(self, timeout: float | None) -> Iterator[tuple[RayWorker, Sequence[TaskResult] | None]]:
        waiting = {worker.answer: worker for worker in (*self._busy, *self._starting)}
        alone = None if self._workers else PATIENCE  # without any worker, waiting must end some time
        limits = [limit for limit in (timeout, alone) if limit is not None]
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=min(limits) if limits else None)
        if not ready and not self._workers:
            raise self._no_worker(f"none was ready within {PATIENCE:g} s")
        ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if ready else ([], [])
        for answer in ready:
            worker = waiting[answer]
            if worker in self._starting:
                self._welcome(worker)
            else:
                yield worker, self._results(worker)

    def _results(self, worker: RayWorker) -> list[TaskResult] | None:
        """What a worker answered; None if it died, or if its answer was lost on the way."""
        try:
            message = self._ray.get(worker.answer)
        except self._ray.exceptions.RayError:
            self._note(f"a worker on {worker.host} died; what it was doing is sent to another")
            return None
        return read_results(*unpack_message(message), self._busy[worker].envelopes)

    def _welcome(self, worker: RayWorker) -> None:
        """Takes a worker that has made its simulation; refuses one whose data or code are others."""
        self._starting.remove(worker)
        try:
            told = unpack_array(self._ray.get(worker.answer))
        except self._ray.exceptions.RayError as fault:
            self._end_worker(worker)
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS and not self._workers:
                raise self._no_worker(
                    f"{FAILED_STARTS} in a row died while they started ({_first_line(fault)})"
                ) from None
            return
        if odd := _refusal(told, self._plan.fingerprint, self._connection.local):
            self._end_worker(worker)
            text = f"a worker on {told['host']} cannot be used: {odd}"
            if not self._begun:
                raise ResourceError(text)
            self._refused += 1  # a node that joined later does not end the run
            self._note(text)
            return
        self._failed_starts, worker.host, worker.answer = 0, told["host"], None
        self._workers.append(worker)
        for what in ("cpu", "build"):
            if told[what] != self._here[what]:
                self._note(f"{told['host']} has {told[what]}, this machine {self._here[what]}: last bits may differ")

    def _choose(self, idle: Sequence[RayWorker], envelopes: Sequence[TaskEnvelope]) -> RayWorker:
        """The worker that ran most of these clients before, so that their rows are at hand there."""
        if len(idle) == 1 or not envelopes:
            return idle[0]
        before = [self._last.get(envelope.task.to) for envelope in envelopes]
        return max(idle, key=before.count)

    def _await_workers(self) -> None:
        """Waits for the first worker, and a while for the others."""
        self._replace_lost_workers()
        end = time.monotonic() + PATIENCE
        while self._starting and (not self._workers or time.monotonic() < end):
            had = bool(self._workers)
            left = max(0.0, end - time.monotonic())
            for _ in self._receive(left):
                pass
            if self._workers and not had:
                end = time.monotonic() + COMPANY
            self._replace_lost_workers()
        if len(self._workers) < self.count:
            self._note(f"{len(self._workers)} of {self.count} workers are ready; the others join when there is room")

    def _no_worker(self, why: str) -> ResourceError:
        there = self._ray.cluster_resources()
        room = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
        needs = f"{self._plan.cpus:g} cores and {self._plan.gpus:g} GPUs"
        return ResourceError(f"no worker on the Ray cluster: {why}. It has {room}; a worker needs {needs}. {RESUME}")

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.notes.append(text)


class RemoteObject:
    """An object of ours on some node of the cluster. It is asked one thing at a time, in bytes."""

    def __init__(self, connection: Connection, kind: type, cpus: float, gpus: float) -> None:
        self._connection = connection
        self._actor = connection.make(kind, cpus, gpus)
        self.answer: Any = None
        """The reference to the answer that is awaited."""

    def ask(self, method: str, *arguments: Bytes) -> None:
        """Calls a method that takes and returns arrays of bytes; `read` gives its answer."""
        self.answer = getattr(self._actor, method).remote(*arguments)

    def read(self) -> Bytes | None:
        """The answer; None if it has not come yet. A `ConnectionError` if the object or its node is lost."""
        ray = self._connection.ray
        if not ray.wait([self.answer], timeout=0)[0]:
            return None
        try:
            found: Bytes = ray.get(self.answer)
        except ray.exceptions.RayError as fault:
            raise ConnectionError(_first_line(fault)) from None
        return found

    def end(self) -> None:
        """Ends it at once, whatever it does."""
        with suppress(Exception):  # it may be dead already
            self._connection.ray.kill(self._actor)


def await_any(objects: Iterable[RemoteObject], timeout: float) -> None:
    """Waits until one of these objects has answered, or so many seconds."""
    waiting = list(objects)
    if waiting:
        waiting[0]._connection.ray.wait([one.answer for one in waiting], num_returns=1, timeout=timeout)
    else:
        time.sleep(timeout)


def connect(address: str, cpus: float) -> Connection:
    """The connection to a cluster. One that is there is used again; one that starts here has at least so many cores."""
    global _connection
    ray = _load_ray(own_token=not address)
    cpus = max(usable_cores(), cpus)
    if _connection is not None and not ray.is_initialized():  # somebody else has closed it
        disconnect()
    if _connection is not None and (_connection.address != address or _connection.cpus < cpus):
        disconnect()
    if _connection is None:
        starts_here = not address and not ray.is_initialized()
        _connection = _start_here(ray, cpus) if starts_here else _join(ray, address)
        atexit.register(disconnect)
    return _connection


def disconnect() -> None:
    """Leaves the cluster; one that was started here ends."""
    global _connection
    if _connection is None:
        return
    gone, _connection = _connection, None
    atexit.unregister(disconnect)
    gone.ray.shutdown()
    if gone.guardian:
        gone.guardian.end()


def _load_ray(own_token: bool) -> Any:
    """Ray, which sends no usage statistics and keeps quiet; with a token of its own for a cluster that starts here."""
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")):
        os.environ.setdefault(name, value)
    if own_token and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:  # Ray reads these when imported
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    try:
        import ray
    except ImportError:
        raise ResourceError(MISSING) from None
    return ray


def _start_here(ray: Any, cpus: float) -> Connection:
    """Starts a cluster that only this machine can reach, and only who has its token."""
    mark = secrets.token_hex(8)
    guardian = Guardian(mark, tempfile.mkdtemp(prefix="potluck-ray-", dir=_short_folder()))
    os.environ[VARIABLE] = mark
    try:
        with _on_loopback():
            # Not "auto", which may mean a cluster that is gone.
            _quietly(ray, lambda: ray.init("local", num_cpus=cpus, _temp_dir=guardian.folder, **_LOCAL))
    except BaseException as fault:
        guardian.end()
        if not isinstance(fault, Exception):
            raise
        raise ResourceError(f"Ray cannot be started on this machine: {_first_line(fault)}") from None
    finally:
        del os.environ[VARIABLE]
    return Connection(ray, "", True, cpus, guardian=guardian)


def _join(ray: Any, address: str) -> Connection:
    """Joins a cluster that is there already."""
    if not ray.is_initialized():
        hint = ""
        try:
            host = _knock(ray, address)
            hint = " Is its token the same as here? See docs/cluster.md."
            _use_token()
            with _on_loopback() if _is_loopback(host) else nullcontext():
                _quietly(ray, lambda: ray.init(address, **_QUIET))
        except Exception as fault:
            raise ResourceError(f"no Ray cluster at run.address = '{address}': {_first_line(fault)}.{hint}") from None
    hosts = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    local = all(_is_loopback(host) for host in hosts)
    if not local and os.environ.get("RAY_AUTH_MODE") != "token":
        ray.shutdown()
        raise ResourceError(NO_TOKEN)
    return Connection(ray, address, local, float("inf"))


def _knock(ray: Any, address: str) -> str:
    """The host of a cluster; an error if nobody listens there. Ray itself would try for minutes."""
    found = address
    if address == "auto":
        with _on_loopback():
            found = str(ray._private.services.canonicalize_bootstrap_address(address))
    host, _, port = found.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConnectionError('give "auto", "host:port" or "ray://host:port"')
    socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
    return host


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Keeps Ray from replacing 127.0.0.1 by an address that others can reach, and from listening there."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _use_token() -> None:
    """Shows the cluster the token that is here, if there is one. Ray does so only if RAY_AUTH_MODE says it."""
    from ray._private.authentication import authentication_token_setup as tokens

    loader = tokens.AuthenticationTokenLoader.instance()
    if "RAY_AUTH_MODE" not in os.environ and loader.has_token(ignore_auth_mode=True):
        tokens._enable_token_auth()


def _short_folder() -> str | None:
    """Where Ray's own folder may be: the path of a socket has at most 107 characters."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None


_QUIET = {"log_to_driver": False, "logging_level": logging.CRITICAL}
_LOCAL = {**_QUIET, "include_dashboard": False}


def _quietly(ray: Any, start: Callable[[], object]) -> None:
    """Connects without warnings. Signals do what they did before, and nothing is printed between our lines."""
    main = threading.current_thread() is threading.main_thread()
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)} if main else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start()
    ray._private.worker.print_to_stdstream = lambda *arguments, **named: None  # it tells of dead workers on stdout
    for kind, handler in before.items():
        signal.signal(kind, handler)


def _refusal(told: Mapping[str, Any], wanted: Mapping[str, str], local: bool) -> str:
    """Why a worker cannot be used, or nothing."""
    if told["fault"]:
        return str(told["fault"])
    if not local and not told["token"]:
        return NO_TOKEN
    for name, value in wanted.items():
        if (found := told["fingerprint"].get(name)) != value:
            return f"its {name} is {found}, here it is {value}. Bring both to the same, then: potluck resume."
    return ""


def own_paths() -> list[str]:
    """Where a user's own modules may be: the current folder, and what was added to Python's own path."""
    pythons = (sys.prefix, sys.base_prefix)
    with suppress(OSError):
        return [*(path for path in sys.path if path and not path.startswith(pythons)), os.getcwd()]
    return []


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _first_line(fault: BaseException) -> str:
    text = str(fault).strip()
    return one_line(text.splitlines()[0] if text else type(fault).__name__)
