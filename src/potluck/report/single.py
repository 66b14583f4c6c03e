"""The sections that tell of one run."""

from __future__ import annotations

import json
from collections.abc import Callable

from potluck.report.alike import alike_section, features_of
from potluck.report.headline import beside_table, cost_table, dagger, everyone, numbers, tier_table
from potluck.report.histogram import local_figure
from potluck.report.html import (
    Markup,
    Series,
    bar_list,
    charts,
    collapsible,
    figure,
    join,
    palette,
    section,
    table,
    tag,
)
from potluck.report.marks import ColumnsMark, DotsMark, LineMark
from potluck.report.records import LearningCurve, Points, RoundScores, RunRecord, TierRecord
from potluck.report.sentences import privacy_guarantee
from potluck.report.skyline import run_section
from potluck.report.summary import (
    CostSoFar,
    capitalize,
    costs_so_far,
    first_round_at,
    metric_format,
    metric_name,
    targets,
)
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis, plot
from potluck.report.taught import taught_section
from potluck.report.units import (
    byte_unit,
    energy_unit,
    format_bytes,
    format_count,
    format_joules,
    format_percent,
    format_seconds,
    time_unit,
)

DASH = "4 4"


def judged(*runs: RunRecord) -> PlotAxis:
    """The axis of the score that runs are judged by."""
    judge = metric_format(*runs)
    return PlotAxis(judge.name, "percent" if judge.percent else "plain")


def body(run: RunRecord) -> Markup:
    """Everything about one run, in the order in which one asks."""
    return join(
        numbers(run),
        tier_table(run),
        beside_table(run),
        dagger(run),
        _privacy_note(run),
        section("Learning", charts(score_figure(run), _loss_figure(run))),
        section(f"What {metric_name(run)} costs", charts(*_price_figures(run)), _target_table(run)),
        section("Cost per tier", *_cost(run)),
        _closer(run),
        alike_section(features_of(run.features)),
        taught_section(run.transfers),
        run_section(run),
        section("What went wrong", trouble(run)),
        papers(run),
    )


def brief(run: RunRecord) -> Markup:
    """One run among several: the numbers, the curve, the trouble, the papers."""
    return join(
        numbers(run),
        tier_table(run),
        dagger(run),
        _privacy_note(run),
        charts(score_figure(run), spread_figure(run)),
        trouble(run),
        papers(run),
    )


def tier_series(run: RunRecord) -> list[tuple[Series, TierRecord]]:
    """A colour per tier, the same in every chart of a run."""
    return list(zip(palette(tier.name for tier in run.tiers), run.tiers, strict=True))


def overall(run: RunRecord) -> Series:
    """The line that stands for the whole run: the shared model, or all clients' own."""
    return Series("whole", everyone(run.curve), "var(--ink)", thick=True)


def _curves(run: RunRecord) -> list[tuple[Series, LearningCurve]]:
    found = [(overall(run), run.curve)] + [(series, tier.curve) for series, tier in tier_series(run)]
    return [(series, curve) for series, curve in found if curve.final or curve.best]


def _pair(
    series: Series,
    curve: LearningCurve,
    test: Callable[[RoundScores], float | None],
    held_out: Callable[[RoundScores], float | None],
) -> list[Mark]:
    """A solid line for the test set, a dashed one for validation."""
    solid = LineMark(series, curve.line(test), name=f"{series.label}, {'clients' if curve.on_clients else 'test'}")
    return [solid, LineMark(series, curve.line(held_out), DASH, f"{series.label}, validation")]


def score_figure(run: RunRecord) -> Markup:
    """The score over rounds, for all and per tier."""
    curves = _curves(run)
    marks = [
        mark
        for series, curve in reversed(curves)
        for mark in _pair(series, curve, lambda p: p.score, lambda p: p.validation.value)
    ]
    solid = "Solid: mean over clients" if run.curve.on_clients else "Solid: test"
    dashed = "; dashed: validation" if any(curve.best for _, curve in curves) else ""
    note = f"{solid}{dashed}. A click on a name hides it."
    chart = plot(marks, ROUND_AXIS, judged(run), f"{capitalize(metric_name(run))} over rounds")
    return figure(capitalize(metric_name(run)), chart, [series for series, _ in curves], note)


