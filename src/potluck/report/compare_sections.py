"""Sections of the page that compares runs: differences by seed, and the cost to a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.report.budgets import KINDS
from potluck.report.html import COLOURS, Cell, Markup, RowName, TableCell, foldable, note, number_cell, table
from potluck.report.json_values import integer, mapping, number, text
from potluck.report.records import RunRecord
from potluck.report.summary import Row, main_target, mean_of, metric_format, sd_of, target_cost_cells
from potluck.report.units import GAP, MetricFormat

TARGET_HEADS = ("rounds", "traffic", "time*", "energy*", "compute*")
"""Headings of the costs to a target, in the order of `budgets.KINDS`."""


def differences_section(runs: Sequence[RunRecord], rows: Sequence[Row], keys: Mapping[str, str]) -> Markup | None:
    """Each method minus the best other one, by seed, with an interval; None if no two methods share a seed."""
    metric = metric_format(*runs)
    lines = [line for row in rows if (line := _difference_cells(row, metric, keys))]
    if not lines:
        return None
    head = ["", "minus", "difference", "from", "to", "ahead in"]
    groups = [("", 3), ("95 % interval", 2), ("", 1)]
    unit = " in points" if metric.percent else ""
    words = (
        f"Final {metric.name}{unit}, paired by seed: each method minus the best other one that is ranked. Paired t "
        "interval, for one comparison; it assumes independent seeds and normal differences. It speaks of other seeds "
        "of this experiment, not of other data. One seed has no interval."
    )
    shown = table(head, lines, groups, names=["method"], title="differences by seed")
    return foldable("Differences by seed", len(lines) > COLOURS, shown, note(words))


def _difference_cells(row: Row, metric: MetricFormat, keys: Mapping[str, str]) -> list[TableCell]:
    other = text(row["best_other"])
    found = mapping(mapping(row["differences"]).get(other))
    mean, low, high = (number(found.get(key)) for key in ("mean", "low", "high"))
    if mean is None:
        return []
    count = integer(found.get("count")) or 0
    seeds = f"{integer(found.get('ahead'))} of {count} seed{'s' * (count != 1)}"
    ahead = integer(found.get("ahead"))

    def write(value: float | None) -> str:
        return GAP if value is None else metric.format_bare_difference(value)

    ends = [number_cell(write, end) for end in (mean, low, high)]
    return [_row_name(row, keys), other, *ends, Cell(seeds, ahead)]


def target_cost_section(runs: Sequence[RunRecord], rows: Sequence[Row], keys: Mapping[str, str]) -> Markup:
    """What each method had spent when it first reached the main target."""
    target, metric = main_target(*runs), metric_format(*runs)
    lines: list[list[TableCell]] = [[_row_name(row, keys), *_target_cells(row, target)] for row in rows]
    words = (
        "Up to the end of the first scored round at or above the target, mean over the runs that reached it; the last "
        "column says how many did. * modelled."
    )
    title = f"Cost to {metric.format_target(target)}"
    names = ["method", *KINDS, "reached"]
    shown = table(["", *TARGET_HEADS, "reached in"], lines, names=names, title=title)
    return foldable(title, len(lines) > COLOURS, shown, note(words))


def _row_name(row: Row, keys: Mapping[str, str]) -> RowName:
    label = text(row["label"])
    return RowName(label, key=keys.get(label, ""), failed=not number(row["runs"]))


def _target_cells(row: Row, target: float) -> list[Cell]:
    """The texts of `target_cost_cells`, each with its number."""
    found = mapping(mapping(row["cost_to"]).get(str(target)))
    summaries = [*(found.get(kind) for kind in KINDS), {"mean": found.get("reached")}]
    numbers = [(mean_of(summary), sd_of(summary)) for summary in summaries]
    return [Cell(words, *one) for words, one in zip(target_cost_cells(row, target), numbers, strict=True)]
