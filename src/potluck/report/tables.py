"""Tables for the terminal: one run, a comparison, and what methods cost and need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from potluck.report.budgets import budgets
from potluck.report.json_values import mapping, number, text
from potluck.report.records import LearningCurve, RunRecord, TaskTotals
from potluck.report.sentences import NEEDS, NEEDS_CAPTION, budget_column, budget_notes, budget_sign, needs_cells
from potluck.report.summary import (
    Row,
    client_measures,
    compare_rows,
    failure_words,
    main_target,
    mean_of,
    metric_format,
    metric_name,
    overall_name,
    personal_note,
    sd_of,
    target_cost_cells,
    tier_names,
)
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

NAME_WIDTH, NUMBER_WIDTH = 12, 5
"""The smallest width of the first column and of the others, in characters."""
MAX_NODES = 64
WORST = ("worst tier", "worst 10%")
"""Headings of the worst tier, and of the worst tenth of the clients."""
MODELLED = "* modelled; time of each round's slowest device, summed"


def run_table(run: RunRecord) -> Table:
    """One run: a row per tier and one for the whole run."""
    metric = metric_format(run)
    table = _make_table(
        f"{run.label}: {run.failure or run.status}, {run.rounds_done} rounds",
        ["tier", metric_name(run).split()[0], "clients", "parameters", "down", "up", "time*", "energy*"],
    )
    for tier in run.tiers:
        sizes = [format_count(tier.clients), format_count(tier.parameters)]
        costs = _run_costs(tier.totals, tier.totals.modelled_seconds)
        _add_row(table, [tier.name, _final_cell(tier.curve, metric), *sizes, *costs])
    table.add_section()
    costs = _run_costs(run.totals, run.device_seconds)
    _add_row(table, [overall_name(run.curve), _final_cell(run.curve, metric), format_count(run.clients), "", *costs])
    table.caption = "* modelled; a tier's time is summed over its devices, the last row's over each round's slowest"
    return table


def nodes_table(run: RunRecord) -> Table | None:
    """The nodes of a federation: a row for each, at most `MAX_NODES`; None in a simulation."""
    if not run.nodes:
        return None
    metric, many = metric_format(run), len(run.nodes)
    table = _make_table(
        "1 node" if many == 1 else f"{many} nodes",
        ["node", "tier", metric.name.split()[0], "answered", "down", "up"],
    )
    for node in run.nodes[:MAX_NODES]:
        answered = f"{node.answered} of {node.asked}"
        traffic = [format_bytes(node.bytes_down), format_bytes(node.bytes_up)]
        _add_row(table, [node.name, node.tier or GAP, metric.format(node.score), answered, *traffic])
    more = f"; {many - MAX_NODES} more nodes are left out" if many > MAX_NODES else ""
    name = metric.name.split()[0]
    table.caption = f"{name}: on the node's own rows; down, up: all messages to it and from it{more}"
    return table


def _final_cell(curve: LearningCurve, metric: MetricFormat) -> str:
    return metric.format(curve.final.score if curve.final else None) + (" †" if curve.on_clients else "")


def _run_costs(totals: TaskTotals, seconds: float | None) -> list[str]:
    sizes = [format_bytes(totals.bytes_down), format_bytes(totals.bytes_up)]
    return [*sizes, format_seconds(seconds), format_joules(totals.joules)]


def comparison_tables(runs: Sequence[RunRecord], width: int | None = None) -> list[Table]:
    """All tables of a comparison that fit into `width` characters (by default the terminal's width).

    Scores first; then costs and needs, if there is no space for them beside the scores. If the settings name a budget,
    then scores at equal cost, and if they name a target or a budget, the cost to the main target.
    """
    width = width or get_terminal_size().columns
    more = (cost_table(runs, width), budget_table(runs), target_table(runs), needs_table(runs, width))
    return [compare_table(runs, width), *(table for table in more if table)]


def compare_table(runs: Sequence[RunRecord], width: int | None = None) -> Table:
    """Several runs: a row per method with mean ± sd over its seeds, bounds at the end.

    If all columns fit into `width` characters (by default the terminal's width), the table has scores, costs and what
    methods need. It leaves out first what methods need, then compute and the rounds to a target, unless the settings
    name that target. If that is not enough, costs stand in a table of their own (`cost_table`). Then the tiers lose
    their sd, then become one range from lowest to highest; the average goes last. The worst tier and the worst tenth
    of the clients stay.
    """
    metric, rows = metric_format(*runs), compare_rows(runs)
    layout = _fit_columns(runs, rows, width or get_terminal_size().columns)
    seeds = _most_seeds(rows)
    spread = f", mean ± sd over {seeds} seeds" if seeds > 1 else ""
    costs = ", and cost" if layout.with_costs else ""
    table = _table_of_rows(f"Final test {metric.name}{metric.unit}{spread}{costs}", layout.lines, rows)
    table.caption = "\n".join(_captions(rows, layout))
    return table


def _table_of_rows(title: str, lines: list[list[str]], rows: list[Row]) -> Table:
    """A table with a head and a line for each row; a blank line between blocks."""
    head, *others = lines
    table = _make_table(title, head)
    previous = rows[0] if rows else {}
    for row, line in zip(rows, others, strict=True):
        if _block(row) != _block(previous):
            table.add_section()
        _add_row(table, line)
        previous = row
    return table


def _block(row: Row) -> object:
    """Rows with the same value stand together: those of one variant, and the bounds."""
    return row["bound"] or row["variant"]


def _captions(rows: list[Row], layout: TableLayout) -> Iterator[str]:
    head = layout.lines[0]
    if tiers := next((name for name in head if name.endswith(" tiers")), None):
        yield f"{tiers}: from the lowest to the highest"
    if _tier_keys(rows) and "average" in head:
        yield "average: of the tiers' scores on the test set, by share of clients"
    if WORST[1] in head:
        yield f"{WORST[1]}: mean over the worst tenth of the clients, each on its own examples"
    if "personal" in head:
        yield personal_note(rows)
    signs = [MODELLED] * layout.with_costs
    signs += ["† mean over clients"] * (layout.with_costs or any(row["scored_on"] == "clients" for row in rows))
    signs += ["‡ a bound, not ranked"] * any(row["bound"] for row in rows)
    if signs:
        yield "   ".join(signs)
    if NEEDS[0] in head:
        yield NEEDS_CAPTION


def cost_table(runs: Sequence[RunRecord], width: int | None = None) -> Table | None:
    """What methods cost, mean over seeds; None if `compare_table` shows it already."""
    rows, target = compare_rows(runs), main_target(*runs)
    if _fit_columns(runs, rows, width or get_terminal_size().columns).with_costs:
        return None
    lines = [["method", _target_head(metric_format(*runs), target), *_cost_heads(with_compute=True)]]
    seeds = _most_seeds(rows)
    lines += [[_method_cell(row, seeds), _rounds_cell(row, target), *_cost_cells(row, True)] for row in rows]
    table = _table_of_rows("Cost of a run" + ", mean over seeds" * (seeds > 1), lines, rows)
    table.caption = MODELLED
    return table


def budget_table(runs: Sequence[RunRecord]) -> Table | None:
    """The score of each method within the budgets that the settings name, mean ± sd over seeds; None if they name none.

    Every budget has a column.
    """
    rows, limits, metric = compare_rows(runs), budgets(*runs), metric_format(*runs)
    if not limits:
        return None
    seeds = _most_seeds(rows)
    lines = [["method", *(f"at {limit.name}" for limit in limits)]]
    for row in rows:
        lines.append([_method_cell(row, seeds), *(_score_cell(budget_column(one.key, row), metric) for one in limits)])
    spread = f", mean ± sd over {seeds} seeds" if seeds > 1 else ""
    table = _table_of_rows(f"Test {metric.name}{metric.unit} at equal cost{spread}", lines, rows)
    table.caption = "\n".join(budget_notes(rows, limits))
    return table


def target_table(runs: Sequence[RunRecord]) -> Table | None:
    """What methods had spent when they reached the main target; None if the settings name no target and no budget."""
    if not any(run.targets or run.budget for run in runs):
        return None
    rows, target, metric = compare_rows(runs), main_target(*runs), metric_format(*runs)
    lines = [["method", "rounds", "bytes", "time*", "energy*", "compute*", "reached"]]
    lines += [[_method_cell(row, _most_seeds(rows)), *target_cost_cells(row, target)] for row in rows]
    table = _table_of_rows(f"Cost until {metric.format_target(target)} was reached", lines, rows)
    table.caption = f"mean over the runs that reached it; the last column says how many did\n{MODELLED}"
    return table


def needs_table(runs: Sequence[RunRecord], width: int | None = None) -> Table | None:
    """What methods need and allow; None if no method declares it or if `compare_table` shows it already."""
    rows = compare_rows(runs)
    known = [row for row in rows if mapping(row["facts"])]
    if not known or NEEDS[0] in _fit_columns(runs, rows, width or get_terminal_size().columns).lines[0]:
        return None
    table = _make_table("What methods need and allow", ["method", *NEEDS])
    for row in known:
        _add_row(table, [text(row["label"]), *needs_cells(row["facts"])])
    table.caption = NEEDS_CAPTION
    return table


@dataclass(frozen=True)
class ScoreColumns:
    """One way to show the scores of a comparison."""

    keys: list[str]
    """Scores of the whole run, as `compare_rows` names them."""
    tier_heads: list[str]
    tier_cells: list[list[str]]
    """One list per row."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a comparison that fit into a width."""

    lines: list[list[str]]
    """The head, then a line for each row."""
    with_costs: bool


def _fit_columns(runs: Sequence[RunRecord], rows: list[Row], width: int) -> TableLayout:
    """The widest comparison that fits into `width` characters, or else the narrowest."""
    layouts = list(_layouts(runs, rows))
    return next((layout for layout in layouts if _table_width(layout.lines) <= width), layouts[-1])


def _layouts(runs: Sequence[RunRecord], rows: list[Row]) -> Iterator[TableLayout]:
    """All ways to show a comparison, from the widest to the narrowest: first with costs, then scores alone."""
    metric, target, target_is_named = metric_format(*runs), main_target(*runs), any(run.targets for run in runs)
    scores = [_score_lines(columns, rows, metric) for columns in _score_columns(tier_names(runs), rows, metric)]
    for more, with_needs in ((True, True), (True, False), (False, False)):
        if with_needs and not any(mapping(row["facts"]) for row in rows):
            continue
        with_target = more or target_is_named
        costs = [[*[_target_head(metric, target)] * with_target, *_cost_heads(more), *NEEDS * with_needs]]
        for row in rows:
            needs = needs_cells(row["facts"]) if with_needs else []
            costs.append([*[_rounds_cell(row, target)] * with_target, *_cost_cells(row, more), *needs])
        yield TableLayout([[*left, *right] for left, right in zip(scores[0], costs, strict=True)], with_costs=True)
    yield from (TableLayout(lines, with_costs=False) for lines in scores)


def _score_lines(columns: ScoreColumns, rows: list[Row], metric: MetricFormat) -> list[list[str]]:
    """The head and the lines of a table of scores."""
    seeds, names = _most_seeds(rows), {"worst_tier": WORST[0], "worst": WORST[1]}
    heads = [names.get(key, key) for key in columns.keys]
    lines = [["method", *heads, *columns.tier_heads]]
    for row, tier_cells in zip(rows, columns.tier_cells, strict=True):
        lines.append([_method_cell(row, seeds), *(_score_cell(row[key], metric) for key in columns.keys), *tier_cells])
    return lines


def _score_columns(tiers: list[str], rows: list[Row], metric: MetricFormat) -> Iterator[ScoreColumns]:
    """All ways to show the scores, from the widest to the narrowest."""
    averages, asked = _tier_keys(rows), client_measures(rows)
    tenth = ["worst"] * any(mean_of(row["worst"]) is not None for row in rows)
    keys, fewer_keys = ["global", *averages, *tenth, *asked], ["global", *averages[1:], *tenth, *asked]
    found = [[mapping(row["tiers"]).get(name) for name in tiers] for row in rows]
    yield ScoreColumns(keys, tiers, [[_score_cell(one, metric) for one in line] for line in found])
    yield ScoreColumns(keys, tiers, [[metric.format_cell(mean_of(one)) for one in line] for line in found])
    if len(tiers) > 1:
        head, ranges = [f"{len(tiers)} tiers"], [[_range_cell(map(mean_of, line), metric)] for line in found]
        yield ScoreColumns(keys, head, ranges)
        yield ScoreColumns(fewer_keys, head, ranges)


def _tier_keys(rows: list[Row]) -> list[str]:
    """The columns of the tiers' average and of the worst tier, if the tiers of some run differ."""
    return ["average", "worst_tier"] if any("average" in row for row in rows) else []


def _most_seeds(rows: list[Row]) -> int:
    return max((int(number(row["runs"]) or 0) for row in rows), default=0)


def _method_cell(row: Row, most_seeds: int) -> str:
    signs = " †" * (row["scored_on"] == "clients") + " ‡" * bool(row["bound"])
    if failed := failure_words(row):
        return text(row["label"]) + signs + failed
    fewer = f" ({format_count(number(row['runs']))} of them)" if number(row["runs"]) != most_seeds else ""
    return text(row["label"]) + signs + fewer


def _score_cell(summary: object, metric: MetricFormat) -> str:
    return metric.format_cell(mean_of(summary), sd_of(summary)).replace(" ± ", "±") + budget_sign(summary)


def _range_cell(means: Iterator[float | None], metric: MetricFormat) -> str:
    known = [mean for mean in means if mean is not None]
    return f"{metric.format_cell(min(known))} to {metric.format_cell(max(known))}" if known else GAP


def _target_head(metric: MetricFormat, target: float) -> str:
    return f"to {metric.format_target(target).replace(' ', '')}"


def _rounds_cell(row: Row, target: float) -> str:
    """Mean rounds to the target, over the runs that reached it; adds how many did, if not all."""
    found = mapping(mapping(row["rounds_to"]).get(str(target)))
    reached, runs = number(found.get("count")) or 0, number(row["runs"]) or 0
    return format_short(mean_of(found)) + (f" ({reached:g} of {runs:g})" if 0 < reached < runs else "")


def _cost_heads(with_compute: bool) -> list[str]:
    return ["bytes", *["compute*"] * with_compute, "time*", "energy*"]


def _cost_cells(row: Row, with_compute: bool) -> list[str]:
    compute = [format_flops(mean_of(row["flops"]))] * with_compute
    modelled = [format_seconds(mean_of(row["device_seconds"])), format_joules(mean_of(row["joules"]))]
    return [format_bytes(mean_of(row["bytes"])), *compute, *modelled]


def _table_width(lines: list[list[str]]) -> int:
    """Characters that the table needs so that no number is cut and no word of a method's name is broken."""
    names, *columns = zip(*lines, strict=True)
    word = max(len(part) for cell in names for part in cell.split(" "))
    name_width = max(NAME_WIDTH, min(word, 2 * NAME_WIDTH))
    return name_width + sum(1 + max(NUMBER_WIDTH, *map(len, column)) for column in columns)


def _make_table(title: str, heads: list[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False
    )
    table.show_edge = False
    for index, head in enumerate(heads):
        # Names in the first column may wrap onto a second line; numbers never do.
        table.add_column(
            Text(head),
            justify="right" if index else "left",
            overflow="fold",
            no_wrap=bool(index),
            min_width=NUMBER_WIDTH if index else NAME_WIDTH,
        )
    return table


def _add_row(table: Table, cells: list[str]) -> None:
    """Add a row of plain text: rich must not read a name in brackets as a colour."""
    from rich.text import Text

    table.add_row(*map(Text, cells))
