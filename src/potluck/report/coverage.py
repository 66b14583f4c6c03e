"""Coverage: how often each unit of the model was trained, and when every unit had been trained m times.

Methods that train a part of the model per client (HeteroFL, FedRolex, Federated Dropout) differ in how evenly they
train its units.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

from potluck.report.html import (
    Cell,
    Markup,
    RowName,
    Series,
    TableCell,
    charts,
    collapsible,
    join,
    legend,
    note,
    number_cell,
    section,
    table,
    tag,
)
from potluck.report.json_values import integer, mapping, number, sequence
from potluck.report.marks import LineMark, PlotStep, StepsMark
from potluck.report.multiples import MethodRuns, in_own_colours, is_many, method_charts
from potluck.report.records import GroupCoverage, Points, RunRecord
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis
from potluck.report.units import format_count, format_mean_round, format_short

TITLE = "How often each unit was trained"
TIMES = PlotAxis("times trained", low=0.0)
MAX_STEPS = 256
"""Steps drawn of one group; a larger group is drawn as means over stretches of units."""
MAX_GROUPS = 8
SHADES = 12


def make_steps(counts: Sequence[float | None], most: int = MAX_STEPS) -> list[PlotStep]:
    """The counts as at most `most` steps, in the order of the units."""
    size = max(1, -(-len(counts) // most))
    return [_make_step(start, counts[start : start + size]) for start in range(0, len(counts), size)]


def _make_step(start: int, counts: Sequence[float | None]) -> PlotStep:
    known, last = [count for count in counts if count is not None], start + len(counts) - 1
    if not known:
        return PlotStep(start, last, None)
    return PlotStep(start, last, statistics.fmean(known), min(known), max(known))


def has_coverage(run: RunRecord) -> bool:
    """Whether the run recorded how often units were trained."""
    return bool(run.coverage) or _has_least_trained(run)


def _has_least_trained(run: RunRecord) -> bool:
    return any(record.least_trained is not None for record in run.rounds)


def mean_coverage(runs: Sequence[RunRecord], name: str, units: int) -> GroupCoverage:
    """The counts of one group, averaged over the runs whose group has this name and size."""
    lists = [one.counts for run in runs for one in run.coverage if one.name == name and len(one.counts) == units]
    return GroupCoverage(name, tuple(_mean(column) for column in zip(*lists, strict=True)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def least_trained_line(runs: Sequence[RunRecord]) -> Points:
    """(round, count of the least trained unit), averaged over the runs that recorded it in that round."""
    counts: dict[int, list[int]] = {}
    for run in runs:
        for record in run.rounds:
            if record.least_trained is not None:
                counts.setdefault(record.number, []).append(record.least_trained)
    return [(float(index), statistics.fmean(counts[index])) for index in sorted(counts)]


def rounds_until(run: RunRecord, times: int) -> int | None:
    """The first round after which every unit had been trained at least this often."""
    known = ((record.number, record.least_trained) for record in run.rounds if record.least_trained is not None)
    return next((index for index, least in known if least >= times), None)


def milestones(runs: Sequence[RunRecord], most: int = 10) -> list[int]:
    """1, 2, 5, 10, 20, … up to the first number of trainings that no run reached for every unit."""
    known = (record.least_trained for run in runs for record in run.rounds if record.least_trained is not None)
    top = max(known, default=0)
    steps = [factor * 10**power for power in range(most) for factor in (1, 2, 5)]
    within = sum(step <= top for step in steps)
    return steps[: min(most, within + 1)]


def disjoint_windows(runs: Sequence[RunRecord]) -> int | str:
    """The number I of disjoint sub-models that make up the model, or the reason why there is no such number."""
    tiers = [mapping(tier) for run in runs for tier in sequence(run.manifest.get("tiers"))]
    widths = {number(tier.get("width")) for tier in tiers}
    if len(widths) > 1:
        return "the tiers differ in width"
    width = next(iter(widths), None)
    if width is None:
        return "no tier's width is one number"
    return round(1 / width) if 0 < width <= 0.5 else "no two sub-models of this width are disjoint"


def rounds_in_turn(windows: int, times: int) -> float:
    """Rounds until each window was trained this often if the windows take turns: m·I."""
    return float(windows * times)


def rounds_at_random(windows: int, times: int) -> float | None:
    """The same for windows drawn at random: I·log I + I·(m-1)·log log I in FedRolex's paper.

    None if the formula gives no positive number.
    """
    value = windows * math.log(windows) + windows * (times - 1) * math.log(math.log(windows))
    return value if value > 0 else None


def run_coverage_section(run: RunRecord) -> Markup | None:
    """One bar chart per axis group, and the milestones; None if every client trains the whole model."""
    if not has_coverage(run):
        return None
    groups = run.coverage[:MAX_GROUPS]
    top = max((count for group in groups for count in group.known), default=0.0)
    bars = tag("div", *(_group_chart(group, top) for group in groups), class_="strips") if groups else None
    return section(
        TITLE, _how_to_read(run, top) if groups else None, bars, _milestone_table([(RowName(run.label), [run])])
    )


def _how_to_read(run: RunRecord, top: float) -> Markup:
    words = "Units from left to right; height and shade: how often each was trained, over clients and rounds."
    words += f" All groups share one scale, from 0 to {format_short(top)}."
    if len(run.coverage) > MAX_GROUPS:
        words += f" The {MAX_GROUPS} largest groups of {len(run.coverage)} are shown."
    return note(words)


def _group_chart(group: GroupCoverage, top: float) -> Markup:
    """One bar per unit of the group, and its numbers as text."""
    steps, units = make_steps(group.counts), len(group.counts)
    least, mean, most = map(format_short, _least_mean_most(group))
    words = f"least {least} · mean {mean} · most {most}"
    many = "1 unit" if units == 1 else f"{format_count(units)} units"
    head = tag("div", tag("b", group.name), tag("span", many), tag("span", words))
    bars = tag(
        "svg",
        *_unit_bars(steps, top),
        viewBox=f"0 0 {units} 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{group.name}, {units} units: {words}",
        data_strip=_hover_json(steps),
    )
    never = tag("b", f"{format_count(_never_trained(group))} never trained") if _never_trained(group) else None
    foot = tag("div", tag("span", "unit 0"), never, tag("span", format_count(units - 1)))
    return tag("div", head, bars, foot, class_="strip")


def _least_mean_most(group: GroupCoverage) -> list[float]:
    """The lowest, mean and highest count of the group."""
    known = group.known
    return [min(known), sum(known) / len(known), max(known)]


def _never_trained(group: GroupCoverage) -> int:
    """How many units were never trained."""
    return sum(count == 0 for count in group.known)


def _hover_json(steps: list[PlotStep]) -> str:
    """JSON for the page's script: units per step, and each step's count, or its mean, lowest and highest count."""
    size = steps[0].last - steps[0].first + 1
    cells = [_hover_value(step) for step in steps]
    return json.dumps({"units": steps[-1].last + 1, "size": size, "cells": cells}, separators=(",", ":"))


def _hover_value(step: PlotStep) -> float | list[float] | None:
    if step.mean is None:
        return None
    values = [float(f"{value:.4g}") for value in (step.mean, step.low, step.high)]
    return values[0] if step.low == step.high else values


def _unit_bars(steps: list[PlotStep], top: float) -> list[Markup]:
    """Bars as one path per shade. Units that were never trained get a low bar in another colour."""
    paths: dict[int, str] = {}
    for first, end, height in _equal_stretches(steps):
        share = height / top if top else 0.0
        shade = min(SHADES, 1 + int(share * SHADES)) if height else 0
        paths[shade] = paths.get(shade, "") + f"M{first} 100v-{max(4.0, 100 * share):.3g}h{end - first}V100z"
    return [_shaded_path(shade, path) for shade, path in sorted(paths.items())]


def _shaded_path(shade: int, path: str) -> Markup:
    if not shade:
        return tag("path", d=path, class_="untrained")
    return tag("path", d=path, class_="trained", fill_opacity=f"{0.25 + 0.75 * shade / SHADES:.2f}")


def _equal_stretches(steps: list[PlotStep]) -> list[tuple[int, int, float]]:
    """(first, end, height) of neighbouring steps of equal height; steps without a known count are left out."""
    found: list[tuple[int, int, float]] = []
    for step in steps:
        if step.mean is None:
            continue
        if found and found[-1][1:] == (step.first, step.mean):
            found[-1] = (found[-1][0], step.last + 1, step.mean)
        else:
            found.append((step.first, step.last + 1, step.mean))
    return found


def compare_coverage_section(methods: MethodRuns) -> Markup | None:
    """The largest group by method, the least trained unit over the rounds, and the milestones."""
    found = [(series, some) for series, runs in methods if (some := [run for run in runs if has_coverage(run)])]
    if not found:
        return None
    known = found if is_many(found) or not is_many(methods) else in_own_colours(found)
    words = "Mean over seeds. Methods that train every unit each time are not shown."
    drawn = [one for one in (_steps_figure(known), _least_trained_figure(known)) if one]
    shown = join(*drawn) if is_many(known) else join(legend(series for series, _ in known), charts(*drawn))
    rows = [(RowName(series.label, key=series.key), runs) for series, runs in known]
    tables = join(_milestone_table(rows), _count_table(known))
    whole = collapsible("In numbers", tables) if is_many(methods) else tables
    return tag("div", section(TITLE, note(words), shown, whole), data_scope="")


def _largest_group(methods: MethodRuns) -> list[tuple[Series, GroupCoverage]]:
    """The largest group of all, averaged per method; methods without a group of this name and size are left out."""
    groups = [group for _, runs in methods for run in runs for group in run.coverage]
    if not groups:
        return []
    largest = max(groups, key=lambda group: len(group.counts))
    found = [(series, mean_coverage(runs, largest.name, len(largest.counts))) for series, runs in methods]
    return [(series, group) for series, group in found if group.known]


def _steps_figure(methods: MethodRuns) -> Markup | None:
    found = {series.key: group for series, group in _largest_group(methods)}
    if not found:
        return None
    largest = next(iter(found.values()))
    name, units = largest.name, len(largest.counts)

    def draw(series: Series, _: list[RunRecord]) -> list[Mark]:
        return [StepsMark(series, make_steps(found[series.key].counts))] if series.key in found else []

    x_axis = PlotAxis("unit", "whole", low=-0.5, high=units - 0.5)
    size = make_steps(largest.counts)[0].last + 1
    bands = f" Each step: the mean of {size} units; band: lowest to highest." if size > 1 else ""
    words = f"The largest group, {format_count(units)} units; counted over clients and rounds.{bands}"
    chart = f"Times each unit of {name} was trained, by method"
    return method_charts(f"Units of {name}", methods, draw, x_axis, TIMES, chart, words)


def _least_trained_figure(methods: MethodRuns) -> Markup | None:
    lines = {series.key: least_trained_line(runs) for series, runs in methods}
    if not any(lines.values()):
        return None

    def draw(series: Series, _: list[RunRecord]) -> list[Mark]:
        return [LineMark(series, lines[series.key])] if lines[series.key] else []

    words = "Of all groups: how often it had been trained after each round."
    name = "How often the least trained unit was trained"
    return method_charts("The unit trained least", methods, draw, ROUND_AXIS, TIMES, name, words)


def _count_table(methods: MethodRuns) -> Markup | None:
    found = _largest_group(methods)
    if not found:
        return None
    head = ["", "least", "mean", "most", "never trained"]
    rows: list[list[TableCell]] = [
        [RowName(series.label, key=series.key), *_count_cells(group)] for series, group in found
    ]
    title = f"Times a unit of {found[0][1].name} was trained"
    return join(tag("h3", title), table(head, rows, names=["method"], title=title))


def _count_cells(group: GroupCoverage) -> list[Cell]:
    counts = [number_cell(format_short, value) for value in _least_mean_most(group)]
    return [*counts, number_cell(format_count, _never_trained(group))]


def _milestone_table(methods: Sequence[tuple[RowName, list[RunRecord]]]) -> Markup | None:
    """Rounds until every unit was trained at least m times, per method, beside the theory of FedRolex's paper."""
    known = [(label, some) for label, runs in methods if (some := [run for run in runs if _has_least_trained(run)])]
    if not known:
        return None
    everything = [run for _, runs in known for run in runs]
    times, windows = milestones(everything), disjoint_windows(everything)
    rows: list[list[TableCell]] = [
        [label, *(_rounds_cell([rounds_until(run, m) for run in runs]) for m in times)] for label, runs in known
    ]
    theory = _theory_rows(windows, times) if isinstance(windows, int) else []
    marked = any(cell.endswith("‡") for row in theory for cell in row[1:])
    words = _theory_words(windows, everything) + (" ‡ Below m·I: the formula holds for many windows." if marked else "")
    title = "Rounds until every unit was trained at least m times"
    shown = table(["m", *map(format_count, times)], rows, last=theory, title=title)
    return join(tag("h3", title), note(words), shown)


