"""What the commands print: progress bars on a terminal, plain lines elsewhere, tables and JSON at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from potluck.cli.safe_text import SafeConsole, visible
from potluck.ledger import replace_nonfinite

if TYPE_CHECKING:
    from potluck.report import RunRecord
    from potluck.run import FailedRun, Result
    from potluck.run.contract import Verdict
    from potluck.run.exporting import Export
    from potluck.shipping import TrainingCheck

OUT = SafeConsole()
ERR = SafeConsole(stderr=True)


class LineProgress:
    """Progress as plain lines: one for each scored round, at most one every `pause` seconds, and always the last.

    After `silence` seconds without a line, a round that was not scored gets one too.
    """

    def __init__(self, rounds: int, title: str, pause: float = 0.5, silence: float = 30.0) -> None:
        self.rounds, self.title = rounds, visible(" ".join(title.split()))
        self.pause, self.silence = pause, silence
        self.started = self.last = time.monotonic()
        self.before = 0

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self.started, self.before = time.monotonic(), done

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        now = time.monotonic()
        if done < self.rounds and now - self.last < (self.silence if scores is None else self.pause):
            return
        self.last = now
        left = (now - self.started) / max(done - self.before, 1) * (self.rounds - done)
        print(
            f"{self.title}: round {done}/{self.rounds}  {visible(progress_text(scores, totals))}  {left:.0f} s left",
            file=ERR.file,
        )

    def warn(self, text: str) -> None:
        print(f"{self.title}: {visible(' '.join(text.split()))}", file=ERR.file)

    def waits(self) -> None:
        pass

    def starts(self) -> None:
        self.started = self.last = time.monotonic()

    def end(self, outcome: Result | FailedRun) -> None:
        pass


class BarProgress:
    """Progress as a live bar with the newest scores."""

    def __init__(self, progress: Progress, task: Any, rounds: int, title: str = "") -> None:
        self.progress, self.task, self.rounds, self.title = progress, task, rounds, title

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self.progress.update(self.task, completed=done)

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self.progress.update(self.task, completed=done)
        if scores:
            self.progress.update(self.task, scores=progress_text(scores, totals))

    def warn(self, text: str) -> None:
        told = f"{self.title}: {text}" if self.title else text
        self.progress.console.print(told, markup=False, style="yellow")

    def waits(self) -> None:
        self.progress.update(self.task, scores="waiting")

    def starts(self) -> None:
        self.progress.reset(self.task, scores="starting")

    def end(self, outcome: Result | FailedRun) -> None:
        from potluck.run import FailedRun

        if isinstance(outcome, FailedRun):
            self.progress.update(self.task, scores=outcome.how)
        else:
            told = f"done  {progress_text(outcome.scores, outcome.totals)}"
            self.progress.update(self.task, completed=outcome.rounds, scores=told)
        self.progress.stop_task(self.task)


def progress_text(scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> str:
    """The score of each tier and the bytes sent so far, in one line."""
    words = []
    if scores:
        whole, metric = scores.get("global"), scores.get("metric", "accuracy")
        if whole:
            words.append(f"{metric} {_format_score(whole['test'][metric], metric)}")
        elif scores.get("clients"):
            words.append(f"clients' mean {_format_score(scores['clients']['mean'], metric)}")
        for name, tier in scores["tiers"].items():
            score = (tier.get("test") or {}).get(metric, (tier.get("clients") or {}).get("mean"))
            words.append(f"{name} {_format_score(score, metric)}")
    return "  ".join([*words, format_bytes(totals.get("bytes_down", 0) + totals.get("bytes_up", 0))])


def _format_score(value: float | None, metric: str) -> str:
    from potluck.report import MetricFormat

    return "none" if value is None else MetricFormat.of_metric(metric).format(value).replace(" ", "")


def format_bytes(count: float) -> str:
    """A number of bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[scores]}", markup=False),
        TimeRemainingColumn(),
        console=ERR,
    )


@contextmanager
def show_progress(rounds: int, title: str) -> Iterator[LineProgress | BarProgress]:
    """Shows the progress of one run while the block runs."""
    if not ERR.is_terminal:
        yield LineProgress(rounds, title)
        return
    with _progress() as progress:
        yield BarProgress(progress, progress.add_task(title, total=rounds, scores="starting"), rounds)


