"""Cost of several methods: a table, the final score against cost, the score so far, and rounds to a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from potluck.report.compare_sections import target_cost_section
from potluck.report.cost import Amount, AxisUnit, cost_axis, score_by_cost
from potluck.report.curves import lines_note, mean_marks, score_axis
from potluck.report.html import (
    COLOURS,
    Cell,
    Markup,
    RowName,
    Series,
    TableCell,
    collapsible,
    join,
    note,
    section,
    table,
    tabs,
    tag,
)
from potluck.report.json_values import mapping, number, text
from potluck.report.multiples import MethodRuns, all_runs, charts_of_methods, is_many, method_charts
from potluck.report.records import RunRecord
from potluck.report.scatter import scatter_charts
from potluck.report.summary import (
    Row,
    capitalize,
    failure_words,
    mean_of,
    mean_sd,
    metric_format,
    metric_name,
    rounds_to,
    rounds_to_average,
    sd_of,
    targets,
    tiers_differ,
)
from potluck.report.svg import Mark
from potluck.report.units import (
    byte_unit,
    energy_unit,
    format_bytes,
    format_count,
    format_flops,
    format_joules,
    format_mean_round,
    format_seconds,
    time_unit,
)

COST_COLUMNS: dict[str, Callable[[float | None], str]] = {
    "rounds": format_count,
    "bytes_down": format_bytes,
    "bytes_up": format_bytes,
    "flops": format_flops,
    "device_seconds": format_seconds,
    "round_seconds": format_seconds,
    "joules": format_joules,
}
"""The columns of the cost of a method: keys of `compare_rows`, and how they are written."""


def compare_cost_table(rows: Sequence[Row], keys: Mapping[str, str]) -> Markup:
    """The cost of each method, mean over seeds. `keys` has the series of each method."""
    head = ["", "rounds", "down", "up", "compute", "time in the field", "with server", "energy"]
    groups = [("", 2), ("measured", 2), ("modelled", 4)]
    lines: list[list[TableCell]] = [
        [method_name(row, keys), *(_cost_cell(row[key], write) for key, write in COST_COLUMNS.items())] for row in rows
    ]
    words = (
        "Per run, mean over seeds. Time in the field: the slowest device of every round, summed. With server: the same "
        "with the wait for what the server itself computes in the round, priced as a data centre's GPU."
    )
    kind = "dense" if len(lines) > COLOURS else ""
    return join(table(head, lines, groups, kind, names=["method", *COST_COLUMNS], title="cost"), note(words))


def method_name(row: Row, keys: Mapping[str, str]) -> RowName:
    """The first cell of a method's row, with the runs that have no result in words."""
    label = text(row["label"])
    return RowName(label, failure_words(row), keys.get(label, ""), failed=not number(row["runs"]))


def _cost_cell(summary: object, write: Callable[[float | None], str]) -> Cell:
    mean, sd, many = mean_of(summary), sd_of(summary), number(mapping(summary).get("count")) or 0
    tip = f"{write(mean)} ± {write(sd)}, mean and standard deviation of {many:.0f} seeds" if sd is not None else ""
    return Cell(write(mean), mean, sd, tip)


def compare_cost_section(runs: Sequence[RunRecord], methods: MethodRuns, rows: Sequence[Row]) -> Markup:
    """What each method cost, its score against that, and its rounds to each target."""
    keys = {series.label: series.key for series, _ in methods}
    costs, metric = compare_cost_table(rows, keys), metric_name(*runs)
    reached = _compare_target_tables(methods)
    scatter = scatter_charts(methods, rows)
    to_target = target_cost_section(runs, rows, keys)
    if is_many(methods):
        costs = collapsible("Cost of every method", costs)
        reached = collapsible("Rounds to a target", reached)
    parts = section(f"What {metric} costs", lines_note(methods), _cost_curves(methods), reached)
    return tag("div", section("Cost", scatter, costs), to_target, parts, data_scope="")


def _cost_curves(methods: MethodRuns) -> Markup:
    start = f"{capitalize(metric_name(*all_runs(methods)))} against"
    waits = any(run.waits_for_server for run in all_runs(methods))
    kinds: list[tuple[str, str, Amount, AxisUnit]] = [
        ("traffic, both directions (measured)", "traffic so far", lambda cost: cost.bytes, byte_unit),
        ("time in the field (modelled)", "time so far", lambda cost: cost.device_seconds, time_unit),
        ("time with the wait for the server (modelled)", "time so far", lambda cost: cost.round_seconds, time_unit),
        ("energy of all devices (modelled)", "energy so far", lambda cost: cost.joules, energy_unit),
    ]
    if not waits:
        del kinds[2]
    drawn = [
        (capitalize(name), _cost_charts(f"{start} {name}", title, methods, amount, axis_unit))
        for name, title, amount, axis_unit in kinds
    ]
    if is_many(methods):
        return tabs("cost so far", *drawn)
    return charts_of_methods(methods, *(chart for _, chart in drawn))


def _cost_charts(caption: str, title: str, methods: MethodRuns, amount: Amount, axis_unit: AxisUnit) -> Markup:
    found = {series.key: [score_by_cost(run, amount) for run in runs] for series, runs in methods}
    factor, unit = axis_unit(max((x for lines in found.values() for line in lines for x, _ in line), default=0.0))

    def draw(series: Series, _: list[RunRecord]) -> list[Mark]:
        lines = found[series.key]
        return mean_marks(series, [[(float(i), x / factor, y) for i, (x, y) in enumerate(line)] for line in lines])

    return method_charts(caption, methods, draw, cost_axis(title, unit), score_axis(*all_runs(methods)), caption)


def _compare_target_tables(methods: MethodRuns) -> Markup:
    """Rounds to each target per method, and by the tiers' average too if tiers differ."""
    words = "First scored round at or above the target, mean over the runs that reached it."
    parts = [tag("h3", "Rounds to a target"), note(words), _rounds_table(methods, rounds_to, "rounds to a target")]
    if tiers_differ(all_runs(methods)):
        title = "Rounds to a target, by the tiers' average"
        parts += [tag("h3", title), _rounds_table(methods, rounds_to_average, title)]
    return join(*parts)


def _rounds_table(methods: MethodRuns, rounds: Callable[[RunRecord, float], int | None], title: str) -> Markup:
    runs = all_runs(methods)
    aims, metric = targets(*runs), metric_format(*runs)
    rows: list[list[TableCell]] = [
        [RowName(series.label, key=series.key), *(rounds_cell([rounds(run, aim) for run in some]) for aim in aims)]
        for series, some in methods
    ]
    kind = "dense" if is_many(methods) else ""
    return table(["", *map(metric.format_target, aims)], rows, kind=kind, names=["method"], title=title)


def rounds_cell(rounds: Sequence[int | None]) -> Cell:
    """The mean of the rounds in which runs reached something, with how many did if not all."""
    summary = mean_sd(rounds)
    return Cell(format_mean_round(rounds), mean_of(summary), sd_of(summary))
