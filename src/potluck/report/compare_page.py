"""The page that compares several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from potluck.report.budgets import budgets
from potluck.report.choices import choices_section
from potluck.report.clients import compare_local_section
from potluck.report.compare_cost import compare_cost_section, method_name
from potluck.report.compare_sections import differences_section
from potluck.report.coverage import compare_coverage_section
from potluck.report.curves import compare_curves, lines_note
from potluck.report.features import compare_features_section
from potluck.report.html import (
    COLOURS,
    Cell,
    Markup,
    RowName,
    TableCell,
    collapsible,
    foldable,
    join,
    note,
    number_cell,
    palette,
    section,
    table,
    tabs,
    tag,
)
from potluck.report.json_values import Json, mapping, number
from potluck.report.multiples import MethodRuns, charts_of_methods, is_many
from potluck.report.records import LearningCurve, RunRecord
from potluck.report.run_page import run_brief, status_line
from potluck.report.sentences import (
    NEEDS,
    NEEDS_NOTE,
    best_labels,
    budget_column,
    budget_notes,
    budget_sign,
    column,
    needs_cells,
    tier_column,
    verdict,
)
from potluck.report.settings_table import settings_section
from potluck.report.summary import (
    Row,
    best_by,
    best_heading,
    capitalize,
    client_measures,
    compare_rows,
    group_by_method,
    metric_format,
    personal_note,
    tier_names,
    tiers_differ,
    with_results,
)
from potluck.report.units import MetricFormat, format_count
from potluck.report.variants import score_cell, variants_section

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
    groups, rows = group_by_method(runs), compare_rows(runs)
    every = list(zip(palette(groups), groups.values(), strict=True))
    methods = [(series, ended) for series, members in every if (ended := with_results(members))]
    keys = {series.label: series.key for series, _ in methods}
    return join(
        _verdict(runs),
        variants_section(runs),
        tag(
            "div",
            _score_section(runs, rows, keys),
            differences_section(runs, rows, keys),
            choices_section(runs, rows),
            _learning_section(methods, tier_names(runs)),
            data_scope="",
        ),
        compare_local_section(methods),
        compare_cost_section(runs, methods, rows),
        compare_coverage_section(methods),
        compare_features_section(methods),
        _needs_section(rows, keys),
        settings_section(runs, keys),
        _runs_section(runs, page),
    )


def _verdict(runs: Sequence[RunRecord]) -> Markup | None:
    sentences = verdict(runs)
    return tag("div", *(tag("p", line) for line in sentences), class_="verdict") if sentences else None


def _learning_section(methods: MethodRuns, tiers: Sequence[str]) -> Markup:
    curves = [("Global", compare_curves("Global", methods, lambda run: run.curve))]
    curves += [(name, compare_curves(name, methods, partial(_tier_curve, name))) for name in tiers]
    if is_many(methods):
        drawn = tabs("tier", *curves)
    else:
        small = len(tiers) > 3 or len(tiers) % 3 == 2
        drawn = charts_of_methods(methods, *(chart for _, chart in curves), small=small)
    return section("Learning", lines_note(methods), drawn)


def _tier_curve(name: str, run: RunRecord) -> LearningCurve:
    tier = run.tier(name)
    return tier.curve if tier else LearningCurve()


def _score_section(runs: Sequence[RunRecord], rows: list[Row], keys: Mapping[str, str]) -> Markup:
    metric, tiers = metric_format(*runs), tier_names(runs)
    asked = client_measures(rows)
    limits, average = budgets(*runs), ["average", "worst_tier"] * tiers_differ(with_results(runs))
    columns = [_column(metric, rows, partial(column, key)) for key in ("global", *average, *asked)]
    columns += [_column(metric, rows, partial(tier_column, name)) for name in tiers]
    columns += [_column(metric, rows, partial(column, key)) for key in ("clients", "worst", "best")]
    columns += [_column(metric, rows, partial(budget_column, limit.key)) for limit in limits]
    starts = [[_score_name(row, keys), number_cell(format_count, number(row["runs"]))] for row in rows]
    lines = [[*start, *cells] for start, *cells in zip(starts, *columns, strict=True)]
    at_limits = [f"at {limit.name}" for limit in limits]
    head = ["", "runs", "global", *["average", "worst tier"] * bool(average), *asked, *tiers, "client mean"]
    head += ["worst tenth", best_heading(*runs), *at_limits]
    names = ["method", "runs", "global", *average, *asked, *tiers, "clients", "worst", "best", *at_limits]
    spread = "mean ± standard deviation over seeds (a single seed has no deviation)"
    green = "green: ahead of each other method beyond chance, by paired seeds with Holm's correction"
    notes = [f"Final {metric.name}{metric.unit}, {spread}; {green}."]
    notes += [BEST_NOTES[best_by(*runs)].format(metric=metric.name)]
    tier_note = (
        "Average: of the tiers' scores on the test set, by share of clients. Worst tier: the lowest of each run."
    )
    notes += [tier_note] * bool(average)
    local = "Local: the shared model on each client's own examples and classes, mean over clients."
    notes += [local] * ("local" in asked)
    notes += [personal_note(rows)] * ("personal" in asked)
    notes += ["† Scored by its clients, each on its own examples."] * any("†" in _signs(row) for row in rows)
    notes += ["‡ A bound that ignores what devices can carry: not ranked."] * any(row["bound"] for row in rows)
    notes += budget_notes(rows, limits)
    failed = [f"{run.label}, seed {run.seed}, {run.failure}" for run in runs if run.failure]
    notes += [f"In no mean: {'; '.join(failed)}."] * bool(failed)
    kind = " ".join(["many"] * (len(head) > 8) + ["dense"] * (len(rows) > COLOURS))
    scores = table(head, lines, kind=kind, names=names, title=metric.name)
    return section(capitalize(metric.name), scores, note(" ".join(notes)))


def _score_name(row: Row, keys: Mapping[str, str]) -> RowName:
    name = method_name(row, keys)
    return replace(name, note=_signs(row) + name.note)


def _signs(row: Row) -> str:
    return " †" * (row["scored_on"] == "clients") + " ‡" * bool(row["bound"])


def _column(metric: MetricFormat, rows: list[Row], pick: Callable[[Json], object]) -> list[Cell]:
    """The cells of one column; green is a method that is ahead of each other rankable one, beyond chance."""
    best = best_labels(rows, pick)
    cells = [score_cell(pick(row), metric, row["seeds"], best=row["label"] in best) for row in rows]
    return [replace(cell, text=cell.text + budget_sign(pick(row))) for row, cell in zip(rows, cells, strict=True)]


def _needs_section(rows: Sequence[Row], keys: Mapping[str, str]) -> Markup | None:
    """What each method needs and allows; None if no method declares it."""
    if not any(mapping(row["facts"]) for row in rows):
        return None
    lines: list[list[TableCell]] = [[method_name(row, keys), *needs_cells(row["facts"])] for row in rows]
    shown = table(["", *NEEDS], lines, kind="words", names=["method"], title="what methods need")
    return foldable("What methods need and allow", len(rows) > COLOURS, shown, note(NEEDS_NOTE))


def _runs_section(runs: Sequence[RunRecord], page: Path) -> Markup:
    shown = [_run(run, page) for run in runs]
    many = len(runs) > 2 * COLOURS
    return foldable(f"Every run, one by one: {len(runs)} runs" if many else "Every run", many, *shown)


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
