"""When every unit had been trained so many times, beside the theory of FedRolex's paper."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.coverage import at_random, milestones, rolling, rounds_until, windows
from potluck.report.html import Markup, Series, join, table, tag
from potluck.report.json_values import integer
from potluck.report.records import RunRecord
from potluck.report.units import format_count, format_mean_round, format_short

Painted = Sequence[tuple[Series, list[RunRecord]]]


def milestone_table(painted: Painted) -> Markup | None:
    """Rounds until every unit was trained at least m times, per method, beside the theory where it applies."""
    told = [(series, having) for series, runs in painted if (having := [run for run in runs if _followed(run)])]
    if not told:
        return None
    everyone = [run for _, runs in told for run in runs]
    steps, parts = milestones(everyone), windows(everyone)
    rows = [_row(series.label, runs, steps) for series, runs in told]
    rows += _theory_rows(parts, steps) if isinstance(parts, int) else []
    marked = any(cell.endswith("‡") for row in rows for cell in row[1:])
    note = _theory_note(parts, everyone) + (" ‡ Below m·I: the formula holds for many windows." if marked else "")
    title = tag("h3", "Rounds until every unit was trained at least m times")
    head = ["m", *(format_count(step) for step in steps)]
    return join(title, tag("p", note, class_="note"), table(head, rows))


def _followed(run: RunRecord) -> bool:
    return any(line.least_trained is not None for line in run.rounds)


def _row(label: str, runs: list[RunRecord], steps: list[int]) -> list[str]:
    return [label, *(format_mean_round([rounds_until(run, step) for run in runs]) for step in steps)]


def _theory_rows(parts: int, steps: list[int]) -> list[list[str]]:
    turns = [format_short(rolling(parts, step)) for step in steps]
    draws = [_drawn(parts, step) for step in steps]
    return [["theory, rolling", *turns], ["theory, random", *draws]]


def _drawn(parts: int, step: int) -> str:
    """The formula is for many windows: with few it falls below what even taking turns needs, and is marked."""
    value = at_random(parts, step)
    return format_short(value) + (" ‡" if value is not None and value < rolling(parts, step) else "")


def _theory_note(parts: int | str, runs: Sequence[RunRecord]) -> str:
    if isinstance(parts, str):
        return f"Measured. The theory for sub-models that hold one of I disjoint windows says nothing here: {parts}."
    words = f"Theory (FedRolex's paper) for one sub-model a round that holds one of I = {parts} disjoint windows:"
    words += " m·I when windows are taken in turn, I·log I + I·(m-1)·log log I when drawn at random."
    cohort = max((integer(run.manifest.get("cohort")) or 1 for run in runs), default=1)
    return words + (f" Here a round trains up to {format_count(cohort)} sub-models." if cohort > 1 else "")
