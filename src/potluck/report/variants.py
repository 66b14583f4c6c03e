"""What varies: the final score of each method under each variant of a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from potluck.report.curves import score_axis
from potluck.report.html import Cell, Markup, RowName, Series, note, palette, section, table, tag
from potluck.report.json_values import mapping, number, sequence, text
from potluck.report.marks import BandMark, LineMark
from potluck.report.multiples import charts_of_methods, is_many, method_charts
from potluck.report.records import RunRecord
from potluck.report.summary import Row, mean_of, mean_sd, metric_format, metric_name, sd_of
from potluck.report.svg import HUGE, Mark, PlotAxis, spans_decades
from potluck.report.units import MetricFormat

VariantScores = dict[str, dict[str, Row]]
"""Results of `mean_sd` by method, then by variant."""

MAX_COLUMNS = 8
"""More variants than this are rows, if there are fewer methods."""
RATES = re.compile(r"(^|[._\s])(lr|eta|(learning|server|client)[_ ]?(lr|rate))$", re.IGNORECASE)
"""The names of settings that are learning rates."""


def score_cell(summary: object, metric: MetricFormat, seeds: object = (), best: bool = False) -> Cell:
    """A mean over seeds with its standard deviation; the pointer tells from which seeds."""
    mean, sd, many = mean_of(summary), sd_of(summary), int(number(mapping(summary).get("count")) or 0)
    listed = ", ".join(text(seed) for seed in sequence(seeds))
    which = f" ({listed})" if listed and len(sequence(seeds)) == many <= 12 else ""
    tip = ""
    if mean is not None:
        spread = "" if sd is None else f" ± {metric.format(sd, 2)}"
        tip = f"{metric.format(mean, 2)}{spread}, {f'{many} seeds' if many > 1 else '1 seed'}{which}"
    return Cell(metric.format_cell(mean, sd), mean, sd, tip, "best" if best else "")


def variants_section(runs: Sequence[RunRecord]) -> Markup | None:
    """A table of methods by variants, and a chart if the variants are numbers; None without variants."""
    variants = list(dict.fromkeys(run.variant for run in runs))
    if len(variants) < 2:
        return None
    scores = variant_scores(runs)
    if all(len(by_variant) < 2 for by_variant in scores.values()):  # each method has one variant: nothing to compare
        return None
    words = f"Final {metric_format(*runs).name}{metric_format(*runs).unit}, mean ± standard deviation over seeds."
    if found := variant_numbers(variants):
        variants.sort(key=found[1].__getitem__)
    shown = _variants_table(scores, variants, runs)
    whole = section("What varies", note(words), shown, _variants_chart(scores, variants, runs))
    return tag("div", whole, data_scope="")


def _variants_table(scores: VariantScores, variants: Sequence[str], runs: Sequence[RunRecord]) -> Markup:
    """Methods by variants; variants by methods if the variants are many and the methods are not."""
    metric, failures = metric_format(*runs), variant_failures(runs)
    cells = {
        (method, name): _variant_cell(scores[method][name], metric, failures.get((method, name), []))
        for method in scores
        for name in variants
        if name in scores[method]
    }
    keys = {series.label: series.key for series in palette(scores)}
    if len(variants) > MAX_COLUMNS and len(scores) < len(variants):
        lines = [[RowName(name), *(cells.get((method, name), "") for method in scores)] for name in variants]
        return table(["", *scores], lines, kind="dense", names=["variant"], title="what varies")
    rows = [
        [RowName(method, key=keys[method]), *(cells.get((method, name), "") for name in variants)] for method in scores
    ]
    return table(["", *variants], rows, names=["method"], title="what varies")


def _variant_cell(summary: Row, metric: MetricFormat, failures: Sequence[str]) -> Cell:
    """The score, or how the runs ended that have none."""
    cell = score_cell(summary, metric)
    if not failures:
        return cell
    if cell.value is None:
        return Cell(" / ".join(dict.fromkeys(failures)), tip="; ".join(failures), mark="lost")
    words = f"{cell.text} ({len(failures)} failed)"
    return Cell(words, cell.value, cell.sd, f"{cell.tip}; in no mean: {'; '.join(failures)}")


def _base_label(run: RunRecord) -> str:
    return run.label.removesuffix(f", {run.variant}")


def variant_failures(runs: Sequence[RunRecord]) -> dict[tuple[str, str], list[str]]:
    """How runs ended that have no result, such as "diverged in round 12", by method and variant."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.failure:
            found.setdefault((_base_label(run), run.variant), []).append(run.failure)
    return found


