"""What a notebook shows of runs: a small table and a learning curve. Styles are inline, and all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from potluck.ledger import LedgerError
from potluck.report.html import Markup, join, tag
from potluck.report.json_values import text
from potluck.report.paper_table import caption, cells, choose_columns
from potluck.report.read import read_record
from potluck.report.records import LearningCurve, Points, RunRecord
from potluck.report.summary import compare_rows, failure_words, metric_format, overall_name
from potluck.report.svg import ROUND_AXIS, LinearScale, PlotAxis, make_scale
from potluck.report.units import GAP, format_bytes, format_joules, format_seconds

WIDTH, HEIGHT = 420.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 10.0, 34.0
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
CELL = "padding:2px 10px;text-align:right;white-space:nowrap"
NAME = "padding:2px 10px;text-align:left"
SMALL = "font-size:85%;opacity:.75;margin:4px 0"


def run_view(folder: Path, otherwise: str) -> str:
    """The scores and costs of a run's tiers, and its learning curve; text, if the folder is gone."""
    try:
        run = read_record(folder)
    except LedgerError:
        return tag("pre", otherwise)
    metric = metric_format(run)
    curves = [(overall_name(run.curve), run.curve), *((tier.name, tier.curve) for tier in run.tiers)]
    curves = [(name, curve) for name, curve in curves if curve.final]
    looks = {name: (_look(index)) for index, (name, _) in enumerate(curves)}
    rows = [
        [tier.name, metric.format(tier.curve.final.score if tier.curve.final else None),
         *_costs(tier.totals.bytes_down, tier.totals.bytes_up, tier.totals.modelled_seconds, tier.totals.joules)]
        for tier in run.tiers
    ]  # fmt: skip
    whole = [overall_name(run.curve), metric.format(run.curve.final.score if run.curve.final else None)]
    whole += _costs(run.totals.bytes_down, run.totals.bytes_up, run.device_seconds, run.totals.joules)
    head = ["", metric.name, "down", "up", "time*", "energy*"]
    seed = "" if run.seed is None else f", seed {run.seed}"
    title = tag("div", tag("b", run.label), f"{seed} · {run.failure or run.status}, {run.rounds_done} rounds")
    table = _table(head, [[_key(row[0], looks), *row[1:]] for row in [whole, *rows]])
    chart = _chart([(looks[name], curve) for name, curve in curves], metric.percent)
    words = "* modelled; a tier's time is summed over its devices, the first row's over each round's slowest"
    note = tag("div", f"{words} · {folder}", style=SMALL)
    return tag("div", title, table, chart, note)


def runs_view(runs: Sequence[RunRecord], where: str) -> str:
    """The table of a comparison: the best mean of each column in bold."""
    rows, metric = compare_rows(runs), metric_format(*runs)
    columns = choose_columns(runs, rows, None)
    lines = [
        [text(row["label"]) + failure_words(row), *(_cell(*cell) for cell in line)]
        for row, line in zip(rows, cells(rows, columns), strict=True)
    ]
    table = _table(["", *(column.head for column in columns)], lines)
    return tag("div", table, tag("div", f"{caption(rows, columns, metric)} {where}", style=SMALL))


def list_view(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table."""
    return _table(head, rows, NAME)


def _cell(mean: str, sd: str, best: bool) -> Markup:
    told = tag("b", mean) if best else join(mean)
    return join(told, f" ± {sd}") if sd else told


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = CELL) -> Markup:
    styles = [NAME, *[style] * (len(head) - 1)]
    names = tag("tr", *(tag("th", name, style=one) for name, one in zip(head, styles, strict=True)))
    body = (tag("tr", *(tag("td", cell, style=one) for cell, one in zip(row, styles, strict=True))) for row in rows)
    return tag("table", tag("thead", names), tag("tbody", *body), style="border-collapse:collapse;margin:4px 0")


def _costs(down: float | None, up: float | None, seconds: float | None, joules: float | None) -> list[str]:
    return [format_bytes(down), format_bytes(up), format_seconds(seconds), format_joules(joules)]


def _look(index: int) -> tuple[str, str]:
    """The colour and the dashes of the line with this number."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _key(name: str, looks: dict[str, tuple[str, str]]) -> str:
    """A name with a piece of its line before it."""
    if name not in looks:
        return name or GAP
    colour, dash = looks[name]
    line = tag("line", x1=0, x2=18, y1=4, y2=4, stroke=colour, stroke_width=2, stroke_dasharray=dash or None)
    return join(tag("svg", line, width=18, height=8, style="vertical-align:middle;margin-right:6px"), name)


def _chart(lines: Sequence[tuple[tuple[str, str], LearningCurve]], percent: bool) -> Markup | None:
    found = [(look, curve.line(lambda point: point.score)) for look, curve in lines]
    points = [point for _, line in found for point in line]
    if len({x for x, _ in points}) < 2:
        return None
    x = make_scale(ROUND_AXIS, (one for one, _ in points), LEFT, WIDTH - RIGHT)
    axis = PlotAxis("score", "percent" if percent else "plain")
    y = make_scale(axis, (one for _, one in points), HEIGHT - BOTTOM, TOP)
    drawn = (_line(look, line, x, y) for look, line in reversed(found))
    style = f"max-width:{WIDTH:g}px;width:100%;font-size:11px"
    return tag("svg", _axes(axis, x, y), *drawn, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", style=style, role="img")


def _line(look: tuple[str, str], line: Points, x: LinearScale, y: LinearScale) -> Markup:
    path = "M" + "L".join(f"{x(across):.1f} {y(up):.1f}" for across, up in line) if line else ""
    return tag("path", d=path, fill="none", stroke=look[0], stroke_width="1.8", stroke_dasharray=look[1] or None)


def _axes(axis: PlotAxis, x: LinearScale, y: LinearScale) -> Markup:
    parts = []
    for tick in y.ticks:
        level = f"{y(tick):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, stroke="currentColor", opacity="0.15"))
        label = axis.format(tick)
        parts.append(tag("text", label, x=LEFT - 5, y=level, dy="0.35em", text_anchor="end", fill="currentColor"))
    for tick in x.ticks:
        label, place = ROUND_AXIS.format(tick), f"{x(tick):.1f}"
        parts.append(tag("text", label, x=place, y=HEIGHT - 18, text_anchor="middle", fill="currentColor"))
    title = tag("text", "round", x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end", fill="currentColor")
    return join(*parts, title)
