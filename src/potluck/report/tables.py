"""Runs as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.report.picking import mapping, number, text
from potluck.report.records import Curve, Run, Totals
from potluck.report.summary import compare_rows, tier_names
from potluck.report.units import count, duration, energy, percent, plus_minus, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def run_table(run: Run) -> Table:
    """One run: a row per tier and one for all."""
    table = _table(
        f"{run.label}: {run.status}, {run.done} rounds",
        ["tier", "accuracy", "clients", "parameters", "down", "up", "time*", "energy*"],
    )
    for tier in run.tiers:
        sums = _sums(tier.totals, tier.totals.modelled_seconds)
        table.add_row(*_plain([tier.name, _accuracy(tier.curve), count(tier.clients), count(tier.parameters), *sums]))
    table.add_section()
    sums = _sums(run.totals, run.device_seconds)
    table.add_row(
        *_plain(
            ["all clients" if run.curve.on_clients else "global", _accuracy(run.curve), count(run.clients), "", *sums]
        )
    )
    table.caption = "* modelled; a tier's time is summed over its devices, the last row's over each round's slowest"
    return table


def compare_table(runs: Sequence[Run]) -> Table:
    """Several runs: a row per method, mean ± sd over its seeds."""
    tiers, rows = tier_names(runs), compare_rows(runs)
    most = max((int(number(row["runs"]) or 0) for row in rows), default=0)
    title = "Final test accuracy in %" + (f", mean ± sd over {most} seeds" if most > 1 else "") + ", and cost"
    table = _table(title, ["method", "global", *tiers, "bytes", "time*", "energy*"])
    for row in rows:
        mark = " †" if row["scored_on"] == "clients" else ""
        shares = [_share(row["global"]), *(_share(mapping(row["tiers"]).get(name)) for name in tiers)]
        costs = [size(_mean(row["bytes"])), duration(_mean(row["device_seconds"])), energy(_mean(row["joules"]))]
        few = f" ({count(number(row['runs']))} of them)" if number(row["runs"]) != most else ""
        table.add_row(*_plain([text(row["label"]) + mark + few, *shares, *costs]))
    table.caption = "* modelled; time of each round's slowest device, summed   † mean over clients"
    return table


def _table(title: str, names: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False
    )
    table.show_edge = False
    for index, name in enumerate(names):
        # The first column may fold onto a second line; numbers never do.
        table.add_column(
            Text(name),
            justify="right" if index else "left",
            overflow="fold",
            no_wrap=bool(index),
            min_width=5 if index else 12,
        )
    return table


def _plain(cells: list[str]) -> list[Text]:
    """Cells that are shown as they are: a name in brackets is no colour."""
    from rich.text import Text

    return [Text(cell) for cell in cells]


def _accuracy(curve: Curve) -> str:
    return percent(curve.final.accuracy if curve.final else None) + (" †" if curve.on_clients else "")


def _sums(totals: Totals, seconds: float | None) -> list[str]:
    return [size(totals.bytes_down), size(totals.bytes_up), duration(seconds), energy(totals.joules)]


def _mean(summary: object) -> float | None:
    return number(mapping(summary).get("mean"))


def _share(summary: object) -> str:
    return plus_minus(_mean(summary), number(mapping(summary).get("sd"))).removesuffix(" %").replace(" ± ", "±")
