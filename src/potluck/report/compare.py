"""The sections that set several runs side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path as File
from urllib.parse import quote

from potluck.report.headline import state
from potluck.report.histogram import local_section
from potluck.report.html import (
    Markup,
    Series,
    charts,
    collapsible,
    figure,
    join,
    legend,
    note,
    palette,
    section,
    table,
    tag,
)
from potluck.report.json_values import mapping, number, text
from potluck.report.marks import BandMark, LineMark
from potluck.report.records import LearningCurve, Points, RunRecord
from potluck.report.sentences import NEEDS, NEEDS_NOTE, TIE, find_lead, needs_cells, verdict
from potluck.report.single import against, brief, judged
from potluck.report.skyline import methods_section
from potluck.report.summary import (
    CostSoFar,
    Row,
    capitalize,
    compare_rows,
    group_by_method,
    mean_sd,
    metric_format,
    metric_name,
    rankable_rows,
    rounds_to,
    rounds_to_average,
    targets,
    tier_names,
    tiers_differ,
)
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis, plot
from potluck.report.sweep import sweep_section
from potluck.report.units import (
    MetricFormat,
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

Painted = list[tuple[Series, list[RunRecord]]]


def body(runs: Sequence[RunRecord], page: File) -> Markup:
    """The comparison first, then every run on its own."""
    painted = list(zip(palette(group_by_method(runs)), group_by_method(runs).values(), strict=True))
    tiers = tier_names(runs)
    small = [_curve_figure(name, painted, partial(_tier_curve, name)) for name in tiers]
    prices = [_traffic_figure(painted), _time_figure(painted), _energy_figure(painted)]
    overall = _curve_figure("Global", painted, lambda run: run.curve)
    return join(
        _verdict(runs),
        sweep_section(runs),
        _score_table(runs, tiers),
        _cost_table(runs),
        _needs_section(compare_rows(runs)),
        section("Learning", _scope(painted, charts(overall, *small, small=len(small) > 3 or len(small) % 3 == 2))),
        local_section(painted),
        section(f"What {metric_name(*runs)} costs", _scope(painted, charts(*prices)), _target_table(painted)),
        methods_section(painted),
        section("Every run", *(_run(run, page) for run in runs)),
    )


def _tier_curve(name: str, run: RunRecord) -> LearningCurve:
    tier = run.tier(name)
    return tier.curve if tier else LearningCurve()


def _scope(painted: Painted, *children: Markup) -> Markup:
    """Charts under one legend: a click hides a method in all of them."""
    words = "Lines: mean over seeds; bands: ± one standard deviation. A click on a name hides it in all charts here."
    return tag(
        "div", tag("p", words, class_="note"), legend([series for series, _ in painted]), *children, data_scope=""
    )


def _verdict(runs: Sequence[RunRecord]) -> Markup | None:
    said = verdict(runs)
    return tag("div", *(tag("p", line) for line in said), class_="verdict") if said else None


def _score_table(runs: Sequence[RunRecord], tiers: Sequence[str]) -> Markup:
    rows, judge = compare_rows(runs), metric_format(*runs)
    local = ["local"] * any(_mean(row["local"]) is not None for row in rows)
    averaged = ["average"] * tiers_differ(runs)
    columns = [_column(judge, rows, partial(_plain, key)) for key in ("global", *averaged, *local)]
    columns += [_column(judge, rows, partial(_tier_share, name)) for name in tiers]
    columns += [_column(judge, rows, partial(_plain, key)) for key in ("clients", "worst", "best")]
    starts = [[text(row["label"]) + _dagger(row), format_count(number(row["runs"]))] for row in rows]
    lines = [[*start, *cells] for start, *cells in zip(starts, *columns, strict=True)]
    head = ["", "runs", "global", *averaged, *local, *tiers, "client mean", "worst tenth", "by validation"]
    what = judge.name
    spread = "mean ± standard deviation over seeds (a single seed has no deviation)"
    notes = [f"Final {what}{judge.unit}, {spread}; green: highest."]
    notes += [f"“By validation” is the {what} at the round that validation would have chosen."]
    notes += ["Average: of the tiers' scores on the test set, by share of clients."] * len(averaged)
    notes += ["Local: the shared model on each client's own examples and classes, mean over clients."] * len(local)
    notes += ["† Scored by its clients, each on its own examples."] * any("†" in _dagger(row) for row in rows)
    notes += ["‡ A bound that ignores what devices can carry: not ranked."] * any(row["bound"] for row in rows)
    kind = "many" if len(head) > 8 else ""
    return join(tag("h2", capitalize(what)), table(head, lines, kind=kind), tag("p", " ".join(notes), class_="note"))


def _dagger(row: Row) -> str:
    return " †" * (row["scored_on"] == "clients") + " ‡" * bool(row["bound"])


def _plain(key: str, row: Row) -> object:
    return row[key]


def _tier_share(name: str, row: Row) -> object:
    return mapping(row["tiers"]).get(name)


def _column(judge: MetricFormat, rows: list[Row], pick: Callable[[Row], object]) -> list[str]:
    """A column's cells, the highest marked; bounds are not ranked, nor is what clients score against a shared model."""
    best = find_lead({text(row["label"]): pick(row) for row in rankable_rows(rows)})
    winner = best.label if best and best.margin >= TIE else None
    cells = ((row["label"] == winner, _share(judge, pick(row))) for row in rows)
    return [tag("span", cell, class_="best") if won else cell for won, cell in cells]


