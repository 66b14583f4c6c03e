"""Cost: traffic, time and energy per tier and per method, the score against them, and the cost to reach a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from potluck.report.curves import (
    MethodRuns,
    all_runs,
    charts_with_legend,
    mean_marks,
    overall_series,
    score_axis,
    tier_series,
)
from potluck.report.html import Markup, Series, bar_list, charts, figure, join, note, palette, section, table, tag
from potluck.report.json_values import text
from potluck.report.marks import LineMark
from potluck.report.records import Points, RunRecord, TaskTotals, TierRecord, sum_known
from potluck.report.summary import (
    CostSoFar,
    capitalize,
    compare_rows,
    costs_so_far,
    first_round_at,
    mean_of,
    metric_format,
    metric_name,
    overall_name,
    rounds_to,
    rounds_to_average,
    targets,
    tiers_differ,
)
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import (
    GAP,
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

Amount = Callable[[CostSoFar], float]
AxisUnit = Callable[[float], tuple[float, str]]


def score_by_cost(run: RunRecord, amount: Amount) -> Points:
    """The score against what it had cost so far: (amount, score)."""
    costs = costs_so_far(run)
    line = run.curve.line(lambda point: point.score)
    return [(amount(costs[int(index)]), score) for index, score in line if int(index) in costs]


def _cost_axis(title: str, unit: str) -> PlotAxis:
    return PlotAxis(title, unit=unit, count=7, tight=True)


def run_cost_section(run: RunRecord) -> Markup:
    """The score of one run against traffic, time and energy, and when it reached its targets."""
    time = "Modelled: every round lasts as long as its slowest device."
    energy = "Modelled: of all devices together, without the server."
    figures = [
        _traffic_figure(run),
        _modelled_figure(run, "time", " in the field", lambda cost: cost.device_seconds, time_unit, time),
        _modelled_figure(run, "energy", "", lambda cost: cost.joules, energy_unit, energy),
    ]
    return section(f"What {metric_name(run)} costs", charts(*figures), _target_table(run), _messages_table(run))


def _traffic_figure(run: RunRecord) -> Markup:
    both = Series("both", "both directions", "var(--ink)", thick=True)
    down, up = palette(["down: server to clients", "up: clients to server"], start=3)
    lines = [
        (both, score_by_cost(run, lambda cost: cost.bytes)),
        (down, score_by_cost(run, lambda cost: cost.bytes_down)),
        (up, score_by_cost(run, lambda cost: cost.bytes_up)),
    ]
    factor, unit = byte_unit(max((x for _, line in lines for x, _ in line), default=0.0))
    marks = [LineMark(series, [(x / factor, y) for x, y in line]) for series, line in lines]
    title = f"{capitalize(metric_name(run))} against traffic"
    chart = plot(marks, _cost_axis("traffic so far", unit), score_axis(run), title)
    return figure(title, chart, [both, down, up], "Bytes of all clients together, measured.")


def _modelled_figure(run: RunRecord, name: str, where: str, amount: Amount, axis_unit: AxisUnit, words: str) -> Markup:
    line = score_by_cost(run, amount)
    factor, unit = axis_unit(max((x for x, _ in line), default=0.0))
    marks = [LineMark(overall_series(run), [(x / factor, y) for x, y in line])]
    title = f"{capitalize(metric_name(run))} against {name}{where}"
    return figure(title, plot(marks, _cost_axis(f"{name} so far", unit), score_axis(run), title), (), words)


def _target_table(run: RunRecord) -> Markup:
    """When the run and each tier first reached each target, and the cost until then."""
    costs = costs_so_far(run)
    tiers = [tier for tier in run.tiers if tier.curve.points]
    waits = run.waits_for_server
    heads = ["traffic", "time", *["with server"] * waits, "energy"]
    rows = []
    for target in targets(run):
        done = first_round_at(run.curve, target)
        cost = costs.get(done) if done is not None else None
        spent = [GAP] * len(heads)
        if cost:
            times = [format_seconds(cost.device_seconds), *[format_seconds(cost.round_seconds)] * waits]
            spent = [format_bytes(cost.bytes), *times, format_joules(cost.joules)]
        rounds = [format_count(done), *(format_count(first_round_at(tier.curve, target)) for tier in tiers)]
        rows.append([metric_format(run).format_target(target), *rounds, *spent])
    head = ["target", overall_name(run.curve), *(tier.name for tier in tiers), *heads]
    groups = [("", 1), ("reached at round", 1 + len(tiers)), ("spent by then, all clients", len(heads))]
    words = "First scored round at or above the target. Traffic is measured; time and energy are modelled."
    words += " With server: time with the wait for the server's own work." * waits
    return join(tag("h3", "Rounds to a target"), note(words), table(head, rows, groups))


def _messages_table(run: RunRecord) -> Markup | None:
    """What nodes really sent and took, beside what a simulation counts and models; None without real nodes."""
    tiers = [tier for tier in run.tiers if tier.messages_down is not None]
    if not tiers:
        return None
    words = (
        "All messages: what the server sent to its nodes, also to one that was gone, and got from them up to the last "
        "round's answers, scoring and agreement included, before encryption; models: those that tasks sent and got "
        "back, as a simulation counts them; measured time: what nodes clocked while they did their tasks; modelled "
        "time: computed from the work and the tier's device profile, with the transfer."
    )
    head = ["", "down", "up", "down", "up", "measured", "modelled"]
    groups = [("", 1), ("all messages", 2), ("models", 2), ("time, summed over nodes", 2)]
    rows = [_messages_row(tier.name, [tier]) for tier in tiers]
    rows += [_messages_row("all", tiers)] if len(tiers) > 1 else []
    return join(tag("h3", "Measured beside modelled"), note(words), table(head, rows, groups))


def _messages_row(name: str, tiers: Sequence[TierRecord]) -> list[str]:
    messages = [[tier.messages_down for tier in tiers], [tier.messages_up for tier in tiers]]
    models = [[tier.totals.bytes_down for tier in tiers], [tier.totals.bytes_up for tier in tiers]]
    times = [[tier.totals.measured_seconds for tier in tiers], [tier.totals.modelled_seconds for tier in tiers]]
    amounts = [format_bytes(sum_known(column)) for column in messages + models]
    return [name, *amounts, *(format_seconds(sum_known(column)) for column in times)]


def tier_cost_section(run: RunRecord) -> Markup:
    """The model size of each tier, and what one client costs in one round."""
    tiers = tier_series(run)
    sizes = [
        (series, float(tier.parameters), format_count(tier.parameters))
        for series, tier in tiers
        if tier.parameters is not None
    ]
    bars = [
        bar_list("Parameters", sizes, "counted"),
        bar_list("Traffic", _per_visit(tiers, lambda totals: totals.bytes, format_bytes),
                 "measured, per client and round"),
        bar_list("Time", _per_visit(tiers, lambda totals: totals.modelled_seconds, format_seconds),
                 "modelled, per client and round"),
        bar_list("Energy", _per_visit(tiers, lambda totals: totals.joules, format_joules),
                 "modelled, per client and round"),
    ]  # fmt: skip
    words = "Measured: counted or clocked while this ran. Modelled: computed from the work and the device's profile."
    return section("Cost per tier", note(words), tag("div", *bars, class_="meters"), _tier_cost_table(run))


def _per_visit(
    tiers: Sequence[tuple[Series, TierRecord]],
    amount: Callable[[TaskTotals], float | None],
    write: Callable[[float | None], str],
) -> list[tuple[Series, float | None, str]]:
    each = [(series, tier.accepted.per_visit(amount(tier.accepted))) for series, tier in tiers]
    return [(series, value, write(value)) for series, value in each]


def _tier_cost_table(run: RunRecord) -> Markup:
    """The cost of one client in one round, and of the whole run."""
    head = ["", "device", "down", "up", "compute", "memory", "time", "energy", "traffic", "time", "energy"]
    groups = [("", 2), ("per client and round: measured", 2), ("modelled", 4), ("whole run: measured", 2)]
    groups.append(("modelled", 1))
    rows = [_tier_cost_row(tier) for tier in run.tiers]
    return table(head, [*rows, ["all", *[""] * 7, *_whole_run_cells(run.totals)]], groups)


def _tier_cost_row(tier: TierRecord) -> list[str]:
    accepted, per_visit = tier.accepted, tier.accepted.per_visit
    shape = [f"width {tier.width}" if tier.width else "", f"depth {tier.depth}" if tier.depth else ""]
    return [
        tier.name,
        ", ".join(filter(None, [tier.profile, *shape])) or GAP,
        format_bytes(per_visit(accepted.bytes_down)),
        format_bytes(per_visit(accepted.bytes_up)),
        format_flops(per_visit(accepted.flops)),
        format_bytes(accepted.memory),
        format_seconds(per_visit(accepted.modelled_seconds)),
        format_joules(per_visit(accepted.joules)),
        *_whole_run_cells(tier.totals),
    ]


def _whole_run_cells(totals: TaskTotals) -> list[str]:
    return [format_bytes(totals.bytes), format_seconds(totals.measured_seconds), format_joules(totals.joules)]


def compare_cost_table(runs: Sequence[RunRecord]) -> Markup:
    """The cost of each method, mean over seeds."""
    head = ["", "rounds", "down", "up", "compute", "time in the field", "with server", "energy"]
    groups = [("", 2), ("measured", 2), ("modelled", 4)]
    columns: dict[str, Callable[[float | None], str]] = {
        "rounds": format_count,
        "bytes_down": format_bytes,
        "bytes_up": format_bytes,
        "flops": format_flops,
        "device_seconds": format_seconds,
        "round_seconds": format_seconds,
        "joules": format_joules,
    }
    rows = [
        [text(row["label"]), *(write(mean_of(row[key])) for key, write in columns.items())]
        for row in compare_rows(runs)
    ]
    words = (
        "Per run, mean over seeds. Time in the field: the slowest device of every round, summed. With server: the same "
        "with the wait for what the server itself computes in the round, priced as a data centre's GPU."
    )
    return join(tag("h2", "Cost"), table(head, rows, groups), note(words))


def compare_cost_section(methods: MethodRuns) -> Markup:
    """The score of each method against traffic, time and energy, and its rounds to each target."""
    metric = metric_name(*all_runs(methods))
    start, waits = f"{capitalize(metric)} against", any(run.waits_for_server for run in all_runs(methods))
    figures = [
        _compare_figure(f"{start} traffic, both directions (measured)", "traffic so far", methods,
                        lambda cost: cost.bytes, byte_unit),
        _compare_figure(f"{start} time in the field (modelled)", "time so far", methods,
                        lambda cost: cost.device_seconds, time_unit),
        *[_compare_figure(f"{start} time with the wait for the server (modelled)", "time so far", methods,
                          lambda cost: cost.round_seconds, time_unit)] * waits,
        _compare_figure(f"{start} energy of all devices (modelled)", "energy so far", methods,
                        lambda cost: cost.joules, energy_unit),
    ]  # fmt: skip
    return section(f"What {metric} costs", charts_with_legend(methods, *figures), _compare_target_tables(methods))


def _compare_figure(caption: str, title: str, methods: MethodRuns, amount: Amount, axis_unit: AxisUnit) -> Markup:
    found = {series: [score_by_cost(run, amount) for run in runs] for series, runs in methods}
    factor, unit = axis_unit(max((x for lines in found.values() for line in lines for x, _ in line), default=0.0))
    marks: list[Mark] = []
    for series, lines in found.items():
        marks += mean_marks(series, [[(float(i), x / factor, y) for i, (x, y) in enumerate(line)] for line in lines])
    return figure(caption, plot(marks, _cost_axis(title, unit), score_axis(*all_runs(methods)), caption))


def _compare_target_tables(methods: MethodRuns) -> Markup:
    """Rounds to each target per method, and by the tiers' average too if tiers differ."""
    words = "First scored round at or above the target, mean over the runs that reached it."
    parts = [tag("h3", "Rounds to a target"), note(words), _rounds_table(methods, rounds_to)]
    if tiers_differ(all_runs(methods)):
        title = tag("h3", "Rounds to a target, by the tiers' average")
        parts += [title, _rounds_table(methods, rounds_to_average)]
    return join(*parts)


def _rounds_table(methods: MethodRuns, rounds: Callable[[RunRecord, float], int | None]) -> Markup:
    runs = all_runs(methods)
    aims, metric = targets(*runs), metric_format(*runs)
    rows = [
        [series.label, *(format_mean_round([rounds(run, aim) for run in some]) for aim in aims)]
        for series, some in methods
    ]
    return table(["", *map(metric.format_target, aims)], rows)
