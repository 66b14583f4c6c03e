"""The table of a comparison for papers: LaTeX, Markdown, CSV or JSON.

A row is a method with mean ± standard deviation over its seeds (`compare_rows`). Text for people has the best mean of
each column in bold: the highest score, the lowest cost. Bold says nothing about chance. Bounds stand last and are not
ranked. Runs that diverged or failed are in no mean, and are named beside the method. Of methods that chose settings by
validation score, the caption (in CSV and JSON, the row) says what, at what cost, and whether at the edge of the grid.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from potluck.ledger import replace_nonfinite
from potluck.report.budgets import budgets
from potluck.report.choices import choice_edge, choice_note, chosen_values
from potluck.report.json_values import mapping, number, sequence, text
from potluck.report.published import UnknownChoice
from potluck.report.records import RunRecord
from potluck.report.summary import (
    Row,
    compare_rows,
    failure_words,
    mean_of,
    metric_format,
    personal_note,
    rankable_rows,
    sd_of,
)
from potluck.report.units import (
    MetricFormat,
    format_bytes,
    format_count,
    format_flops,
    format_joules,
    format_seconds,
    format_short,
)

FORMATS = ("csv", "latex", "markdown", "json")
SCORES = {
    "global": "global",
    "average": "average",
    "worst_tier": "worst tier",
    "tiers": "",
    "clients": "client mean",
    "worst": "worst tenth",
    "local": "local",
    "personal": "personal",
    "own mix": "own mix",
    "best": "best round",
    "at_budget": "",
}
"""Scores in the rows of a comparison, and their heads. Those without a head are groups of columns."""
COSTS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "rounds": ("rounds", format_short),
    "bytes": ("bytes", format_bytes),
    "bytes_down": ("bytes down", format_bytes),
    "bytes_up": ("bytes up", format_bytes),
    "flops": ("compute", format_flops),
    "device_seconds": ("time", format_seconds),
    "round_seconds": ("time with server", format_seconds),
    "joules": ("energy", format_joules),
}
USUAL = (
    *("seeds", "global", "average", "worst_tier", "personal", "own mix", "tiers", "worst", "at_budget"),
    *("bytes", "device_seconds", "joules"),
)
"""The columns of a table for which none are named, as far as they are known."""
TUNING_COSTS = ("bytes_down", "bytes_up", "device_seconds", "joules", "flops")
"""What the runs that chose settings have cost, in CSV."""
GAP = "---"
EMPTY: Mapping[str, str] = {}


@dataclass(frozen=True)
class PaperColumn:
    """One column: its name, its head, where its numbers are in a row, and how they are written."""

    key: str
    head: str
    pick: Callable[[Row], object]
    """The mean and standard deviation of a row."""
    write: Callable[[float, float | None], str]
    sign: int = 1
    """1: the highest is the best; -1: the lowest; 0: none is."""

    def best(self, rows: Sequence[Row]) -> str:
        """The best mean of these rows as it is written; empty if all are level. Equal text is equally good."""
        known = [mean for row in rows if (mean := mean_of(self.pick(row))) is not None]
        if not self.sign or len({self.write(mean, None) for mean in known}) < 2:
            return ""
        return self.write(max(known, key=lambda mean: self.sign * mean), None)


def make_table(runs: Sequence[RunRecord], to: str = "markdown", columns: Iterable[str] | None = None) -> str:
    """The table of these runs as text. `columns` are names such as global, tiers, phone, worst, bytes; None: the usual.

    `to` is csv, latex, markdown or json.
    """
    rows = compare_rows(runs)
    chosen = choose_columns(runs, rows, columns)
    write = {"csv": _csv, "latex": _latex, "markdown": _markdown, "json": _json}[to]
    return write(rows, chosen, metric_format(*runs))


def choose_columns(runs: Sequence[RunRecord], rows: Sequence[Row], wanted: Iterable[str] | None) -> list[PaperColumn]:
    """The columns of these names, in this order. A name may stand for a group, such as tiers."""
    limits = {limit.key: limit.name for limit in budgets(*runs)}
    known = known_columns(metric_format(*runs), rows, limits)
    if wanted is None:
        several = any((number(row["runs"]) or 0) > 1 for row in rows)
        usual = (column for key in USUAL for column in known.get(key, ()) if key != "seeds" or several)
        return [column for column in usual if any(mean_of(column.pick(row)) is not None for row in rows)]
    found = []
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(known)}."
            raise UnknownChoice(f"the table has no column '{_plain_text(name)}'. {hint}")
        found += known[name]
    return list(dict.fromkeys(found))


def known_columns(
    metric: MetricFormat, rows: Sequence[Row], limits: Mapping[str, str] = EMPTY
) -> dict[str, list[PaperColumn]]:
    """Every column and group of columns that these rows have, by name. `limits` are names of budgets by their keys."""
    found: dict[str, list[PaperColumn]] = {
        "seeds": [PaperColumn("seeds", "seeds", _seeds, lambda mean, sd: format_count(mean), 0)]
    }
    for key, head in SCORES.items():
        if head:
            found[key] = [_score_column(metric, key, head, partial(_entry, key))]
            continue
        names = dict.fromkeys(text(name) for row in rows for name in mapping(row.get(key)))
        found[key] = [
            _score_column(
                metric, name, name if key == "tiers" else f"at {limits.get(name, name)}", partial(_nested, key, name)
            )
            for name in names
        ]
    found["rounds_to"] = [
        PaperColumn(f"rounds_to {aim}", _target_head(metric, aim), partial(_nested, "rounds_to", aim), _rounds_text, -1)
        for aim in dict.fromkeys(text(aim) for row in rows for aim in mapping(row.get("rounds_to")))
    ]
    for key, (head, write) in COSTS.items():
        sign = 0 if key == "rounds" else -1
        found[key] = [PaperColumn(key, head, partial(_entry, key), partial(_cost_text, write), sign)]
    single = {column.key: [column] for group in found.values() for column in group}
    return {**single, **found}


def _score_column(metric: MetricFormat, key: str, head: str, pick: Callable[[Row], object]) -> PaperColumn:
    return PaperColumn(key, head, pick, metric.format_cell)


def _seeds(row: Row) -> object:
    return {"mean": row["runs"]}


def _entry(key: str, row: Row) -> object:
    return row.get(key)


def _nested(key: str, name: str, row: Row) -> object:
    return mapping(row.get(key)).get(name)


def _target_head(metric: MetricFormat, aim: str) -> str:
    try:
        return f"to {metric.format_target(float(aim))}"
    except ValueError:
        return f"to {aim}"


def _rounds_text(mean: float, sd: float | None) -> str:
    return format_short(mean)


def _cost_text(write: Callable[[float | None], str], mean: float, sd: float | None) -> str:
    return write(mean)


def _failed(row: Row) -> str:
    return failure_words(row).strip(" ()")


def _plain_text(value: object) -> str:
    """Text in one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text(value)).split())


