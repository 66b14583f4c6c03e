"""The HTML report as one file: it needs no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from potluck.ledger import write_atomically
from potluck.report.budgets import with_budget
from potluck.report.compare_page import compare_body
from potluck.report.html import Markup, join, tag
from potluck.report.json_values import text
from potluck.report.page_frame import make_folder, whole_page
from potluck.report.read import read_record
from potluck.report.records import RunRecord
from potluck.report.run_page import run_body, status_line
from potluck.report.summary import group_by_method


def write_report(
    folders: Sequence[Path], to: Path, title: str | None = None, budget: Mapping[str, float] | None = None
) -> Path:
    """Write the report about one run, or about several side by side; returns its path.

    `budget` takes the place of the one that the settings of the runs name.
    """
    runs = with_budget((read_record(folder) for folder in folders), budget or {})
    if not runs:
        raise ValueError("a report needs at least one run folder")
    make_folder(to.parent)
    write_atomically(to, render(runs, to, title).encode(errors="replace"))
    return to


def render(runs: Sequence[RunRecord], page: Path, title: str | None = None) -> str:
    """The HTML of the report. `page` is where it will be, for links to other reports."""
    single = runs[0] if len(runs) == 1 else None
    title = title or (single.name if single else _shared_title(runs))
    body = run_body(single) if single else compare_body(runs, page)
    intro = status_line(single) if single else _overview(runs)
    return whole_page(title, intro, body, _footer(runs))


def _shared_title(runs: Sequence[RunRecord]) -> str:
    names = dict.fromkeys(run.name for run in runs)
    return next(iter(names)) if len(names) == 1 else f"Comparison of {len(runs)} runs"


def _overview(runs: Sequence[RunRecord]) -> Markup:
    methods = len(group_by_method(runs))
    failed = sum(bool(run.failure) for run in runs)
    unfinished = sum(run.status != "done" for run in runs) - failed
    words = f"{len(runs)} runs of {methods} {'methods' if methods != 1 else 'method'}"
    tail = f" · {unfinished} not finished" if unfinished else ""
    tail += f" · {failed} diverged or failed" if failed else ""
    return tag("p", words + tail, class_="lede")


def _footer(runs: Sequence[RunRecord]) -> Markup:
    versions = sorted({text(run.manifest.get("potluck")) for run in runs} - {""})
    made_with = f"Runs made with Potluck {', '.join(versions)}." if versions else None
    words = (
        "Measured numbers were counted or clocked; modelled ones are computed from the work and the device profiles."
    )
    return join(made_with, " ", words)
