"""The commands of a federation between machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.app import Format, FormatOption, app

if TYPE_CHECKING:
    from potluck.federation import NodeEntry

__all__ = ["PANEL", "app"]

PANEL = "Between machines"
"""Where these commands stand in `potluck --help`."""

nodes = typer.Typer(
    help="The nodes of a federation: who is admitted, and until when.",
    epilog="Example: potluck nodes list --kit kits/server",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(nodes, name="nodes", rich_help_panel=PANEL)

ServerKit = Annotated[Path, typer.Option("--kit", help="The server's kit.")]


@app.command(rich_help_panel=PANEL, epilog="Example: potluck provision federation.toml --to kits")
def provision(
    file: Annotated[Path, typer.Argument(help="A TOML file: name, server, sites; also days and also.")],
    to: Annotated[Path, typer.Option(help="The folder for the authority and the kits.")],
    admit: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="The public key of a site that made its own.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the site that --admit is for; by default the file's.")
    ] = None,
) -> None:
    """Make a private authority, and a kit for the server and for each site; later, add new sites.

    No key is ever replaced.
    """
    from potluck.cli import display
    from potluck.core import SettingsError
    from potluck.federation import provision as make_kits
    from potluck.federation import read_federation, read_site_key

    wanted, given = read_federation(file), admit or []
    if name is not None and len(given) != 1:
        raise SettingsError("--name belongs to exactly one --admit FILE.")
    named = [(name or path.stem, read_site_key(path)) for path in given]
    if len({site for site, _ in named}) < len(named):
        raise SettingsError("two --admit files have the same name; give them one after another, with --name.")
    outcomes = make_kits(wanted, to, dict(named))
    for outcome in outcomes:
        display.print_line(f"{outcome.done} {to / outcome.name}: {outcome.text}")
    new = [outcome.name for outcome in outcomes if outcome.done != "kept"]
    display.print_line(
        "next: take each new kit to its machine; its README.txt says what to run." if new else "no new site"
    )
    if new and len(new) < len(outcomes):
        display.print_line(
            "A server elsewhere does not know new sites yet. There: potluck nodes admit SITE/cert.pem --kit ."
        )


@nodes.command(name="list", epilog="Example: potluck nodes list --kit kits/server --format json")
def list_nodes(kit: ServerKit, format: FormatOption = Format.table) -> None:
    """List every node with its status."""
    from potluck.cli import display
    from potluck.federation.admission import FILE, read_nodes
    from potluck.federation.kits import read_kit_settings

    read_kit_settings(kit, "server")
    found = read_nodes(kit / FILE)
    if format is Format.json:
        display.print_json([_row(node) for node in found])
    elif found:
        display.print_rows("nodes", [_row(node, short=True) for node in found])
    else:
        display.print_line("no node yet")


@nodes.command(name="admit", epilog="Example: potluck nodes admit clinic-d/cert.pem --kit kits/server")
def admit_node(
    node: Annotated[str, typer.Argument(help="A node's name or id, or the certificate file of a new one.")],
    kit: ServerKit,
    format: FormatOption = Format.table,
) -> None:
    """Admit a node again, or a new one by its certificate; a running server notices at once."""
    from potluck.federation.provisioning import admit

    _print_node(admit(node, kit), kit, format)


@nodes.command(name="revoke", epilog="Example: potluck nodes revoke clinic-b --kit kits/server")
def revoke_node(
    node: Annotated[str, typer.Argument(help="A node's name or id.")],
    kit: ServerKit,
    format: FormatOption = Format.table,
) -> None:
    """Shut a node out; a running server notices at once."""
    from potluck.federation.provisioning import revoke

    _print_node(revoke(node, kit), kit, format)


@nodes.command(epilog="Example: potluck nodes renew kits/clinic-a --authority kits/authority --kit kits/server")
def renew(
    folder: Annotated[Path, typer.Argument(help="The kit, of a node or of the server; its key is not needed.")],
    authority: Annotated[Path, typer.Option(help="The authority's folder.")],
    kit: Annotated[
        Path | None, typer.Option("--kit", help="The server's kit, to note a node's new date there.")
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    also: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A further name or address of the server.")
    ] = None,
) -> None:
    """Replace the certificate in a kit by a new one for the same key."""
    from potluck.cli import display
    from potluck.federation import renew as replace_certificate

    found = replace_certificate(folder, authority, days, also or (), kit)
    display.print_line(f"renewed {folder / 'cert.pem'}: {found.name}, until {found.expires:%Y-%m-%d}")
    if "node" in found.roles:
        display.print_line("next: put it in place of the cert.pem at the site.")
        if kit is None:
            display.print_line(f"On the server: potluck nodes admit {folder / 'cert.pem'} --kit SERVER_KIT")
    else:
        display.print_line("next: put it in place of the cert.pem at the server, and start the server again.")


@nodes.command(name="new-key", epilog="Example: potluck nodes new-key --to clinic-d")
def new_key(
    to: Annotated[Path, typer.Option(help="The folder for the key; it becomes the site's kit.")],
    name: Annotated[str | None, typer.Option(help="The site's name; by default the folder's.")] = None,
) -> None:
    """Make a site's own key, at the site: the private key never leaves it."""
    from potluck.cli import display
    from potluck.federation import make_site_key, read_site_key
    from potluck.federation.authority import fingerprint

    public = make_site_key(to, name or to.resolve().name)
    display.print_line(f"made {to / 'key.pem'}: secret, it stays here")
    display.print_line(f"made {public}: send this one to who runs the federation (potluck provision ... --admit)")
    display.print_line(f"the node's id will be {fingerprint(read_site_key(public))}; compare it by telephone")


def _print_node(node_id: str, kit: Path, format: Format) -> None:
    from potluck.cli import display
    from potluck.federation.admission import FILE, named_node, read_nodes

    row = _row(named_node(read_nodes(kit / FILE), node_id))
    if format is Format.json:
        display.print_json(row)
        return
    display.print_line(f"{row['status']}: {row['name']} ({row['id']}), since {row['since']}")
    if row["status"] == "expired":
        display.print_line(f"Its certificate expired on {row['expires']}. Renew it: potluck nodes renew")


def _row(node: NodeEntry, short: bool = False) -> dict[str, str]:
    from datetime import UTC, datetime

    from potluck.federation.admission import SHORT

    status = "expired" if node.status == "admitted" and node.expired(datetime.now(UTC)) else node.status
    return {
        "name": node.name,
        "id": node.id[:SHORT] if short else node.id,
        "status": status,
        "since": _minutes(node.since) if short else node.since,
        "expires": _minutes(node.expires) if short else node.expires,
    }


def _minutes(time: str) -> str:
    return time[:16].replace("T", " ")