def _label(row: Row) -> str:
    return _plain_text(text(row["label"]) + failure_words(row))


def cells(rows: Sequence[Row], columns: Sequence[PaperColumn]) -> list[list[tuple[str, str, bool]]]:
    """The cells of each row: the mean and the standard deviation as text, and whether the mean is the best."""
    ranked = rankable_rows([row for row in rows if number(row["runs"])])
    best = {column.key: column.best(ranked) for column in columns}
    found = []
    for row in rows:
        line = []
        for column in columns:
            summary = column.pick(row)
            mean, sd = mean_of(summary), sd_of(summary)
            if mean is None:
                line.append((GAP, "", False))
                continue
            alone, both = column.write(mean, None), column.write(mean, sd)
            spread = both.partition(" ± ")[2]
            line.append((alone, spread, alone == best[column.key] and any(row is one for one in ranked)))
        found.append(line)
    return found


def caption(rows: Sequence[Row], columns: Sequence[PaperColumn], metric: MetricFormat) -> str:
    """What the numbers of the table are, in words."""
    seeds = max((int(number(row["runs"]) or 0) for row in rows), default=0)
    spread = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"
    bound = " Bounds stand last and are not ranked." if any(row["bound"] for row in rows) else ""
    failed = " Runs that diverged or failed are in no mean." if any(sequence(row["failed"]) for row in rows) else ""
    early = (number(mapping(column.pick(row)).get("ended_before")) for row in rows for column in columns)
    ended = " A run that ended before it had spent its budget is scored at its end." if any(early) else ""
    asked = any(column.key in ("personal", "own mix") for column in columns)
    personal = f" {personal_note(rows)}" if asked else ""
    first = f"Final test {metric.name}{metric.unit}{spread}. Bold: the best mean of a column."
    return f"{first}{personal}{bound}{failed}{ended} {choice_note(rows)}".rstrip()


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "·": r"$\cdot$", "—": "---", "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}",
}  # fmt: skip


