"""What a person sees: live progress on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from potluck.report import RunRecord
    from potluck.run import Result

OUT = Console()
ERR = Console(stderr=True)


class Lines:
    """Plain lines, one a scored round; at most one every so many seconds, and always the last."""

    def __init__(self, rounds: int, title: str, pause: float = 0.5) -> None:
        self.rounds, self.title, self.pause = rounds, title, pause
        self.started = self.last = time.monotonic()

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        now = time.monotonic()
        if done < self.rounds and (now - self.last < self.pause or scores is None):
            return
        self.last = now
        left = (now - self.started) / max(done, 1) * (self.rounds - done)
        print(f"{self.title}: round {done}/{self.rounds}  {told(scores, totals)}  {left:.0f} s left", file=ERR.file)

    def warn(self, text: str) -> None:
        print(f"{self.title}: {text}", file=ERR.file)


class Bar:
    """A live bar with what is known so far."""

    def __init__(self, progress: Progress, task: Any, rounds: int) -> None:
        self.progress, self.task, self.rounds = progress, task, rounds

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self.progress.update(self.task, completed=done)
        if scores:
            self.progress.update(self.task, told=told(scores, totals))

    def warn(self, text: str) -> None:
        self.progress.console.print(text, markup=False, style="yellow")


def told(scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> str:
    """The score per tier and bytes so far, in a few words."""
    words = []
    if scores:
        whole, metric = scores.get("global"), scores.get("metric", "accuracy")
        if whole:
            words.append(f"{metric} {_share(whole['test'][metric], metric)}")
        elif scores.get("clients"):
            words.append(f"clients' mean {_share(scores['clients']['mean'], metric)}")
        for name, tier in scores["tiers"].items():
            shown = (tier.get("test") or {}).get(metric, (tier.get("clients") or {}).get("mean"))
            words.append(f"{name} {_share(shown, metric)}")
    return "  ".join([*words, size(totals.get("bytes_down", 0) + totals.get("bytes_up", 0))])


def _share(value: float | None, metric: str) -> str:
    from potluck.report import MetricFormat

    return "none" if value is None else MetricFormat.of_metric(metric).format(value).replace(" ", "")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
        console=ERR,
    )


@contextmanager
def watching(rounds: int, title: str) -> Iterator[Lines | Bar]:
    """Someone to watch one run."""
    if not ERR.is_terminal:
        yield Lines(rounds, title)
        return
    with _progress() as progress:
        yield Bar(progress, progress.add_task(title, total=rounds, told="starting"), rounds)


@contextmanager
def comparing(rounds: int) -> Iterator[Callable[[str, int], Lines | Bar]]:
    """Someone to watch many runs: one bar or one set of lines each."""
    if not ERR.is_terminal:
        yield lambda label, seed: Lines(rounds, f"{label} seed {seed}", pause=3.0)
        return
    with _progress() as progress:
        yield lambda label, seed: Bar(
            progress, progress.add_task(f"{label} seed {seed}", total=rounds, told="starting"), rounds
        )


def result(found: Result, as_json: bool) -> None:
    """What a run came to, and where it lies."""
    if as_json:
        print_json(found.plain())
        return
    from potluck.report import privacy_guarantee, read_record, refusal_summary, run_table

    run = read_record(found.folder)
    show(run_table(run))
    if why := refusal_summary(run):
        say(f"refused: {why}")
    if guarantee := privacy_guarantee(run):
        say(f"privacy: {guarantee}")
    say(f"folder: {found.folder}")
    say(f"next:   potluck report {found.folder}")


def results(found: Sequence[RunRecord]) -> None:
    """What several runs came to, beside each other."""
    from potluck.report import compare_table, needs_table, refusal_summary

    show(compare_table(found))
    if needs := needs_table(found):
        show(needs)
    for run in found:
        if why := refusal_summary(run):
            say(f"refused in {run.label}, seed {run.seed}: {why}")


def print_json(value: Any) -> None:
    """One line of JSON; a number that is not finite, such as the loss of a run that diverged, becomes null."""
    print(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def listed(what: str, rows: list[dict[str, str]]) -> None:
    """Rows as a table."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*row.values())
    show(table)
    if what == "profiles":
        say("Every figure is modelled; --format json says from what.")


def show(table: Table) -> None:
    OUT.print(table)


def say(text: str) -> None:
    OUT.print(text, markup=False, highlight=False, soft_wrap=True)
