"""Runs as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from potluck.report.json_values import mapping, number, text
from potluck.report.records import LearningCurve, RunRecord, TaskTotals
from potluck.report.sentences import NEEDS, NEEDS_CAPTION, needs_cells
from potluck.report.summary import Row, compare_rows, main_target, metric_format, metric_name, tier_names
from potluck.report.units import (
    GAP,
    MetricFormat,
    format_bytes,
    format_count,
    format_flops,
    format_joules,
    format_seconds,
    format_short,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NAME, NUMBER = 12, 5
"""The least width of the first column and of the others."""


def run_table(run: RunRecord) -> Table:
    """One run: a row per tier and one for all."""
    table = _table(
        f"{run.label}: {run.status}, {run.rounds_done} rounds",
        ["tier", metric_name(run).split()[0], "clients", "parameters", "down", "up", "time*", "energy*"],
    )
    for tier in run.tiers:
        sums = _sums(tier.totals, tier.totals.modelled_seconds)
        table.add_row(
            *_plain(
                [
                    tier.name,
                    _score(tier.curve, metric_format(run)),
                    format_count(tier.clients),
                    format_count(tier.parameters),
                    *sums,
                ]
            )
        )
    table.add_section()
    sums = _sums(run.totals, run.device_seconds)
    table.add_row(
        *_plain(
            [
                "all clients" if run.curve.on_clients else "global",
                _score(run.curve, metric_format(run)),
                format_count(run.clients),
                "",
                *sums,
            ]
        )
    )
    table.caption = "* modelled; a tier's time is summed over its devices, the last row's over each round's slowest"
    return table


def compare_table(runs: Sequence[RunRecord], width: int | None = None) -> Table:
    """Several runs: a row per method, mean ± sd over its seeds; bounds apart, after a line.

    As many columns as `width` characters hold (by default those of the terminal). What methods need is left out first,
    then computing and, unless a recipe names its target, rounds to one; where the tiers do not fit either, they are
    shown without their spread, then as one range from the lowest to the highest, and at last without their average.
    """
    judge, rows = metric_format(*runs), compare_rows(runs)
    lines = _fitting(runs, rows, width or get_terminal_size().columns)
    most = max((int(number(row["runs"]) or 0) for row in rows), default=0)
    spread = f", mean ± sd over {most} seeds" if most > 1 else ""
    table = _table(f"Final test {judge.name}{judge.unit}{spread}, and cost", lines[0])
    for number_, (row, line) in enumerate(zip(rows, lines[1:], strict=True)):
        if number_ and _kind(row) != _kind(rows[number_ - 1]):
            table.add_section()
        table.add_row(*_plain(line))
    table.caption = "\n".join(_captions(rows, lines[0]))
    return table


def needs_table(runs: Sequence[RunRecord], width: int | None = None) -> Table | None:
    """What methods need and allow; nothing where none says so, or where the comparison's own table has it already."""
    rows = compare_rows(runs)
    told = [row for row in rows if mapping(row["facts"])]
    if not told or NEEDS[0] in _fitting(runs, rows, width or get_terminal_size().columns)[0]:
        return None
    table = _table("What methods need and allow", ["method", *NEEDS])
    for row in told:
        table.add_row(*_plain([text(row["label"]), *needs_cells(row["facts"])]))
    table.caption = NEEDS_CAPTION
    return table


def _fitting(runs: Sequence[RunRecord], rows: list[Row], room: int) -> list[list[str]]:
    """The head and the lines of the widest way to show a comparison in so many characters, or else the narrowest."""
    most = max((int(number(row["runs"]) or 0) for row in rows), default=0)
    judge, target = metric_format(*runs), main_target(*runs)
    asked = any(run.targets for run in runs)
    ways = _ways(tier_names(runs), rows, judge)
    lines: list[list[str]] = []
    for (keys, heads, shares), more, needs in product(ways, (True, False), (True, False)):
        if needs and not (more and any(mapping(row["facts"]) for row in rows)):
            continue
        head = ["method", *keys, *heads, *[_target(judge, target)] * (more or asked), *_cost_names(more)]
        lines = [[*head, *NEEDS * needs]]
        for row, share in zip(rows, shares, strict=True):
            scores = [_share(row[key], judge) for key in keys]
            until = [_rounds(row, target)] * (more or asked)
            told = needs_cells(row["facts"]) if needs else []
            lines.append([_method(row, most), *scores, *share, *until, *_costs(row, more), *told])
        if _needs(lines) <= room:
            break
    return lines