def _cost_table(runs: Sequence[RunRecord]) -> Markup:
    head = ["", "rounds", "down", "up", "compute", "time in the field", "energy"]
    groups_ = [("", 2), ("measured", 2), ("modelled", 3)]
    shown: dict[str, Callable[[float | None], str]] = {
        "rounds": format_count,
        "bytes_down": format_bytes,
        "bytes_up": format_bytes,
        "flops": format_flops,
        "device_seconds": format_seconds,
        "joules": format_joules,
    }
    rows = [
        [text(row["label"]), *(write(_mean(row[key])) for key, write in shown.items())] for row in compare_rows(runs)
    ]
    note = "Per run, mean over seeds. Time in the field: the slowest device of every round, summed."
    return join(tag("h2", "Cost"), table(head, rows, groups_), tag("p", note, class_="note"))


def _mean(summary: object) -> float | None:
    return number(mapping(summary).get("mean"))


def _share(judge: MetricFormat, summary: object) -> str:
    """Without a unit, which the table says once for all its cells."""
    return judge.format_cell(_mean(summary), number(mapping(summary).get("sd")))


def _curve_figure(caption: str, painted: Painted, curve: Callable[[RunRecord], LearningCurve]) -> Markup:
    marks: list[Mark] = []
    for series, runs in painted:
        lines = [curve(run).line(lambda point: point.score) for run in runs]
        marks += _mean_marks(series, [[(done, done, value) for done, value in line] for line in lines])
    axis = judged(*_runs(painted))
    return figure(caption, plot(marks, ROUND_AXIS, axis, f"{capitalize(axis.title)} over rounds: {caption}"))


def _runs(painted: Painted) -> list[RunRecord]:
    return [run for _, runs in painted for run in runs]


def _mean_marks(series: Series, lines: list[list[tuple[float, float, float]]]) -> list[Mark]:
    """A line through the means, and a band where there are several: lines hold (slot, x, y), joined by slot."""
    slots: dict[float, list[tuple[float, float]]] = {}
    for line in lines:
        for slot, across, up in line:
            slots.setdefault(slot, []).append((across, up))
    path: Points = []
    edges = []
    for _, found in sorted(slots.items()):
        place = sum(across for across, _ in found) / len(found)
        height = mean_sd(up for _, up in found)
        mean, sd = number(height["mean"]) or 0.0, number(height["sd"])
        path.append((place, mean))
        if sd is not None:
            edges.append((place, max(min(0.0, mean), mean - sd), min(1.0, mean + sd)))
    return [BandMark(series, edges), LineMark(series, path)]


