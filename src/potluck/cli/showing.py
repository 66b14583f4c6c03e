"""What `potluck show data` prints: who holds how many rows of which label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from potluck.report.holdings import ClientHoldings, HoldingsRecord

PRINTED = 24
"""The most clients that a terminal shows."""
HEIGHTS = "▁▂▃▄▅▆▇█"


def read_holdings(file: Path | None, changes: list[str]) -> tuple[dict[str, Any], str]:
    """Who holds what, and a title: of the settings in a file, or of a run folder that recorded it."""
    from potluck.core import InputError, SettingsError
    from potluck.run import read_experiment
    from potluck.run.holdings import who_holds_what

    if file is None or not file.is_dir():
        experiment = read_experiment(file, changes)
        return who_holds_what(experiment), f"{experiment.name}, seed {experiment.seed}"
    from potluck.ledger import read_run

    if changes:
        raise SettingsError("--set changes the settings of a file, and this is a run folder; leave it out.")
    run = read_run(file)
    if not (found := run.holdings()):
        raise InputError(f"{file} holds no record of who holds what; give the settings: {file}/settings.toml.")
    return found, f"{run.manifest.get('name', file.name)}, seed {run.manifest.get('seed')}"


def print_holdings(found: HoldingsRecord, title: str) -> None:
    """Prints a line for each tier, and one for each of some clients."""
    from potluck.cli import display

    display.print_line(f"{title}: training rows of {found.sample}, partition {found.partition}")
    display.print_table(_tier_table(found))
    display.print_table(_client_table(found))
    if len(found.held) > PRINTED:
        display.print_line(f"{PRINTED} clients are shown; --format json and --to FILE have {len(found.held)}.")
    if found.labels:
        display.print_line(f"mix: the rows of each label, {found.labels[0]} to {found.labels[-1]}; · is none.")


def _tier_table(found: HoldingsRecord) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("tier", no_wrap=True)
    for name in ("clients", "rows per client", "fewest", "most", *["labels per client"] * bool(found.labels)):
        table.add_column(name, justify="right")
    table.add_column("mix", no_wrap=True)
    for tier in found.tiers:
        theirs = found.of_tier(tier)
        sizes = [each.rows for each in theirs]
        cells = [tier.title, str(tier.clients), f"{sum(sizes) / len(sizes):.1f}", str(min(sizes)), str(max(sizes))]
        cells += [f"{sum(each.labels for each in theirs) / len(theirs):.1f}"] * bool(found.labels)
        together = [sum(column) for column in zip(*(each.counts for each in theirs), strict=True)]
        table.add_row(*map(Text, [*cells, mix(together) if found.labels else ""]))
    return table


def _client_table(found: HoldingsRecord) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("client", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", *["labels"] * bool(found.labels)):
        table.add_column(name, justify="right")
    if found.labels:
        table.add_column("mix", no_wrap=True)
    for each in _some(found.held):
        cells = [each.client, each.tier, str(each.rows)]
        cells += [str(each.labels), mix(each.counts)] if found.labels else []
        table.add_row(*map(Text, cells))
    return table


def _some(held: tuple[ClientHoldings, ...]) -> list[ClientHoldings]:
    """At most so many clients, evenly spaced."""
    if len(held) <= PRINTED:
        return list(held)
    return [held[place * (len(held) - 1) // (PRINTED - 1)] for place in range(PRINTED)]


def mix(counts: list[int] | tuple[int, ...]) -> str:
    """Counts as a strip of bars, one letter each; the highest is the largest count."""
    most = max(counts, default=0)
    return "".join(HEIGHTS[(count * len(HEIGHTS) - 1) // most] if count else "·" for count in counts)


def show_data(file: Path | None, changes: list[str], to: Path | None, as_json: bool) -> None:
    """The whole command."""
    from potluck.cli import display
    from potluck.core import SettingsError
    from potluck.report.holdings import parse_holdings, write_holdings

    if to is not None and to.suffix.lower() not in (".html", ".svg"):
        raise SettingsError(f"--to {to}: give a name that ends in .html or .svg.")
    plain, title = read_holdings(file, changes)
    found = parse_holdings(plain)
    if not found.held:
        from potluck.core import InputError

        raise InputError(f"{file}: what it says of who holds what makes no sense.")
    if as_json:
        display.print_json(plain)
    else:
        print_holdings(found, title)
    if to is not None:
        display.print_note(f"picture: {write_holdings(found, to, title)}")