def _rounds_cell(rounds: Sequence[int | None]) -> Cell:
    return Cell(format_mean_round(rounds), _mean(rounds))


def _theory_rows(windows: int, times: list[int]) -> list[list[str]]:
    in_turn = [format_short(rounds_in_turn(windows, m)) for m in times]
    return [["theory, rolling", *in_turn], ["theory, random", *(_random_cell(windows, m) for m in times)]]


def _random_cell(windows: int, times: int) -> str:
    """The formula is for many windows. With few it may fall below what even taking turns needs; that is marked."""
    value = rounds_at_random(windows, times)
    return format_short(value) + (" ‡" if value is not None and value < rounds_in_turn(windows, times) else "")


def _theory_words(windows: int | str, runs: Sequence[RunRecord]) -> str:
    if isinstance(windows, str):
        return f"Measured. The theory for sub-models that hold one of I disjoint windows says nothing here: {windows}."
    words = f"Theory (FedRolex's paper) for one sub-model a round that holds one of I = {windows} disjoint windows:"
    words += " m·I when windows are taken in turn, I·log I + I·(m-1)·log log I when drawn at random."
    cohort = max((integer(run.manifest.get("cohort")) or 1 for run in runs), default=1)
    return words + (f" Here a round trains up to {format_count(cohort)} sub-models." if cohort > 1 else "")