def _price_figure(
    caption: str,
    title: str,
    painted: Painted,
    amount: Callable[[CostSoFar], float],
    unit: Callable[[float], tuple[float, str]],
) -> Markup:
    found = {series: [against(run, amount) for run in runs] for series, runs in painted}
    factor, name = unit(max((x for lines in found.values() for line in lines for x, _ in line), default=0.0))
    marks: list[Mark] = []
    for series, lines in found.items():
        slotted = [[(float(slot), x / factor, y) for slot, (x, y) in enumerate(line)] for line in lines]
        marks += _mean_marks(series, slotted)
    return figure(
        caption, plot(marks, PlotAxis(title, unit=name, count=7, tight=True), judged(*_runs(painted)), caption)
    )


def _traffic_figure(painted: Painted) -> Markup:
    caption = f"{capitalize(metric_name(*_runs(painted)))} against traffic, both directions (measured)"
    return _price_figure(caption, "traffic so far", painted, lambda cost: cost.bytes, byte_unit)


def _time_figure(painted: Painted) -> Markup:
    caption = f"{capitalize(metric_name(*_runs(painted)))} against time in the field (modelled)"
    return _price_figure(caption, "time so far", painted, lambda cost: cost.device_seconds, time_unit)


def _energy_figure(painted: Painted) -> Markup:
    caption = f"{capitalize(metric_name(*_runs(painted)))} against energy of all devices (modelled)"
    return _price_figure(caption, "energy so far", painted, lambda cost: cost.joules, energy_unit)


def _target_table(painted: Painted) -> Markup:
    """Rounds until each target, per method, and by the tiers' average too where that says more."""
    note = "First scored round at or above the target, mean over the runs that reached it."
    parts = [tag("h3", "Rounds to a target"), tag("p", note, class_="note"), _until(painted, rounds_to)]
    if tiers_differ(_runs(painted)):
        parts += [tag("h3", "Rounds to a target, by the tiers' average"), _until(painted, rounds_to_average)]
    return join(*parts)


def _until(painted: Painted, rounds: Callable[[RunRecord, float], int | None]) -> Markup:
    """A row per method, a column per target; how many of its runs got there where not all did."""
    everyone = _runs(painted)
    aims, judge = targets(*everyone), metric_format(*everyone)
    rows = [
        [series.label, *(format_mean_round([rounds(run, aim) for run in runs]) for aim in aims)]
        for series, runs in painted
    ]
    return table(["", *(judge.format_target(aim) for aim in aims)], rows)


def _run(run: RunRecord, page: File) -> Markup:
    seed = f", seed {run.seed}" if run.seed is not None else ""
    own = run.folder / "report.html"
    link = None
    if own.exists() and own.resolve() != page.resolve():
        link = tag("p", tag("a", "The full report of this run", href=_address(own, page)))
    score = metric_format(run).format(run.curve.final.score) if run.curve.final else "no scores yet"
    return collapsible(f"{run.name}: {run.label}{seed} ({run.status}, {score})", state(run), link, brief(run))


def _address(own: File, page: File) -> str:
    """Where a run's own report lies as seen from this page; `./` keeps a name with a colon from reading as a scheme."""
    return "./" + quote(File(os.path.relpath(own.resolve(), page.resolve().parent)).as_posix())


def _needs_section(rows: Sequence[Row]) -> Markup | None:
    """What each method needs and allows; nothing if no method declares it."""
    if not any(mapping(row["facts"]) for row in rows):
        return None
    lines = [[text(row["label"]), *needs_cells(row["facts"])] for row in rows]
    head = tag("h2", "What methods need and allow")
    return join(head, table(["", *NEEDS], lines, kind="words"), note(NEEDS_NOTE))
