"""What methods chose by tuning (`compare.tune`), for tables and the report."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.html import COLOURS, Markup, TableCell, foldable, note, number_cell, table
from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.records import RunRecord
from potluck.report.summary import Row, compare_rows, metric_format
from potluck.report.units import GAP, MetricFormat, format_bytes, format_joules, format_seconds

HEAD = ("", "chose", "validation score", "runs", "seeds", "traffic", "time*", "energy*", "at the edge")


def choices_section(runs: Sequence[RunRecord], rows: Sequence[Row]) -> Markup | None:
    """What each method chose, by which score and at what cost; None if none was tuned."""
    metric = metric_format(*runs)
    lines: list[list[TableCell]] = [_cells(row, found, metric) for row in rows if (found := mapping(row["chosen"]))]
    if not lines:
        return None
    words = (
        "Every method chose by its score on validation rows, in runs with seeds of their own; no test row took part. "
        "The cost is that of all these runs together. A choice at the edge of what was tried says that better values "
        "may lie beyond it. * modelled."
    )
    shown = table(list(HEAD), lines, names=["method"], title="what each method chose")
    return foldable("What each method chose", len(lines) > COLOURS, shown, note(words))


def _cells(row: Row, found: Json, metric: MetricFormat) -> list[TableCell]:
    seeds = ", ".join(text(seed) for seed in sequence(found.get("seeds")))
    edge = choice_edge(found)
    runs = integer(found.get("runs"))
    return [
        *(text(row["label"]), chosen_values(found), number_cell(metric.format, number(found.get("score")))),
        *(GAP if runs is None else str(runs), seeds, *_costs(found), edge),
    ]


def _costs(found: Json) -> list[str]:
    cost = mapping(found.get("cost"))
    down, up = (number(cost.get(key)) or 0.0 for key in ("bytes_down", "bytes_up"))
    seconds, joules = number(cost.get("device_seconds")), number(cost.get("joules"))
    return [format_bytes(down + up), format_seconds(seconds), format_joules(joules)]


def chosen_values(found: Json) -> str:
    """The settings that were chosen: "local.lr = 0.1, fedprox.mu = 1"."""
    return ", ".join(f"{name} = {text(value, repr(value))}" for name, value in mapping(found.get("values")).items())


def choice_note(rows: Sequence[Row]) -> str:
    """What the rows of a table chose, at what cost, and where better values may lie beyond; empty if none was tuned."""
    tuned = [(text(row["label"]), found) for row in rows if (found := mapping(row["chosen"]))]
    if not tuned:
        return ""
    told = [f"{label}: {chosen_values(found)} ({choice_cost(found)})" for label, found in tuned]
    edges = [f"{label}: {edge}" for label, found in tuned if (edge := choice_edge(found))]
    beyond = (
        f" At the edge of what was tried, so that better values may lie beyond: {'; '.join(edges)}." if edges else ""
    )
    return f"Chosen by validation score on other seeds: {'; '.join(told)}.{beyond}"


def choice_cost(found: Json) -> str:
    """What a choice cost: "4 runs, 12 MB, 3 s, 40 J"."""
    count = integer(found.get("runs")) or 0
    return ", ".join([f"{count} run{'' if count == 1 else 's'}", *_costs(found)])


def choice_edge(found: Json) -> str:
    """The settings that were chosen at the edge of what was tried."""
    return ", ".join(text(name) for name in sequence(found.get("edge")))


def choice_lines(runs: Sequence[RunRecord]) -> list[str]:
    """What each method chose, a line each; then a warning for each choice at the edge of its grid."""
    metric, lines, edges = metric_format(*runs), [], []
    for row in compare_rows(runs):
        found, label = mapping(row["chosen"]), text(row["label"])
        if not found:
            continue
        score = metric.format(number(found.get("score")))
        lines.append(f"chosen by validation: {label}: {chosen_values(found)} ({score}; {choice_cost(found)})")
        edges += [
            f"{label}: {text(name)} is at the edge of what was tried; better values may lie beyond it"
            for name in sequence(found.get("edge"))
        ]
    return lines + edges