def _loss_figure(run: RunRecord) -> Markup:
    training = Series("training", "training", "var(--c6)")
    lines: list[tuple[Series, Points]] = [
        (training, [(float(r.number), r.loss) for r in run.rounds if r.loss is not None])
    ]
    lines += [(series, curve.line(lambda p: p.test.loss)) for series, curve in _curves(run)]
    lines = [(series, line) for series, line in lines if line]
    marks: list[Mark] = [LineMark(series, line, "2 3" if series is training else "") for series, line in lines]
    named = [
        Series("training", "training", "var(--c6)", "2 3") if series is training else series for series, _ in lines
    ]
    chart = plot(marks, ROUND_AXIS, PlotAxis("loss", low=0.0), "Loss over rounds")
    return figure("Loss", chart, named, "Dotted: mean training loss of the round's clients; solid: test loss.")


def against(run: RunRecord, amount: Callable[[CostSoFar], float]) -> Points:
    """The score against what it had cost by then: (amount, score)."""
    costs = costs_so_far(run)
    line = run.curve.line(lambda point: point.score)
    return [(amount(costs[int(done)]), value) for done, value in line if int(done) in costs]


def _price_figures(run: RunRecord) -> list[Markup]:
    both = Series("both", "both directions", "var(--ink)", thick=True)
    down, up = palette(["down: server to clients", "up: clients to server"], start=3)
    amounts: list[tuple[Series, Callable[[CostSoFar], float]]] = [
        (both, lambda cost: cost.bytes),
        (down, lambda cost: cost.bytes_down),
        (up, lambda cost: cost.bytes_up),
    ]
    lines = [(series, against(run, amount)) for series, amount in amounts]
    factor, unit = byte_unit(max((x for _, line in lines for x, _ in line), default=0.0))
    marks = [LineMark(series, [(x / factor, y) for x, y in line]) for series, line in lines]
    what = f"{capitalize(metric_name(run))} against traffic"
    chart = plot(marks, PlotAxis("traffic so far", unit=unit, count=7, tight=True), judged(run), what)
    traffic = figure(what, chart, [both, down, up], "Bytes of all clients together, measured.")
    time, joules = against(run, lambda cost: cost.device_seconds), against(run, lambda cost: cost.joules)
    lasts = "Modelled: every round lasts as long as its slowest device."
    return [
        traffic,
        _modelled_figure(run, "time", " in the field", time, time_unit, lasts),
        _modelled_figure(
            run, "energy", "", joules, energy_unit, "Modelled: of all devices together, without the server."
        ),
    ]


def _modelled_figure(
    run: RunRecord, amount: str, where: str, line: Points, unit: Callable[[float], tuple[float, str]], note: str
) -> Markup:
    factor, name = unit(max((x for x, _ in line), default=0.0))
    marks = [LineMark(overall(run), [(x / factor, y) for x, y in line])]
    what = f"{capitalize(metric_name(run))} against {amount}{where}"
    chart = plot(marks, PlotAxis(f"{amount} so far", unit=name, count=7, tight=True), judged(run), what)
    return figure(what, chart, (), note)


def _target_table(run: RunRecord) -> Markup:
    """When each target was first met, and what had been spent by then."""
    costs = costs_so_far(run)
    tiers = [tier for tier in run.tiers if tier.curve.points]
    rows = []
    for target in targets(run):
        done = first_round_at(run.curve, target)
        cost = costs.get(done) if done is not None else None
        bill = (
            [format_bytes(cost.bytes), format_seconds(cost.device_seconds), format_joules(cost.joules)]
            if cost
            else [format_bytes(None)] * 3
        )
        when = [format_count(done), *(format_count(first_round_at(tier.curve, target)) for tier in tiers)]
        rows.append([metric_format(run).format_target(target), *when, *bill])
    head = ["target", everyone(run.curve), *(tier.name for tier in tiers), "traffic", "time", "energy"]
    groups = [("", 1), ("reached at round", 1 + len(tiers)), ("spent by then, all clients", 3)]
    note = "First scored round at or above the target. Traffic is measured; time and energy are modelled."
    return join(tag("h3", "Rounds to a target"), tag("p", note, class_="note"), table(head, rows, groups))