@contextmanager
def show_comparison_progress(rounds: int) -> Iterator[Callable[[str, int], LineProgress | BarProgress]]:
    """Shows the progress of several runs: yields a function that makes a bar, or lines, for each run."""
    if not ERR.is_terminal:
        yield lambda label, seed: LineProgress(rounds, f"{label} seed {seed}", pause=3.0)
        return
    with _progress() as progress:

        def row(label: str, seed: int) -> BarProgress:
            title = f"{label} seed {seed}"
            return BarProgress(progress, progress.add_task(title, total=rounds, scores="starting"), rounds, title)

        yield row


def print_result(found: Result, as_json: bool) -> None:
    """Prints the result of a run, and its folder."""
    if as_json:
        print_json(found.plain())
        return
    from potluck.report import nodes_table, privacy_guarantee, read_record, refusal_summary, run_table, secure_summary

    run = read_record(found.folder)
    print_table(run_table(run))
    if nodes := nodes_table(run):
        print_table(nodes)
    if why := refusal_summary(run):
        print_line(f"refused: {why}")
    if guarantee := privacy_guarantee(run):
        print_line(f"privacy: {guarantee}")
    if sums := secure_summary(run):
        print_line(f"secure: {sums}")
    print_line(f"folder: {found.folder}")
    print_line(f"next:   potluck report {found.folder}")


def print_comparison(found: Sequence[RunRecord]) -> None:
    """Prints the results of several runs: tables, and which method is ahead."""
    from potluck.report import choice_lines, comparison_tables, refusal_summary, verdict

    for table in comparison_tables(found, OUT.width):
        print_table(table)
        print_line("")
    for sentence in verdict(found, by_tier=False):
        print_line(sentence)
    for line in choice_lines(found):
        print_line(line)
    for run in found:
        if why := refusal_summary(run):
            print_line(f"refused in {run.label}, seed {run.seed}: {why}")


def print_json(value: Any) -> None:
    """Prints one line of JSON; a number that is not finite, such as the loss of a diverged run, becomes null."""
    print(json.dumps(replace_nonfinite(value), allow_nan=False))


def print_rows(what: str, rows: list[dict[str, str]]) -> None:
    """Prints rows as a table."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*map(Text, row.values()))
    print_table(table)
    if what == "profiles":
        print_line("Every figure is modelled; --format json gives the source of each.")


def print_export(found: Export, to: Path) -> None:
    """Prints what was written, what to know of it, and what the networks of all tiers cost."""
    from potluck.report import units

    names = sorted(path.name for path in to.iterdir() if path.is_file())
    print_line(f"wrote {to}: {', '.join(names)}")
    for note in found.notes:
        print_note(f"note: {note}")
    rows = [
        {
            "name": f"{name} (written)" if name == found.written else name,
            "parameters": units.format_count(each.parameters),
            "size": units.format_bytes(each.bytes),
            "FLOPs": units.format_flops(each.flops),
            "peak memory": units.format_bytes(each.memory),
            "latency here": units.format_seconds(each.seconds),
        }
        for name, each in found.tiers.items()
    ]
    print_rows("export", rows)
    print_line("For one row. Peak memory is modelled; latency is measured on this machine.")
    if "predict.py" in names:
        print_line(f"run it with: python {to}/predict.py FILE")


def print_training_check(found: TrainingCheck) -> None:
    """Prints how far training moved parameters and how far the two results are apart, for the five worst tensors."""
    rows = [
        {"tensor": each.name, "moved by": f"{each.moved:.1e}", "difference": f"{each.off:.1e}"}
        for each in found.tensors[:5]
    ]
    print_rows("ExecuTorch and PyTorch", rows)
    if len(found.tensors) > 5:
        print_line(f"... and {len(found.tensors) - 5} tensors with smaller differences.")
    print_line(f"loss: {found.losses[0]:.4f} before the first step, {found.losses[1]:.4f} before the last.")
    if not found.wrong:
        print_line(found.verdict)


def print_verdict(verdict: Verdict) -> None:
    """Prints whether one promise of the contract is kept, and how it is broken."""
    print_line(f"{'BROKEN' if verdict.broken else 'kept  '}  {verdict.promise}")
    if verdict.broken:
        print_line(f"        {verdict.broken}")


def print_table(table: Table) -> None:
    """Prints a table to standard output."""
    OUT.print(table)


def print_note(text: str) -> None:
    """Prints a line to standard error, without wrapping it."""
    ERR.print(text, markup=False, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Prints a line to standard output, without wrapping it."""
    OUT.print(text, markup=False, highlight=False, soft_wrap=True)


def print_prose(text: str, indent: int = 0) -> None:
    """Prints a paragraph to standard output, wrapped to the terminal."""
    OUT.print(Padding(Text(text), (0, 0, 0, indent), expand=False))
