"""Runs a federation of real nodes: from settings to results, or from where it stopped."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.core import NOTHING, Examples, InputError, SettingsError
from potluck.data import Source
from potluck.engines import Engine, Serial
from potluck.engines.remote import Remote, Terms, Transport
from potluck.engines.remote.engine import FOREVER
from potluck.federation.charter import Charter, describe_source, make_setup, server_data, write_charter
from potluck.federation.host import Host, HostListener, NodeState
from potluck.federation.node_data import compare_source, public_checksum, read_source
from potluck.federation.roster import Roster
from potluck.federation.status import StatusFile
from potluck.ledger import RunFolder
from potluck.run import config, toml
from potluck.run.assemble import Setup
from potluck.run.devices import Devices
from potluck.run.result import Result
from potluck.run.session import RUNS, folder_name, manifest, mark, run_in_folder
from potluck.run.settings import Experiment
from potluck.run.watch import Watch

if TYPE_CHECKING:
    from potluck.secure.protocol import Identities


@dataclass(frozen=True, eq=False)
class PreparedFederation:
    """A federation that is ready to start: its settings, its charter, and the roster of its nodes."""

    setup: Setup
    charter: Charter
    roster: Roster


def prepare(
    experiment: Experiment, name: str, method: Any = None, identities: Identities | None = None
) -> PreparedFederation:
    """Builds the networks and the charter, and reads the files that the server has; refuses mistakes.

    `identities`, for [secure], are those of the server's kit; seeded ones are for tests without kits.
    """
    experiment = _fill_in(experiment)
    nodes = experiment.nodes
    method = method if method is not None else config.method(experiment.method, experiment.local)
    test: Examples | None = None
    if nodes.test:
        found = _read(nodes.test, "nodes.test", experiment)
        compare_source(found, nodes, nodes.test)
        test = found.train
    public, checksum = NOTHING, ""
    if nodes.public:
        rows = _read(nodes.public, "nodes.public", experiment)
        compare_source(rows, nodes, nodes.public)
        public, checksum = rows.train, public_checksum(rows)
    central = experiment.privacy.enabled and experiment.privacy.where == "server"
    roster = Roster(experiment.seed, nodes.misses, experiment.fleet.draw, secret=central)
    setup = make_setup(experiment, method, server_data(test, public, nodes.classes or 0), roster, identities)
    setup = replace(setup, context=replace(setup.context, counts=roster.samples, own_noise=True))
    roster.devices = Devices(experiment).of_tiers(roster.tiers, experiment.local.batch)
    return PreparedFederation(setup, write_charter(setup, name, checksum), roster)


def _read(file: str, setting: str, experiment: Experiment) -> Source:
    if not Path(file).exists():
        raise InputError(f"{setting} = '{file}': no such file on the server.")
    return read_source(Path(file), experiment.data)


def _fill_in(experiment: Experiment) -> Experiment:
    """The experiment with shape and classes of the server's own test rows, if [nodes] does not say them."""
    nodes = experiment.nodes
    if (nodes.shape and nodes.classes is not None) or not nodes.test:
        return experiment
    told = describe_source(_read(nodes.test, "nodes.test", experiment))
    return config.experiment(experiment.plain() | {"nodes": experiment.plain()["nodes"] | told}, "[nodes]")


def serve(
    federation: PreparedFederation,
    transport: Callable[[Path], Transport],
    expected: Callable[[], Mapping[str, str]],
    out: Path | None = None,
    watch: Watch | None = None,
) -> Result:
    """Runs a federation to its end, in a run folder; goes on with the run that the folder holds.

    `transport` starts the transport; it gets a folder for large messages on their way. `expected` gives the names of
    the nodes that are admitted, by id.
    """
    # Another name for each process: no two sums of a federation share a mask, also if a round is done again.
    setup = replace(federation.setup, session_label=os.urandom(16).hex())
    path = out or default_folder(setup.experiment)
    host: list[Host] = []

    def start(setup: Setup) -> Engine:
        engine = _engine(federation, transport)
        host.append(_host(federation, engine, expected, watch, path))
        return engine

    resumed = (path / "manifest.json").exists()

    def folder() -> RunFolder:
        opened = RunFolder.open(path) if resumed else _create(path, federation)
        if opened.mark != mark(setup):
            opened.close()
            raise SettingsError(f"{path} holds a federation with other settings; choose another --out.")
        host[0].remote.terms = replace(host[0].remote.terms, oldest=lambda: min(opened.checkpoints.rounds(), default=0))
        return opened

    result = run_in_folder(setup, folder, watch, resumed, start, lambda result: host[0].end("done"))
    with suppress(OSError):
        (path / StatusFile.NAME).unlink()
    return result


def default_folder(experiment: Experiment) -> Path:
    """The run folder of a federation: always the same one, so that the same command goes on with it."""
    return RUNS / f"{folder_name(experiment)}-federation"


def _create(path: Path, federation: PreparedFederation) -> RunFolder:
    setup = federation.setup
    facts = manifest(setup) | {"engine": "remote", "charter": federation.charter.hash}
    return RunFolder.create(path, toml.write(setup.experiment.plain()), facts, mark(setup), setup.experiment.run.keep)


def _engine(federation: PreparedFederation, transport: Callable[[Path], Transport]) -> SpooledRemote:
    setup, roster = federation.setup, federation.roster
    nodes, run = setup.experiment.nodes, setup.experiment.run

    def deadline(node: str) -> float:
        member = roster.members.get(node)
        usual = run.deadline or FOREVER
        return nodes.deadlines.get(member.tier, usual) if member else usual

    spool = Path(tempfile.mkdtemp(prefix="potluck-spool-"))
    try:
        terms = Terms(federation.charter.hash, federation.charter.limits, deadline, name=roster.name)
        return SpooledRemote(transport(spool), Serial(setup.context), terms, spool)
    except BaseException:
        shutil.rmtree(spool, ignore_errors=True)
        raise


class SpooledRemote(Remote):
    """Removes its folder for large messages at the end."""

    def close(self) -> None:
        try:
            super().close()
        finally:
            shutil.rmtree(self.spool, ignore_errors=True)


def _host(
    federation: PreparedFederation,
    engine: Remote,
    expected: Callable[[], Mapping[str, str]],
    watch: Watch | None,
    path: Path,
) -> Host:
    status = StatusFile(path)

    def tell(nodes: Sequence[NodeState], waiting: str) -> None:
        status.write(nodes, waiting, os.getpid())
        if isinstance(watch, HostListener):
            watch.nodes(nodes, waiting)

    host = Host(engine, federation.charter, federation.roster, federation.setup.experiment.nodes, expected, tell)
    host.notes = engine.notes  # the loop shows them
    return host
