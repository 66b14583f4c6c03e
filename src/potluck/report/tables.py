"""Runs as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from potluck.report.picking import mapping, number, text
from potluck.report.records import Curve, Run, Totals
from potluck.report.summary import Row, compare_rows, metric, tier_names
from potluck.report.units import GAP, count, duration, energy, percent, plus_minus, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NAME, NUMBER = 12, 5
"""The least width of the first column and of the others."""


def run_table(run: Run) -> Table:
    """One run: a row per tier and one for all."""
    table = _table(
        f"{run.label}: {run.status}, {run.done} rounds",
        ["tier", metric(run).split()[0], "clients", "parameters", "down", "up", "time*", "energy*"],
    )
    for tier in run.tiers:
        sums = _sums(tier.totals, tier.totals.modelled_seconds)
        table.add_row(*_plain([tier.name, _score(tier.curve), count(tier.clients), count(tier.parameters), *sums]))
    table.add_section()
    sums = _sums(run.totals, run.device_seconds)
    table.add_row(
        *_plain(["all clients" if run.curve.on_clients else "global", _score(run.curve), count(run.clients), "", *sums])
    )
    table.caption = "* modelled; a tier's time is summed over its devices, the last row's over each round's slowest"
    return table


def compare_table(runs: Sequence[Run], width: int | None = None) -> Table:
    """Several runs: a row per method, mean ± sd over its seeds.

    As many columns as `width` characters hold (by default those of the terminal): where the tiers do not fit they
    are first shown without their spread, then as one range from the lowest to the highest.
    """
    room = width or get_terminal_size().columns
    tiers, rows = tier_names(runs), compare_rows(runs)
    most = max((int(number(row["runs"]) or 0) for row in rows), default=0)
    starts = [[_method(row, most), *_scores(rows, row)] for row in rows]
    costs = [_costs(row) for row in rows]
    title = f"Final test {metric(*runs)} in %" + (f", mean ± sd over {most} seeds" if most > 1 else "") + ", and cost"
    heads: list[str] = []
    lines: list[list[str]] = []
    for heads, shares in _ways(tiers, rows):
        lines = [["method", "global", *_local(rows), *heads, "bytes", "time*", "energy*"]]
        lines += [[*start, *share, *cost] for start, share, cost in zip(starts, shares, costs, strict=True)]
        if _needs(lines) <= room:
            break
    table = _table(title, lines[0])
    for line in lines[1:]:
        table.add_row(*_plain(line))
    table.caption = "* modelled; time of each round's slowest device, summed   † mean over clients"
    if len(heads) < len(tiers):
        table.caption = f"{heads[0]}: from the lowest to the highest\n{table.caption}"
    return table


def _method(row: Row, most: int) -> str:
    mark = " †" if row["scored_on"] == "clients" else ""
    return (
        text(row["label"]) + mark + (f" ({count(number(row['runs']))} of them)" if number(row["runs"]) != most else "")
    )


def _local(rows: list[Row]) -> list[str]:
    """The column of local scores, where any run has one."""
    return ["local"] * any(_mean(row["local"]) is not None for row in rows)


def _scores(rows: list[Row], row: Row) -> list[str]:
    return [_share(row[key]) for key in ("global", *_local(rows))]


def _costs(row: Row) -> list[str]:
    return [size(_mean(row["bytes"])), duration(_mean(row["device_seconds"])), energy(_mean(row["joules"]))]


def _ways(tiers: list[str], rows: list[Row]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The tiers' columns, from the widest way to show them to the narrowest."""
    found = [[mapping(row["tiers"]).get(name) for name in tiers] for row in rows]
    yield tiers, [[_share(one) for one in line] for line in found]
    yield tiers, [[_share({"mean": _mean(one)}) for one in line] for line in found]
    if len(tiers) > 1:
        yield [f"{len(tiers)} tiers"], [[_range([_mean(one) for one in line])] for line in found]


def _range(means: list[float | None]) -> str:
    known = [mean for mean in means if mean is not None]
    return f"{100 * min(known):.1f} to {100 * max(known):.1f}" if known else GAP


def _needs(lines: list[list[str]]) -> int:
    """Characters that a table takes in which no number is cut and no word of a method's name is broken."""
    first, *others = zip(*lines, strict=True)
    word = max(len(part) for cell in first for part in cell.split(" "))
    return max(NAME, min(word, 2 * NAME)) + sum(1 + max(NUMBER, *map(len, column)) for column in others)


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
            min_width=NUMBER if index else NAME,
        )
    return table


def _plain(cells: list[str]) -> list[Text]:
    """Cells that are shown as they are: a name in brackets is no colour."""
    from rich.text import Text

    return [Text(cell) for cell in cells]


def _score(curve: Curve) -> str:
    return percent(curve.final.score if curve.final else None) + (" †" if curve.on_clients else "")


def _sums(totals: Totals, seconds: float | None) -> list[str]:
    return [size(totals.bytes_down), size(totals.bytes_up), duration(seconds), energy(totals.joules)]


def _mean(summary: object) -> float | None:
    return number(mapping(summary).get("mean"))


def _share(summary: object) -> str:
    return plus_minus(_mean(summary), number(mapping(summary).get("sd"))).removesuffix(" %").replace(" ± ", "±")
