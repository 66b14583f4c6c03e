"""The commands that run a federation between machines: server, join, rehearse, check, status, stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.app import Format, FormatOption, SetOption
from potluck.cli.federation import PANEL
from potluck.cli.publishing import app

__all__ = ["app"]


class TransportName(StrEnum):
    """What carries messages between the server and nodes."""

    grpc = "grpc"
    flower = "flower"


if TYPE_CHECKING:
    from potluck.federation.kits import Kit
    from potluck.federation.measure import DeviceBudget

ServerKit = Annotated[Path, typer.Option("--kit", help="The server's kit, made by `potluck provision`.")]
NodeKit = Annotated[Path | None, typer.Option("--kit", help="This site's kit, made by `potluck provision`.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="The run folder; the same one goes on with its run.")]
PublicOption = Annotated[Path | None, typer.Option("--public", help="This node's copy of the public rows.")]
TierOption = Annotated[str, typer.Option("--tier", help="The tier to take; by default the largest that fits.")]
BudgetOption = Annotated[
    str, typer.Option("--budget", metavar="memory=2GB,seconds=30", help="What a round may take on this machine.")
]
TransportOption = Annotated[
    TransportName,
    typer.Option("--transport", help="What carries messages; the same on both sides. flower needs the extra 'flower'."),
]
StateOption = Annotated[
    Path | None, typer.Option("--state", help="The node's folder: memory and audit log; by default in the kit.")
]


@app.command(rich_help_panel=PANEL, epilog="Example: potluck server experiment.toml --kit kits/server")
def server(
    file: Annotated[Path, typer.Argument(help="A TOML file with a section \\[nodes].")],
    kit: ServerKit,
    changes: SetOption = None,
    out: OutOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; by default the kit's port on all addresses.")
    ] = "",
    transport: TransportOption = TransportName.grpc,
    format: FormatOption = Format.table,
) -> None:
    """Run a federation of real nodes, or go on with it; Ctrl-C saves and stops."""
    from potluck.cli import display
    from potluck.federation.identities import KitIdentities
    from potluck.federation.kits import read_kit
    from potluck.federation.server import default_folder, prepare
    from potluck.run import read_experiment

    found = read_kit(kit, "server")
    identities = KitIdentities.of(found)
    federation = prepare(read_experiment(file, changes or ()), found.federation, identities=identities)
    folder = out or default_folder(federation.setup.experiment)
    result = _serve(federation, found, folder, listen, transport)
    display.print_result(result, format is Format.json)


def _serve(
    federation: Any,
    kit: Kit,
    folder: Path,
    where: str = "",
    transport: TransportName = TransportName.grpc,
    look: Callable[[], None] = lambda: None,
) -> Any:
    """Runs a federation, with its progress on the terminal; `look` is called whenever it looks for nodes."""
    from potluck.cli import display, federation_display
    from potluck.federation.listening import admitted_nodes, listen
    from potluck.federation.server import serve

    experiment = federation.setup.experiment
    display.print_note(f"{kit.federation}: listening on {where or kit.address}; folder {folder}")
    with display.show_progress(experiment.rounds, experiment.name) as watch:
        shown = federation_display.WithNodes(watch)
        admitted = admitted_nodes(kit)
        most = federation.charter.limits.bytes
        start = listen(kit, admitted, experiment.nodes.grace, most, where, transport.value)

        def expected() -> Mapping[str, str]:
            look()
            return admitted.names()

        return serve(federation, start, expected, folder, shown)


@app.command(
    rich_help_panel=PANEL,
    epilog="Example: potluck join --kit kits/clinic-a --data clinic-a.npz --budget memory=2GB,seconds=30",
)
def join(
    kit: NodeKit = None,
    data: Annotated[Path | None, typer.Option("--data", help="This node's own data: npz file or npy folder.")] = None,
    public: PublicOption = None,
    tier: TierOption = "",
    budget: BudgetOption = "",
    state: StateOption = None,
    trust: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A module of your own that the server may name.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads that compute; more than one helps large networks.", min=1)] = 1,
    transport: TransportOption = TransportName.grpc,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to the charter without asking.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what leaves this node, and do nothing.")] = False,
) -> None:
    """Take part in a federation with this machine's own data, until it ends; Ctrl-C stops."""
    from potluck.cli import display, federation_display
    from potluck.core import SettingsError
    from potluck.federation.explaining import explain as sentences
    from potluck.federation.identities import KitIdentities
    from potluck.federation.joining import join as take_part
    from potluck.federation.kits import read_kit
    from potluck.federation.node import Node, NodeOptions

    if explain:
        for line in sentences():
            display.print_line(f"- {line}")
        return
    if kit is None:
        raise SettingsError("--kit is missing: this site's folder with its key, made by `potluck provision`.")
    if data is None:
        raise SettingsError("--data is missing: the file with this node's own rows.")
    if tier and budget:
        raise SettingsError("--tier and --budget: give one of them.")
    found = read_kit(kit, "node")
    watch = federation_display.NodeLines(found.name)
    options = NodeOptions(data, public, tier, _budget(budget), tuple(trust or ()), threads=threads)
    consent = federation_display.consent(yes)
    node = Node(found.node_id, state or kit / "state", options, watch, consent, KitIdentities.of(found))
    how = take_part(found, node, watch.say, transport=transport.value)
    display.print_line(f"{found.federation}: {how or 'ended'}; what left this node: {node.audit.path}")