def _cost(run: RunRecord) -> list[Markup]:
    tiers = tier_series(run)
    each = [(series, tier, tier.accepted) for series, tier in tiers]
    sizes = [
        (series, float(tier.parameters), format_count(tier.parameters))
        for series, tier in tiers
        if tier.parameters is not None
    ]
    traffic = [(series, t.per_visit(t.bytes), format_bytes(t.per_visit(t.bytes))) for series, _, t in each]
    seconds = [
        (series, t.per_visit(t.modelled_seconds), format_seconds(t.per_visit(t.modelled_seconds)))
        for series, _, t in each
    ]
    joules = [(series, t.per_visit(t.joules), format_joules(t.per_visit(t.joules))) for series, _, t in each]
    bars = [
        bar_list("Parameters", sizes, "counted"),
        bar_list("Traffic", traffic, "measured, per client and round"),
        bar_list("Time", seconds, "modelled, per client and round"),
        bar_list("Energy", joules, "modelled, per client and round"),
    ]
    words = "Measured: counted or clocked while this ran. Modelled: computed from the work and the device's profile."
    return [tag("p", words, class_="note"), tag("div", *bars, class_="meters"), cost_table(run)]


def _closer(run: RunRecord) -> Markup | None:
    """Per client and per class, where either was recorded."""
    found = [made for made in (local_figure(run), spread_figure(run), _class_figure(run)) if made]
    return section("A closer look at the end", charts(*found, small=len(found) == 3)) if found else None


def _class_figure(run: RunRecord) -> Markup | None:
    """Accuracy per class after the last scored round: bars for the shared model, dots for the tiers."""
    marks: list[Mark] = []
    shown = []
    for series, curve in _curves(run):
        final = curve.final
        values = [
            (float(index), value)
            for index, value in enumerate(final.test.per_class if final else ())
            if value is not None
        ]
        if values:
            tips = [
                (place, value, f"class {place:g}, {series.label}: {format_percent(value)}") for place, value in values
            ]
            whole = series.key == "whole"
            paint = Series(series.key, series.label, "var(--c6)") if whole else series
            marks.append(ColumnsMark(paint, tips) if whole else DotsMark(series, tips))
            shown.append(paint)
    if not marks:
        return None
    chart = plot(
        marks,
        PlotAxis("class", "whole", count=10, tight=True),
        PlotAxis("accuracy", "percent", low=0.0, high=1.0),
        "Accuracy per class",
    )
    return figure("Accuracy per class", chart, shown, "Test set, last scored round. Bars: global; dots: tiers.")


def spread_figure(run: RunRecord) -> Markup | None:
    """Every client's score, sorted: a flat line is a fair model."""
    marks, shown = [], []
    for series, tier in tier_series(run):
        values = sorted(tier.curve.final.clients.values) if tier.curve.final else []
        if values:
            last = max(1, len(values) - 1)
            marks.append(LineMark(series, [(index / last, value) for index, value in enumerate(values)]))
            shown.append(series)
    if not marks:
        return None
    what = capitalize(metric_name(run))
    chart = plot(
        marks, PlotAxis("clients", "percent", low=0.0, high=1.0), judged(run), f"{what} of every client, sorted"
    )
    return figure(f"{what} over clients", chart, shown, "Each tier's clients from worst to best: flat is fair.")


def trouble(run: RunRecord) -> Markup:
    """Replies that did not count and warnings; a plain word where there were none."""
    totals, parts = run.totals, []
    lost = f"{format_count(totals.absent)} absent, {format_count(totals.quarantined)} quarantined"
    parts.append(tag("p", f"{format_count(totals.accepted)} replies accepted, {lost}."))
    if run.failures:
        head = ["outcome", "tier", "reason", "times", "rounds"]
        rows = [
            [
                f.outcome,
                f.tier,
                f.reason or "no reason given",
                format_count(f.times),
                _span(f.first_round, f.last_round),
            ]
            for f in run.failures
        ]
        parts.append(table(head, rows[:30], kind="words"))
        if len(rows) > 30:
            parts.append(tag("p", f"{len(rows) - 30} rarer kinds are left out.", class_="note"))
    if run.warnings:
        told = (f"round {index}: {said}" if index is not None else said for index, said in run.warnings[:50])
        title = _plural(len(run.warnings), "warning") + (", the first 50 of them" if len(run.warnings) > 50 else "")
        parts.append(collapsible(title, tag("ul", *(tag("li", line) for line in told)), open_=len(run.warnings) <= 5))
    return join(*parts)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def papers(run: RunRecord) -> Markup:
    """What was asked for, and where and with what it ran."""
    manifest = json.dumps(run.manifest, indent=2, ensure_ascii=False, default=str)
    return join(collapsible("Settings", tag("pre", run.settings)), collapsible("Manifest", tag("pre", manifest)))


def _privacy_note(run: RunRecord) -> Markup | None:
    words = privacy_guarantee(run)
    local = "Local differential privacy, simulated; scores on clients' own examples are not part of it."
    return tag("p", f"Privacy: {words}. {local}", class_="note") if words else None
