"""The coverage picture: how often each unit was trained, for one run and by method."""

from __future__ import annotations

import json

from potluck.report.coverage import cells, has_coverage, least_line, mean_coverage
from potluck.report.html import Markup, Series, charts, figure, join, legend, section, table, tag
from potluck.report.marks import LineMark, PlotStep, StepsMark
from potluck.report.milestones import Painted, milestone_table
from potluck.report.records import GroupCoverage, RunRecord
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis, plot
from potluck.report.units import format_count, format_short

TITLE = "How often each unit was trained"
GROUPS = 8
SHADES = 12
TIMES = PlotAxis("times trained", low=0.0)


def run_section(run: RunRecord) -> Markup | None:
    """A skyline per group of units, and when all units had been trained; nothing for whole models."""
    if not has_coverage(run):
        return None
    shown = run.coverage[:GROUPS]
    top = max((most for one in shown for most in one.known), default=0.0)
    series = Series("run", run.label, "var(--c0)")
    strips = tag("div", *(_strip(one, top) for one in shown), class_="strips") if shown else None
    return section(TITLE, _how_to_read(run, top) if shown else None, strips, milestone_table([(series, [run])]))


def _how_to_read(run: RunRecord, top: float) -> Markup:
    left_out = len(run.coverage) - GROUPS
    words = "Units from left to right; height and shade: how often each was trained, over clients and rounds."
    words += f" All groups share one scale, from 0 to {format_short(top)}."
    words += f" The {GROUPS} largest groups of {len(run.coverage)} are shown." if left_out > 0 else ""
    return tag("p", words, class_="note")


def _strip(one: GroupCoverage, top: float) -> Markup:
    """One group as a row of towers, with its numbers in words for those who cannot point."""
    drawn, units = cells(one.counts), len(one.counts)
    least, mean, most = numbers(one)
    words = f"least {least} · mean {mean} · most {most}"
    head = tag(
        "div",
        tag("b", one.name),
        tag("span", "1 unit" if units == 1 else f"{format_count(units)} units"),
        tag("span", words),
    )
    towers = tag(
        "svg",
        *_towers(drawn, top),
        viewBox=f"0 0 {units} 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{one.name}, {units} units: {words}",
        data_strip=_readable(drawn),
    )
    none = tag("b", f"{format_count(never(one))} never trained") if never(one) else None
    foot = tag("div", tag("span", "unit 0"), none, tag("span", format_count(units - 1)))
    return tag("div", head, towers, foot, class_="strip")


def numbers(one: GroupCoverage) -> list[str]:
    """The least, the mean and the most often a unit of the group was trained."""
    known = one.known
    return [format_short(min(known)), format_short(sum(known) / len(known)), format_short(max(known))]


def never(one: GroupCoverage) -> int:
    """How many units were never trained."""
    return sum(value == 0 for value in one.known)


def _readable(drawn: list[PlotStep]) -> str:
    """What the pointer reads: how many units a cell holds, and each cell's count, or its mean, lowest and highest."""
    size = drawn[0].last - drawn[0].first + 1
    told = [_told(cell) for cell in drawn]
    return json.dumps({"units": drawn[-1].last + 1, "size": size, "cells": told}, separators=(",", ":"))


def _told(cell: PlotStep) -> float | list[float] | None:
    if cell.mean is None:
        return None
    told = [float(f"{value:.4g}") for value in (cell.mean, cell.low, cell.high)]
    return told[0] if cell.low == cell.high else told


def _towers(drawn: list[PlotStep], top: float) -> list[Markup]:
    """One path per shade; neighbours of one height are drawn as one, and the untrained stand out in another colour."""
    ways: dict[int, str] = {}
    for first, end, height in _joined(drawn):
        share = height / top if top else 0.0
        shade = min(SHADES, 1 + int(share * SHADES)) if height else 0
        ways[shade] = ways.get(shade, "") + f"M{first} 100v-{max(4.0, 100 * share):.3g}h{end - first}V100z"
    return [_tower(shade, way) for shade, way in sorted(ways.items())]


def _tower(shade: int, way: str) -> Markup:
    if not shade:
        return tag("path", d=way, class_="untrained")
    return tag("path", d=way, class_="tower", fill_opacity=f"{0.25 + 0.75 * shade / SHADES:.2f}")


def _joined(drawn: list[PlotStep]) -> list[tuple[int, int, float]]:
    """(first, end, height) of stretches of equal height; unknown cells leave a hole."""
    found: list[tuple[int, int, float]] = []
    for cell in drawn:
        if cell.mean is None:
            continue
        if found and found[-1][1:] == (cell.first, cell.mean):
            found[-1] = (found[-1][0], cell.last + 1, cell.mean)
        else:
            found.append((cell.first, cell.last + 1, cell.mean))
    return found


def methods_section(painted: Painted) -> Markup | None:
    """The largest group by method, the unit trained least over the rounds, and when all had been trained."""
    kept = [(series, having) for series, runs in painted if (having := [run for run in runs if has_coverage(run)])]
    if not kept:
        return None
    words = "Mean over seeds. Methods that train every unit each time are not shown."
    figures = charts(*filter(None, (_steps_figure(kept), _least_figure(kept))))
    scope = tag("div", tag("p", words, class_="note"), legend([series for series, _ in kept]), figures, data_scope="")
    return section(TITLE, scope, milestone_table(kept), _count_table(kept))


def _by_method(painted: Painted) -> list[tuple[Series, GroupCoverage]]:
    """The largest group of all, averaged per method; methods that lack it in this size are left out."""
    groups = [one for _, runs in painted for run in runs for one in run.coverage]
    if not groups:
        return []
    largest = max(groups, key=lambda one: len(one.counts))
    found = [(series, mean_coverage(runs, largest.name, len(largest.counts))) for series, runs in painted]
    return [(series, one) for series, one in found if one.known]


def _steps_figure(painted: Painted) -> Markup | None:
    found = _by_method(painted)
    if not found:
        return None
    name, units = found[0][1].name, len(found[0][1].counts)
    steps = [(series, cells(group.counts)) for series, group in found]
    across = PlotAxis("unit", "whole", low=-0.5, high=units - 0.5)
    chart = plot(
        [StepsMark(*step) for step in steps], across, TIMES, f"Times each unit of {name} was trained, by method"
    )
    size = steps[0][1][0].last + 1
    bands = f" Each step: the mean of {size} units; band: lowest to highest." if size > 1 else ""
    note = f"The largest group, {format_count(units)} units; counted over clients and rounds.{bands}"
    return figure(f"Units of {name}", chart, (), note)


def _least_figure(painted: Painted) -> Markup | None:
    lines = [(series, line) for series, runs in painted if (line := least_line(runs))]
    if not lines:
        return None
    marks: list[Mark] = [LineMark(series, line) for series, line in lines]
    chart = plot(marks, ROUND_AXIS, TIMES, "How often the least trained unit was trained")
    return figure("The unit trained least", chart, (), "Of all groups: how often it had been trained after each round.")


def _count_table(painted: Painted) -> Markup | None:
    found = _by_method(painted)
    if not found:
        return None
    head = ["", "least", "mean", "most", "never trained"]
    rows = [[series.label, *numbers(one), format_count(never(one))] for series, one in found]
    return join(tag("h3", f"Times a unit of {found[0][1].name} was trained"), table(head, rows))