def _budget(text: str) -> DeviceBudget:
    from potluck.federation.measure import DeviceBudget, read_budget
    from potluck.run.measuring import usual_memory

    return read_budget(text) if text else DeviceBudget(usual_memory())


@app.command(rich_help_panel=PANEL, epilog="Example: potluck rehearse experiments/digits.toml --nodes 3")
def rehearse(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one the built-in digits.")] = None,
    nodes: Annotated[int, typer.Option(help="How many nodes; their tiers take turns.", min=1, max=64)] = 3,
    rounds: Annotated[int | None, typer.Option(help="How many rounds; by default at most three.", min=0)] = None,
    changes: SetOption = None,
    out: OutOption = None,
    transport: TransportOption = TransportName.grpc,
    format: FormatOption = Format.table,
) -> None:
    """Rehearse a federation on this machine: kits, TLS, a server and nodes, each node a process with its own file."""
    from potluck.cli import display
    from potluck.federation.identities import KitIdentities
    from potluck.federation.kits import read_kit
    from potluck.federation.provisioning import FederationSettings, provision
    from potluck.federation.rehearsal import HOST, free_port, node_processes, refuse_dead, write_rehearsal
    from potluck.federation.server import prepare
    from potluck.run import read_experiment
    from potluck.run.session import fresh_path

    experiment = read_experiment(file, changes or ())
    folder = out or fresh_path(experiment.name, "rehearsal")
    made = write_rehearsal(experiment, folder / "data", nodes, rounds)
    wanted = FederationSettings(experiment.name, f"{HOST}:{free_port()}", tuple(made.nodes))
    provision(wanted, folder / "kits")
    kit = read_kit(folder / "kits" / "server", "server")
    federation = prepare(made.experiment, kit.federation, identities=KitIdentities.of(kit))
    display.print_note(f"made {nodes} nodes in {folder}: a kit and a file for each; what they say is in log.txt")
    with node_processes(folder / "kits", made, ["--transport", transport.value]) as started:
        alive = partial(refuse_dead, folder / "kits", started)
        result = _serve(federation, kit, folder / "run", transport=transport, look=alive)
    display.print_result(result, format is Format.json)


@app.command(
    rich_help_panel=PANEL, epilog="Example: potluck check experiment.toml --kit kits/clinic-a --data clinic-a.npz"
)
def check(
    file: Annotated[Path, typer.Argument(help="The TOML file of the federation.")],
    kit: Annotated[Path, typer.Option("--kit", help="The server's kit, or a site's.")],
    data: Annotated[Path | None, typer.Option("--data", help="At a site: this node's own data.")] = None,
    public: PublicOption = None,
    changes: SetOption = None,
    seconds: Annotated[float, typer.Option(help="How long to wait for the other side.", min=1)] = 60,
    format: FormatOption = Format.table,
) -> None:
    """Compare both sides before round 0: versions, code, networks, labels and shapes. Nothing is trained."""
    from potluck.cli import display
    from potluck.federation.checking import check_node, check_server, refuse_differences
    from potluck.federation.identities import KitIdentities
    from potluck.federation.kits import read_kit
    from potluck.federation.server import prepare
    from potluck.run import read_experiment

    found = read_kit(kit)
    identities = KitIdentities.of(found)
    federation = prepare(read_experiment(file, changes or ()), found.federation, identities=identities)
    if found.kind == "server":
        rows = check_server(federation, found, seconds, display.print_note)
    else:
        rows = check_node(federation, found, data, public, seconds, display.print_note)
    if format is Format.json:
        display.print_json(rows)
    else:
        display.print_rows("check", [{name: str(value) for name, value in row.items()} for row in rows])
    refuse_differences(rows)


@app.command(rich_help_panel=PANEL, epilog="Example: potluck status runs/clinics-heterofl-s0-federation")
def status(
    folder: Annotated[Path, typer.Argument(help="The run folder of a federation.")],
    format: FormatOption = Format.table,
) -> None:
    """Show a running federation: its round, who is there, and what it waits for."""
    from potluck.cli import display
    from potluck.federation.status import describe

    found = describe(folder)
    if format is Format.json:
        display.print_json(found)
        return
    display.print_line(found["summary"])
    if found["nodes"]:
        display.print_rows("nodes", [{name: str(value) for name, value in row.items()} for row in found["nodes"]])


@app.command(rich_help_panel=PANEL, epilog="Example: potluck stop runs/clinics-heterofl-s0-federation")
def stop(folder: Annotated[Path, typer.Argument(help="The run folder of a federation on this machine.")]) -> None:
    """Stop a federation's server: it saves, and `potluck server` goes on with it. Nodes wait meanwhile."""
    from potluck.cli import display
    from potluck.federation.status import stop as stop_server

    display.print_line(stop_server(folder))
