"""Where the runs of a comparison are carried out, several at once: on the nodes of a Ray cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import Bytes, ResourceError
from potluck.engines.cluster import NO_TOKEN, Connection, RemoteObject, await_any, connect, machine, own_paths
from potluck.run import config
from potluck.run.child import Message, describe_error
from potluck.run.places import RunProcess
from potluck.run.settings import Experiment

SOON = 0.3
"""Seconds that a node waits for news of its run before it says that there is none."""
LAST = frozenset({"result", "died", "error", "stopped"})
"""The messages after which a run has ended."""


class RunKeeper:
    """The actor on a node: it starts a run in a process of its own there, and passes its messages on."""

    def __init__(self) -> None:
        self._run: RunProcess | None = None

    def start(self, order: Bytes) -> Bytes:
        """Starts or resumes a run."""
        told = json.loads(order.tobytes())
        try:
            if os.path.isdir(told["here"]):  # relative paths in settings mean the same as where it was started
                os.chdir(told["here"])
            if not Path(told["probe"]).exists():
                where = Path(told["probe"]).parent
                raise ResourceError(
                    f"{where} is not there on {machine()['host']}; --out must be a folder that all see."
                )
            self._run = RunProcess(
                config.experiment(told["experiment"]), Path(told["folder"]), told["cores"], told["paths"]
            )
        except Exception as fault:
            return _to_bytes([_cluster_error(fault)])
        return _to_bytes([{"kind": "began", "token": machine()["token"]}])

    def poll(self) -> Bytes:
        """What the run has told since the last call. Waits a moment if there is nothing yet."""
        assert self._run is not None
        self._run.wait(SOON)
        return _to_bytes(self._run.poll())

    def stop(self) -> Bytes:
        """Asks the run to save and to stop."""
        assert self._run is not None
        self._run.stop()
        return _to_bytes([])


def _cluster_error(fault: Exception) -> Message:
    """The message of an error of the cluster, and not of a run: it ends the comparison."""
    return {"kind": "error", "error": {**describe_error(fault), "stops": True}}


class RemoteRun:
    """A run on some node, as the comparison sees it."""

    def __init__(self, keeper: RemoteObject, order: dict[str, Any], local: bool) -> None:
        self.keeper, self.ended = keeper, False
        self._stop, self._local = False, local
        keeper.ask("start", _to_bytes(order))

    def poll(self) -> list[Message]:
        if self.ended:
            return []
        try:
            answer = self.keeper.read()
        except ConnectionError as fault:
            return self._end([{"kind": "died", "how": str(fault)}])
        if answer is None:
            return []
        found: list[Message] = json.loads(answer.tobytes())
        if found and found[0]["kind"] == "began":
            if not self._local and not found[0]["token"]:
                return self._end(
                    [{"kind": "error", "error": {**describe_error(ResourceError(NO_TOKEN)), "stops": True}}]
                )
            found = []
        if any(message["kind"] in LAST for message in found):
            return self._end(found)
        self.keeper.ask("stop" if self._stop else "poll")
        self._stop = False
        return found

    def stop(self) -> None:
        self._stop = True

    def _end(self, last: list[Message]) -> list[Message]:
        self.ended = True
        self.keeper.end()
        return last


class ClusterPlaces:
    """A process on some node of a Ray cluster for each run, as many at once as the cluster has room for."""

    def __init__(self, experiment: Experiment, out: Path, jobs: int | None = None) -> None:
        run = experiment.run
        self._cpus, self._gpus, self._jobs = run.cpus, run.gpus, jobs
        self._connection: Connection = connect(run.address, 0.0)
        self._runs: list[RemoteRun] = []
        out.mkdir(parents=True, exist_ok=True)
        self._probe = out.absolute() / f".seen-{secrets.token_hex(4)}"
        self._probe.touch()

    def has_room(self) -> bool:
        self._runs = [run for run in self._runs if not run.ended]
        room = max(1, self._connection.capacity(self._cpus, self._gpus))
        return len(self._runs) < min(room, self._jobs or room)

    def start(self, experiment: Experiment, folder: Path) -> RemoteRun:
        order = {
            "experiment": _alone(experiment).plain(),
            "folder": str(folder.absolute()),
            "here": os.getcwd(),
            "probe": str(self._probe),
            "cores": max(1, int(self._cpus)),
            "paths": own_paths(),
        }
        keeper = RemoteObject(self._connection, RunKeeper, self._cpus, self._gpus)
        self._runs.append(RemoteRun(keeper, order, self._connection.local))
        return self._runs[-1]

    def wait(self) -> None:
        await_any([run.keeper for run in self._runs if not run.ended], timeout=1.0)

    def close(self) -> None:
        for run in self._runs:
            if not run.ended:
                run.keeper.end()
        with suppress(OSError):
            self._probe.unlink()


def _alone(experiment: Experiment) -> Experiment:
    """The experiment as one node runs it, without the cluster."""
    run = experiment.run
    engine, hardware = ("graphs", "cuda") if run.gpus else ("auto", "cpu")
    changes: dict[str, Any] = {"engine": engine, "hardware": hardware, "address": "", "cpus": 1.0, "gpus": 0.0}
    return dataclasses.replace(experiment, run=dataclasses.replace(run, **changes, send_data=False, workers=0))


def _to_bytes(value: Any) -> Bytes:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