def variant_scores(runs: Sequence[RunRecord]) -> VariantScores:
    """The final score of each method under each variant, over the seeds that have a result."""
    scores: dict[str, dict[str, list[float | None]]] = {}
    for run in runs:
        final = run.curve.final if not run.failure else None
        scores.setdefault(_base_label(run), {}).setdefault(run.variant, []).append(final.score if final else None)
    return {method: {name: mean_sd(found) for name, found in each.items()} for method, each in scores.items()}


def variant_numbers(variants: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The setting that varies and its number in each variant; None if the names differ in more than a last number.

    >>> variant_numbers(["ratio = 0.1", "ratio = 2"])
    ('ratio', {'ratio = 0.1': 0.1, 'ratio = 2': 2.0})
    """
    found = {name: _last_number(name) for name in variants}
    titles = {pair[0] if pair else None for pair in found.values()}
    title = titles.pop()
    if titles or not title:
        return None
    numbers = {name: pair[1] for name, pair in found.items() if pair}
    return (title, numbers) if all(abs(value) < HUGE for value in numbers.values()) else None


def _last_number(name: str) -> tuple[str, float] | None:
    """A name that ends in a number, however that is written (1E-2, .5, 1_000), as what comes before it and the number.

    >>> _last_number("lr = 1E-2")
    ('lr', 0.01)
    """
    match = re.fullmatch(r"(.*?)[\s=]*([-+]?\.?\d\S*)", name)
    try:
        return (match[1], float(match[2])) if match else None
    except ValueError:
        return None


def is_logarithmic(title: str, numbers: Sequence[float]) -> bool:
    """Whether the axis of a setting is logarithmic: it is a learning rate, or its values span over two decades."""
    is_rate = bool(RATES.search(title.strip())) and all(value > 1 / HUGE for value in numbers)
    return is_rate or spans_decades(numbers)


def _variants_chart(scores: VariantScores, variants: Sequence[str], runs: Sequence[RunRecord]) -> Markup | None:
    """The final score of each method against the number that varies."""
    found = variant_numbers(variants)
    if found is None:
        return None
    title, numbers = found
    of_method: dict[str, list[RunRecord]] = {}
    for run in runs:
        of_method.setdefault(_base_label(run), []).append(run)
    methods = [(series, of_method[series.label]) for series in palette(scores)]

    def draw(series: Series, _: list[RunRecord]) -> list[Mark]:
        return _variant_marks(series, scores[series.label], numbers)

    caption = f"Final {metric_name(*runs)} against {title}"
    axis = PlotAxis(title, tight=True, log=is_logarithmic(title, list(numbers.values())))
    chart = method_charts(caption, methods, draw, axis, score_axis(*runs), caption)
    whole = tag("div", tag("h3", caption), chart) if is_many(methods) else chart
    return charts_of_methods(methods, whole)


def _variant_marks(series: Series, by_variant: Mapping[str, Row], numbers: Mapping[str, float]) -> list[Mark]:
    points, edges, spreads = [], [], {}
    for name, summary in sorted(by_variant.items(), key=lambda item: numbers[item[0]]):
        mean, sd = mean_of(summary), sd_of(summary)
        if mean is not None:
            points.append((numbers[name], mean))
            spreads[numbers[name], mean] = (sd, int(number(summary["count"]) or 0))
            edges += [(numbers[name], mean - sd, mean + sd)] if sd is not None else []
    return [BandMark(series, edges), LineMark(series, points, spreads=spreads)]
