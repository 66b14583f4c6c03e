"""A rehearsal: a whole federation on this machine, with kits, real connections and a process for each node."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from potluck.core import Examples, ResourceError, SettingsError
from potluck.data import UNDIVIDED, Source, load
from potluck.data import Federation as Division
from potluck.federation.charter import describe_source, without_none
from potluck.run import config
from potluck.run.settings import Experiment

HOST = "127.0.0.1"
MOST_ROWS = 2_000
"""Rows of a node's file in a rehearsal, at most."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal needs: the experiment for real nodes, and a file of data for each."""

    experiment: Experiment
    nodes: Mapping[str, Path]
    """The data file of every node, by name."""
    tiers: Mapping[str, str]
    """The tier of every node, by name."""
    public: Path | None


def write_rehearsal(experiment: Experiment, folder: Path, nodes: int, rounds: int | None = None) -> Rehearsal:
    """Divides the experiment's data among nodes, in files, as the settings divide it among simulated clients."""
    if nodes < 1:
        raise SettingsError(f"--nodes {nodes}: give at least one.")
    told = experiment.plain()
    source = load(experiment.data)
    data = replace(
        experiment.data, clients=nodes, groups=0 if experiment.data.groups > nodes else experiment.data.groups
    )
    tiers = [tier.name for tier in experiment.tier if not tier.absent]
    theirs = [tiers[number % len(tiers)] for number in range(nodes)]
    if len(set(theirs)) == 1:
        data = replace(data, lean=0.0)
    division = Division(source, data, experiment.seed, tiers=theirs)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"node-{number + 1}" for number in range(nodes)]
    files = {name: folder / f"{name}.npz" for name in names}
    for number, path in enumerate(files.values()):
        _write(path, division.shard(number).train, source)
    _write(folder / "test.npz", division.test, source)
    public = folder / "public.npz" if len(division.public) else None
    if public:
        _write(public, division.public, source)
    told["data"] |= {"name": "npz", "path": "", "test_path": "", "shape": (), "size": (), "window": 0, "scale": "auto"}
    told["data"] |= {**UNDIVIDED, "public": 0, "public_from": {}}
    told["fleet"] = {}
    told["nodes"] |= describe_source(source) | {"test": str(folder / "test.npz"), "public": str(public or "")}
    told["nodes"] |= {"wait_for": nodes, "floor": 1}
    told["run"] |= {"engine": "auto", "hardware": "cpu"}
    told["score"] |= {"common": False, "personal": False, "compare_clients": 0}
    told["rounds"] = min(experiment.rounds, 3) if rounds is None else rounds
    made = config.experiment(without_none(told), "rehearsal")
    return Rehearsal(made, files, dict(zip(names, theirs, strict=True)), public)


def _write(path: Path, examples: Examples, source: Source) -> None:
    """Writes rows as networks read them: scaled, so that nodes need not know how."""
    batch = examples[slice(0, MOST_ROWS)]
    arrays = {"x": batch["x"].numpy(), "y": batch["y"].numpy()}
    if source.names:
        arrays["classes"] = np.array(source.names)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@contextmanager
def node_processes(
    kits: Path, rehearsal: Rehearsal, arguments: Sequence[str] = ()
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts `potluck join` for every node; ends them all with the block. What they say is in log.txt of their kit."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    logs: list[IO[bytes]] = []
    try:
        for name, data in rehearsal.nodes.items():
            started[name] = start_node(kits / name, data, rehearsal, rehearsal.tiers[name], arguments, logs.append)
        yield started
    finally:
        for process in started.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in started.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in logs:
            log.close()


def start_node(
    kit: Path,
    data: Path,
    rehearsal: Rehearsal,
    tier: str,
    arguments: Sequence[str] = (),
    keep: Callable[[IO[bytes]], None] = lambda log: None,
) -> subprocess.Popen[bytes]:
    """Starts a node in a process of its own."""
    public = ["--public", str(rehearsal.public)] if rehearsal.public else []
    command = [sys.executable, "-m", "potluck", "join", "--kit", str(kit), "--data", str(data), *public]
    try:
        log = (kit / "log.txt").open("ab")
        keep(log)
        return subprocess.Popen(
            [*command, "--tier", tier, "--yes", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    except OSError as fault:
        raise ResourceError(f"a node cannot be started: {fault.strerror}.") from None


def refuse_dead(kits: Path, started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Raises an error if the process of a node has failed: in a rehearsal nobody starts it again."""
    for name, process in started.items():
        if process.poll():
            raise ResourceError(f"{name} has ended: {last_words(kits / name) or f'exit code {process.returncode}'}")


def last_words(kit: Path) -> str:
    """The last line that a node said."""
    with suppress(OSError):
        lines = (kit / "log.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("potluck: ") if lines else ""
    return ""
