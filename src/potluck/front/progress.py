"""Progress of runs that Python started: bars on a terminal, a small table in a notebook, lines or nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.run.watch import Silent, Watch, Watches, whole

if TYPE_CHECKING:
    from potluck.run import FailedRun, Result

Watcher = Callable[[str, int], Watch]
PAUSE = 0.2
"""Seconds between two changes of what a notebook shows."""
MOST_WARNINGS = 5


@contextmanager
def progress_of_run(wanted: bool | None, rounds: int, title: str, watch: object | None) -> Iterator[Watch]:
    """What watches a run: the user's own watch, and its progress."""
    with _shown(wanted, rounds, lambda display: display.show_progress(rounds, title)) as shown:
        yield _both(watch, shown("" if in_notebook() else title, -1) if callable(shown) else shown)


@contextmanager
def progress_of_comparison(wanted: bool | None, rounds: int, watch: object | None) -> Iterator[Watcher]:
    """What watches each run of a comparison, by its label and seed."""
    with _shown(wanted, rounds, lambda display: display.show_comparison_progress(rounds)) as shown:
        yield lambda label, seed: _both(watch, shown(label, seed) if callable(shown) else None)


@contextmanager
def _shown(wanted: bool | None, rounds: int, start: Callable[[Any], AbstractContextManager[Any]]) -> Iterator[Any]:
    """What `start` shows on the screen, rows in a notebook, or None."""
    if wanted is not False and in_notebook():
        with NotebookTable(rounds) as table:
            yield table.row
        return
    if not wanted and (wanted is False or not sys.stderr.isatty()):
        yield None
        return
    from potluck.cli import display

    with start(display) as shown:
        yield shown


def _both(watch: object | None, shown: Any) -> Watch:
    return whole(watch) if shown is None else ShownWatch(whole(watch), shown)


class ShownWatch(Watches):
    """The user's own watch and the progress on the screen, which also hears where its run stands among others."""

    def __init__(self, watch: Watch, shown: Any) -> None:
        super().__init__(watch, [shown])
        self._shown = shown

    def waits(self) -> None:
        self._shown.waits()

    def starts(self) -> None:
        self._shown.starts()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel: there, rich text can be shown and changed."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookTable:
    """The progress of runs as one output of a notebook's cell, which changes in place."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.rows: list[NotebookRow] = []
        self._handle: Any = None
        self._last = 0.0

    def __enter__(self) -> NotebookTable:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.update(self)

    def row(self, label: str, seed: int) -> NotebookRow:
        """A row for one run."""
        title = label if seed < 0 else f"{label} seed {seed}"
        self.rows.append(NotebookRow(self, title, self.rounds))
        return self.rows[-1]

    def show(self) -> None:
        """Shows the rows as they are now, unless that was just done."""
        now = time.monotonic()
        if self._handle is None:
            self._handle = import_module("IPython.display").display(self, display_id=True)
        elif now - self._last >= PAUSE:
            self._handle.update(self)
        else:
            return
        self._last = now

    def _repr_html_(self) -> str:
        from potluck.report.html import tag

        rows = [row.markup() for row in self.rows]
        return tag("table", *rows, style="border-collapse:collapse")

    def __repr__(self) -> str:
        return "\n".join(f"{row.title} {row.done}/{row.rounds} {row.told}".strip() for row in self.rows)


class NotebookRow(Silent):
    """The progress of one run in a notebook."""

    def __init__(self, table: NotebookTable, title: str, rounds: int) -> None:
        self.table, self.title, self.rounds = table, title, rounds
        self.done, self.told = 0, "starting"
        self.warnings: list[str] = []

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self.done = done
        self.table.show()

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        from potluck.cli.display import progress_text

        self.done = done
        if scores:
            self.told = progress_text(scores, totals)
        self.table.show()

    def warn(self, text: str) -> None:
        if len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(" ".join(text.split()))
        self.table.show()

    def waits(self) -> None:
        self.told = "waiting"

    def starts(self) -> None:
        self.told = "starting"
        self.table.show()

    def end(self, outcome: Result | FailedRun) -> None:
        from potluck.cli.display import progress_text
        from potluck.run import FailedRun

        if isinstance(outcome, FailedRun):
            self.told = outcome.how
        else:
            self.done, self.told = outcome.rounds, f"done  {progress_text(outcome.scores, outcome.totals)}"

    def markup(self) -> str:
        from potluck.cli.safe_text import visible
        from potluck.report.html import join, tag

        cell = "padding:1px 8px;text-align:left;white-space:pre-wrap"
        bar = tag("progress", value=self.done, max=max(self.rounds, 1))
        words = [tag("td", one, style=cell) for one in (f"{self.done}/{self.rounds}", visible(self.told))]
        line = tag("tr", tag("td", visible(self.title), style=cell), tag("td", bar, style=cell), *words)
        more = [tag("tr", tag("td", visible(text), colspan=4, style=f"{cell};color:#a14a00")) for text in self.warnings]
        return join(line, *more)
