"""The page that compares several runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from potluck.report.clients import compare_local_section
from potluck.report.cost import compare_cost_section, compare_cost_table
from potluck.report.coverage import compare_coverage_section
from potluck.report.curves import MethodRuns, charts_with_legend, compare_curve_figure, score_axis
from potluck.report.html import (
    Markup,
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
from potluck.report.records import LearningCurve, RunRecord
from potluck.report.run_page import run_brief, status_line
from potluck.report.sentences import NEEDS, NEEDS_NOTE, TIE, find_lead, needs_cells, verdict
from potluck.report.summary import (
    Row,
    best_by,
    best_heading,
    capitalize,
    client_measures,
    compare_rows,
    failure_words,
    group_by_method,
    mean_of,
    mean_sd,
    metric_format,
    metric_name,
    personal_note,
    rankable_rows,
    sd_of,
    tier_names,
    tiers_differ,
    with_results,
)
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import MetricFormat, format_count

VariantScores = dict[str, dict[str, Row]]
"""Results of `mean_sd` by method, then by variant."""

BEST_NOTES = {
    "validation": "“By validation” is the {metric} at the round that validation would have chosen.",
    "test": "“Best round by the test set” is the highest {metric} over rounds: the test set itself chose it, so it is "
    "too high.",
    "several": "“Best round” is the {metric} at the round that validation or, if the run's [score] best says so, the "
    "test set itself chose.",
}
"""What the scores of best rounds mean, by what chose them."""


def compare_body(runs: Sequence[RunRecord], page: Path) -> Markup:
    """The comparison first, then every run on its own. `page` is where the page will be, for links to other reports."""
    groups = group_by_method(runs)
    every = zip(palette(groups), groups.values(), strict=True)
    methods = [(series, ended) for series, members in every if (ended := with_results(members))]
    return join(
        _verdict(runs),
        _variants_section(runs),
        _score_table(runs),
        compare_cost_table(runs),
        _needs_section(compare_rows(runs)),
        _learning_section(methods, tier_names(runs)),
        compare_local_section(methods),
        compare_cost_section(methods),
        compare_coverage_section(methods),
        section("Every run", *(_run(run, page) for run in runs)),
    )


def _verdict(runs: Sequence[RunRecord]) -> Markup | None:
    sentences = verdict(runs)
    return tag("div", *(tag("p", line) for line in sentences), class_="verdict") if sentences else None


def _learning_section(methods: MethodRuns, tiers: Sequence[str]) -> Markup:
    overall = compare_curve_figure("Global", methods, lambda run: run.curve)
    figures = [compare_curve_figure(name, methods, partial(_tier_curve, name)) for name in tiers]
    small = len(figures) > 3 or len(figures) % 3 == 2
    return section("Learning", charts_with_legend(methods, overall, *figures, small=small))


def _tier_curve(name: str, run: RunRecord) -> LearningCurve:
    tier = run.tier(name)
    return tier.curve if tier else LearningCurve()


def _score_table(runs: Sequence[RunRecord]) -> Markup:
    rows, metric, tiers = compare_rows(runs), metric_format(*runs), tier_names(runs)
    asked = client_measures(rows)
    average = ["average"] * tiers_differ(with_results(runs))
    columns = [_column(metric, rows, partial(_entry, key)) for key in ("global", *average, *asked)]
    columns += [_column(metric, rows, partial(_tier_entry, name)) for name in tiers]
    columns += [_column(metric, rows, partial(_entry, key)) for key in ("clients", "worst", "best")]
    starts = [
        [text(row["label"]) + _signs(row) + failure_words(row), format_count(number(row["runs"]))] for row in rows
    ]
    lines = [[*start, *cells] for start, *cells in zip(starts, *columns, strict=True)]
    head = ["", "runs", "global", *average, *asked, *tiers, "client mean", "worst tenth", best_heading(*runs)]
    spread = "mean ± standard deviation over seeds (a single seed has no deviation)"
    notes = [f"Final {metric.name}{metric.unit}, {spread}; green: highest."]
    notes += [BEST_NOTES[best_by(*runs)].format(metric=metric.name)]
    notes += ["Average: of the tiers' scores on the test set, by share of clients."] * len(average)
    local = "Local: the shared model on each client's own examples and classes, mean over clients."
    notes += [local] * ("local" in asked)
    notes += [personal_note(rows)] * ("personal" in asked)
    notes += ["† Scored by its clients, each on its own examples."] * any("†" in _signs(row) for row in rows)
    notes += ["‡ A bound that ignores what devices can carry: not ranked."] * any(row["bound"] for row in rows)
    failed = [f"{run.label}, seed {run.seed}, {run.failure}" for run in runs if run.failure]
    notes += [f"In no mean: {'; '.join(failed)}."] * bool(failed)
    scores = table(head, lines, kind="many" if len(head) > 8 else "")
    return join(tag("h2", capitalize(metric.name)), scores, note(" ".join(notes)))


def _signs(row: Row) -> str:
    return " †" * (row["scored_on"] == "clients") + " ‡" * bool(row["bound"])


def _entry(key: str, row: Row) -> object:
    return row[key]


def _tier_entry(name: str, row: Row) -> object:
    return mapping(row["tiers"]).get(name)


def _column(metric: MetricFormat, rows: list[Row], pick: Callable[[Row], object]) -> list[str]:
    """The cells of one column, the highest of the rankable rows in green."""
    lead = find_lead({text(row["label"]): pick(row) for row in rankable_rows(rows)})
    winner = lead.label if lead and lead.margin >= TIE else None
    cells = ((row["label"] == winner, _cell(pick(row), metric)) for row in rows)
    return [tag("span", cell, class_="best") if is_best else cell for is_best, cell in cells]


def _cell(summary: object, metric: MetricFormat) -> str:
    return metric.format_cell(mean_of(summary), sd_of(summary))


def _needs_section(rows: Sequence[Row]) -> Markup | None:
    """What each method needs and allows; None if no method declares it."""
    if not any(mapping(row["facts"]) for row in rows):
        return None
    lines = [[text(row["label"]), *needs_cells(row["facts"])] for row in rows]
    head = tag("h2", "What methods need and allow")
    return join(head, table(["", *NEEDS], lines, kind="words"), note(NEEDS_NOTE))


def _variants_section(runs: Sequence[RunRecord]) -> Markup | None:
    """A table of methods by variants, and a chart if the variants are numbers; None without variants."""
    variants = list(dict.fromkeys(run.variant for run in runs))
    if len(variants) < 2:
        return None
    scores, metric = variant_scores(runs), metric_format(*runs)
    if all(len(by_variant) < 2 for by_variant in scores.values()):  # each method has one variant: nothing to compare
        return None
    rows = [
        [method, *(_cell(by_variant[name], metric) if name in by_variant else "" for name in variants)]
        for method, by_variant in scores.items()
    ]
    words = f"Final {metric.name}{metric.unit}, mean ± standard deviation over seeds."
    return section("What varies", note(words), table(["", *variants], rows), _variants_chart(scores, variants, runs))


def variant_scores(runs: Sequence[RunRecord]) -> VariantScores:
    """The final score of each method under each variant, over the seeds that have a result."""
    scores: dict[str, dict[str, list[float | None]]] = {}
    for run in runs:
        final = run.curve.final if not run.failure else None
        method = run.label.removesuffix(f", {run.variant}")
        scores.setdefault(method, {}).setdefault(run.variant, []).append(final.score if final else None)
    return {method: {name: mean_sd(found) for name, found in each.items()} for method, each in scores.items()}


def variant_numbers(variants: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The setting that varies and its number in each variant; None if the names differ in more than a last number.

    >>> variant_numbers(["ratio = 0.1", "ratio = 2"])
    ('ratio', {'ratio = 0.1': 0.1, 'ratio = 2': 2.0})
    """
    found = {name: re.fullmatch(r"(.*?)[\s=]*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", name) for name in variants}
    titles = {match[1] if match else None for match in found.values()}
    title = titles.pop()
    if titles or not title:
        return None
    return title, {name: float(match[2]) for name, match in found.items() if match}