def escape_latex(value: object) -> str:
    """Text as LaTeX prints it, in one line; a start that a line break would take for its argument is protected."""
    escaped = "".join(_LATEX.get(letter, letter) for letter in _plain_text(value))
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped.startswith(("[", "*")) else escaped


def _latex(rows: Sequence[Row], columns: Sequence[PaperColumn], metric: MetricFormat) -> str:
    head = " & ".join(["method", *(escape_latex(column.head) for column in columns)])
    lines = [
        " & ".join([escape_latex(_label(row)), *(_latex_cell(*cell) for cell in line)])
        for row, line in zip(rows, cells(rows, columns), strict=True)
    ]
    body = "".join(f"    {line} \\\\\n" for line in lines)
    return (
        "% \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{escape_latex(caption(rows, columns, metric))}}}\n"
        f"  \\begin{{tabular}}{{l{'r' * len(columns)}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n"
        f"{body}    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )


def _latex_cell(mean: str, sd: str, best: bool) -> str:
    if mean == GAP:
        return GAP
    if not re.fullmatch(r"-?[\d.]+", mean) or (not sd and "." not in mean):
        return f"\\textbf{{{escape_latex(mean)}}}" if best else escape_latex(mean)
    told = f"\\mathbf{{{mean}}}" if best else mean
    return f"${told} \\pm {sd}$" if sd else f"${told}$"


def _markdown(rows: Sequence[Row], columns: Sequence[PaperColumn], metric: MetricFormat) -> str:
    head = [["method", *(_escape_markdown(column.head) for column in columns)], ["---", *["---:"] * len(columns)]]
    body = [
        [_escape_markdown(_label(row)), *(_markdown_cell(*cell) for cell in line)]
        for row, line in zip(rows, cells(rows, columns), strict=True)
    ]
    lines = "".join(f"| {' | '.join(line)} |\n" for line in [*head, *body])
    return f"{lines}\n{_escape_markdown(caption(rows, columns, metric))}\n"


def _escape_markdown(value: object) -> str:
    return re.sub(r"([\\|*_`<>\[\]#~])", r"\\\1", _plain_text(value))


def _markdown_cell(mean: str, sd: str, best: bool) -> str:
    told = f"**{mean}**" if best else mean
    return f"{told} ± {sd}" if sd else told


def _csv(rows: Sequence[Row], columns: Sequence[PaperColumn], metric: MetricFormat) -> str:
    known = [column for column in columns if column.key != "seeds"]
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    names = [f"{_plain_text(column.key)}_{part}" for column in known for part in ("mean", "sd")]
    tuned = any(mapping(row["chosen"]) for row in rows)
    write.writerow(["method", "variant", "seeds", "failed", *CHOICE * tuned, *names])
    for row in rows:
        pairs = ((mean_of(column.pick(row)), sd_of(column.pick(row))) for column in known)
        numbers = ["" if value is None else repr(value) for pair in pairs for value in pair]
        words = [_spreadsheet_text(row["label"]), _spreadsheet_text(row["variant"])]
        write.writerow(
            [*words, format(number(row["runs"]) or 0, ".0f"), _failed(row), *_choice_cells(row) * tuned, *numbers]
        )
    return out.getvalue()


CHOICE = ["chosen", "chosen_at_edge", "tuning_runs", *(f"tuning_{name}" for name in TUNING_COSTS)]


def _choice_cells(row: Row) -> list[str]:
    """What a method chose, where that is at the edge, and what it cost; empty if it was not tuned."""
    found = mapping(row["chosen"])
    if not found:
        return [""] * len(CHOICE)
    cost = mapping(found.get("cost"))
    known = [number(found.get("runs")), *(number(cost.get(name)) for name in TUNING_COSTS)]
    amounts = ["" if amount is None else format(amount, ".15g") for amount in known]
    return [_spreadsheet_text(chosen_values(found)), _spreadsheet_text(choice_edge(found)), *amounts]


def _spreadsheet_text(value: object) -> str:
    """Text that no spreadsheet takes for a formula."""
    found = _plain_text(value)
    return f"'{found}" if found.startswith(("=", "+", "-", "@")) else found


def _json(rows: Sequence[Row], columns: Sequence[PaperColumn], metric: MetricFormat) -> str:
    known = [column for column in columns if column.key != "seeds"]
    found = [
        {
            "method": row["label"],
            **{key: row[key] for key in ("variant", "seeds", "failed", "bound", "metric", "scored_on", "chosen")},
            **{column.key: column.pick(row) for column in known},
        }
        for row in rows
    ]
    return json.dumps(replace_nonfinite(found), indent=2, allow_nan=False) + "\n"