def _kind(row: Row) -> object:
    """Rows of one kind stand together: those of a variant, and the bounds."""
    return row["bound"] or row["variant"]


def _captions(rows: list[Row], head: list[str]) -> Iterator[str]:
    if folded := next((name for name in head if name.endswith(" tiers")), None):
        yield f"{folded}: from the lowest to the highest"
    if _average(rows) and "average" in head:
        yield "average: of the tiers' scores on the test set, by share of clients"
    bound = "   ‡ a bound, not ranked" if any(row["bound"] for row in rows) else ""
    yield f"* modelled; time of each round's slowest device, summed   † mean over clients{bound}"
    if NEEDS[0] in head:
        yield NEEDS_CAPTION


def _method(row: Row, most: int) -> str:
    mark = " †" * (row["scored_on"] == "clients") + " ‡" * bool(row["bound"])
    return (
        text(row["label"])
        + mark
        + (f" ({format_count(number(row['runs']))} of them)" if number(row["runs"]) != most else "")
    )


def _average(rows: list[Row]) -> list[str]:
    """The column of the tiers' average, where rows have one."""
    return ["average"] * any("average" in row for row in rows)


def _local(rows: list[Row]) -> list[str]:
    """The column of local scores, where any run has one."""
    return ["local"] * any(_mean(row["local"]) is not None for row in rows)


def _target(judge: MetricFormat, target: float) -> str:
    return f"to {judge.format_target(target).replace(' ', '')}"


def _rounds(row: Row, target: float) -> str:
    """Rounds until the target, of the runs that reached it."""
    return format_short(_mean(mapping(row["rounds_to"]).get(str(target))))


def _cost_names(more: bool) -> list[str]:
    return ["bytes", *["compute*"] * more, "time*", "energy*"]


def _costs(row: Row, more: bool) -> list[str]:
    computing = [format_flops(_mean(row["flops"]))] * more
    return [
        format_bytes(_mean(row["bytes"])),
        *computing,
        format_seconds(_mean(row["device_seconds"])),
        format_joules(_mean(row["joules"])),
    ]


def _ways(
    tiers: list[str], rows: list[Row], judge: MetricFormat
) -> Iterator[tuple[list[str], list[str], list[list[str]]]]:
    """The scores of the whole run, and the tiers' columns, from the widest way to show them to the narrowest."""
    found = [[mapping(row["tiers"]).get(name) for name in tiers] for row in rows]
    keys, fewer = ["global", *_average(rows), *_local(rows)], ["global", *_local(rows)]
    yield keys, tiers, [[_share(one, judge) for one in line] for line in found]
    yield keys, tiers, [[_share({"mean": _mean(one)}, judge) for one in line] for line in found]
    if len(tiers) > 1:
        folded = [f"{len(tiers)} tiers"], [[_range([_mean(one) for one in line], judge)] for line in found]
        yield keys, *folded
        yield fewer, *folded


def _range(means: list[float | None], judge: MetricFormat) -> str:
    known = [mean for mean in means if mean is not None]
    return f"{judge.format_cell(min(known))} to {judge.format_cell(max(known))}" if known else GAP


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


def _score(curve: LearningCurve, judge: MetricFormat) -> str:
    return judge.format(curve.final.score if curve.final else None) + (" †" if curve.on_clients else "")


def _sums(totals: TaskTotals, seconds: float | None) -> list[str]:
    return [
        format_bytes(totals.bytes_down),
        format_bytes(totals.bytes_up),
        format_seconds(seconds),
        format_joules(totals.joules),
    ]


def _mean(summary: object) -> float | None:
    return number(mapping(summary).get("mean"))


def _share(summary: object, judge: MetricFormat) -> str:
    return judge.format_cell(_mean(summary), number(mapping(summary).get("sd"))).replace(" ± ", "±")