def _variants_chart(scores: VariantScores, variants: Sequence[str], runs: Sequence[RunRecord]) -> Markup | None:
    """The final score of each method against the number that varies."""
    found = variant_numbers(variants)
    if found is None:
        return None
    title, numbers = found
    methods = palette(scores)
    marks: list[Mark] = []
    for series, by_variant in zip(methods, scores.values(), strict=True):
        points, edges = [], []
        for name, summary in sorted(by_variant.items(), key=lambda item: numbers[item[0]]):
            mean, sd = mean_of(summary), sd_of(summary)
            if mean is not None:
                points.append((numbers[name], mean))
                edges += [(numbers[name], mean - sd, mean + sd)] if sd is not None else []
        marks += [BandMark(series, edges), LineMark(series, points)]
    caption = f"Final {metric_name(*runs)} against {title}"
    chart = figure(caption, plot(marks, PlotAxis(title, tight=True), score_axis(*runs), caption))
    return tag("div", legend(methods), charts(chart), data_scope="")


def _run(run: RunRecord, page: Path) -> Markup:
    seed = f", seed {run.seed}" if run.seed is not None else ""
    own = run.folder / "report.html"
    link = None
    if own.exists() and own.resolve() != page.resolve():
        link = tag("p", tag("a", "The full report of this run", href=_relative_link(own, page)))
    score = metric_format(run).format(run.curve.final.score) if run.curve.final else "no scores yet"
    title = f"{run.name}: {run.label}{seed} ({run.failure or run.status}, {score})"
    return collapsible(title, status_line(run), link, run_brief(run))


def _relative_link(target: Path, page: Path) -> str:
    """A link from the page to another file. `./` keeps a name with a colon from looking like a URL scheme."""
    return "./" + quote(Path(os.path.relpath(target.resolve(), page.resolve().parent)).as_posix())
