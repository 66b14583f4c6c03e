"""Cost of one run: traffic, time and energy per tier, the score against them, and the cost to reach a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from potluck.report.curves import overall_series, score_axis, tier_series
from potluck.report.html import (
    Cell,
    Markup,
    Series,
    TableCell,
    bar_list,
    charts,
    figure,
    join,
    note,
    number_cell,
    palette,
    section,
    table,
    tag,
)
from potluck.report.marks import LineMark
from potluck.report.records import Points, RunRecord, TaskTotals, TierRecord, sum_known
from potluck.report.summary import (
    CostSoFar,
    capitalize,
    costs_so_far,
    first_round_at,
    metric_format,
    metric_name,
    overall_name,
    targets,
)
from potluck.report.svg import PlotAxis, plot
from potluck.report.units import (
    GAP,
    byte_unit,
    energy_unit,
    format_bytes,
    format_count,
    format_flops,
    format_joules,
    format_seconds,
    time_unit,
)

Amount = Callable[[CostSoFar], float]
AxisUnit = Callable[[float], tuple[float, str]]
BASES = {
    "measured": "training steps of this very network, measured on the device (potluck measure)",
    "fitted": "training steps of the same network in other sizes, measured on the device (potluck measure)",
    "other network": "the FLOP/s of another network, measured on the device (potluck measure)",
    "drawn": "a device for each client, drawn from a fleet that was fitted to a list (fleet.file)",
}
"""What the modelled time and memory of a tier may rest on, besides a built-in profile."""


def score_by_cost(run: RunRecord, amount: Amount) -> Points:
    """The score against what it had cost so far: (amount, score)."""
    costs = costs_so_far(run)
    line = run.curve.line(lambda point: point.score)
    return [(amount(costs[int(index)]), score) for index, score in line if int(index) in costs]


def cost_axis(title: str, unit: str) -> PlotAxis:
    """The horizontal axis of what was spent so far."""
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
    chart = plot(marks, cost_axis("traffic so far", unit), score_axis(run), title)
    return figure(title, chart, [both, down, up], "Bytes of all clients together, measured.")


def _modelled_figure(run: RunRecord, name: str, where: str, amount: Amount, axis_unit: AxisUnit, words: str) -> Markup:
    line = score_by_cost(run, amount)
    factor, unit = axis_unit(max((x for x, _ in line), default=0.0))
    marks = [LineMark(overall_series(run), [(x / factor, y) for x, y in line])]
    title = f"{capitalize(metric_name(run))} against {name}{where}"
    return figure(title, plot(marks, cost_axis(f"{name} so far", unit), score_axis(run), title), (), words)


def _target_table(run: RunRecord) -> Markup:
    """When the run and each tier first reached each target, and the cost until then."""
    costs = costs_so_far(run)
    tiers = [tier for tier in run.tiers if tier.curve.points]
    waits = run.waits_for_server
    heads = ["traffic", "time", *["with server"] * waits, "energy"]
    rows: list[list[TableCell]] = []
    for target in targets(run):
        done = first_round_at(run.curve, target)
        cost = costs.get(done) if done is not None else None
        spent = [Cell(GAP)] * len(heads)
        if cost:
            seconds = [cost.device_seconds, *[cost.round_seconds] * waits]
            times = [number_cell(format_seconds, value) for value in seconds]
            spent = [number_cell(format_bytes, cost.bytes), *times, number_cell(format_joules, cost.joules)]
        reached = [done, *(first_round_at(tier.curve, target) for tier in tiers)]
        rounds = [number_cell(format_count, value) for value in reached]
        rows.append([metric_format(run).format_target(target), *rounds, *spent])
    head = ["target", overall_name(run.curve), *(tier.name for tier in tiers), *heads]
    groups = [("", 1), ("reached at round", 1 + len(tiers)), ("spent by then, all clients", len(heads))]
    words = "First scored round at or above the target. Traffic is measured; time and energy are modelled."
    words += " With server: time with the wait for the server's own work." * waits
    return join(tag("h3", "Rounds to a target"), note(words), table(head, rows, groups, title="rounds to a target"))


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
    last = [_messages_row("all", tiers)] if len(tiers) > 1 else []
    shown = table(head, rows, groups, last=last, title="measured beside modelled")
    return join(tag("h3", "Measured beside modelled"), note(words), shown)


def _messages_row(name: str, tiers: Sequence[TierRecord]) -> list[str | Cell]:
    messages = [[tier.messages_down for tier in tiers], [tier.messages_up for tier in tiers]]
    models = [[tier.totals.bytes_down for tier in tiers], [tier.totals.bytes_up for tier in tiers]]
    times = [[tier.totals.measured_seconds for tier in tiers], [tier.totals.modelled_seconds for tier in tiers]]
    amounts = [number_cell(format_bytes, sum_known(column)) for column in messages + models]
    return [name, *amounts, *(number_cell(format_seconds, sum_known(column)) for column in times)]


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
    notes = join(note(words), *(note(line) for line in _basis_lines(run)))
    return section("Cost per tier", notes, tag("div", *bars, class_="meters"), _tier_cost_table(run))


def _basis_lines(run: RunRecord) -> list[str]:
    """What the modelled figures of each tier rest on; nothing of tiers with built-in profiles."""
    return [
        f"{tier.name}: modelled time and memory rest on {BASES.get(tier.basis, tier.basis)}: {tier.source or GAP}."
        for tier in run.tiers
        if tier.basis
    ]


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
    last: list[list[TableCell]] = [["all", *[""] * 7, *_whole_run_cells(run.totals)]]
    return table(head, rows, groups, last=last, title="cost per tier")


def _tier_cost_row(tier: TierRecord) -> list[str | Cell]:
    accepted, per_visit = tier.accepted, tier.accepted.per_visit
    shape = [f"width {tier.width}" if tier.width else "", f"depth {tier.depth}" if tier.depth else ""]
    profile = f"{tier.profile} ({tier.basis})" if tier.basis else tier.profile
    return [
        tier.name,
        ", ".join(filter(None, [profile, *shape])) or GAP,
        number_cell(format_bytes, per_visit(accepted.bytes_down)),
        number_cell(format_bytes, per_visit(accepted.bytes_up)),
        number_cell(format_flops, per_visit(accepted.flops)),
        number_cell(format_bytes, accepted.memory),
        number_cell(format_seconds, per_visit(accepted.modelled_seconds)),
        number_cell(format_joules, per_visit(accepted.joules)),
        *_whole_run_cells(tier.totals),
    ]


def _whole_run_cells(totals: TaskTotals) -> list[Cell]:
    return [
        number_cell(format_bytes, totals.bytes),
        number_cell(format_seconds, totals.measured_seconds),
        number_cell(format_joules, totals.joules),
    ]
