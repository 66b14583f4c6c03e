"""What a comparison returns: its runs, which print as a table and go out into frames, tables, plots and reports."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from potluck.report import RunRecord
    from potluck.report.frames import DataFrame
    from potluck.report.paper_plot import PaperPlot
    from potluck.run import FailedRun, Result


class ComparisonResult(Sequence["Result | FailedRun"]):
    """The runs of a comparison, in order. It prints as the table of `potluck compare`."""

    def __init__(self, runs: Iterable[Result | FailedRun], path: Path) -> None:
        self.runs = list(runs)
        self.path = path
        """The folder of the runs."""

    @overload
    def __getitem__(self, index: int) -> Result | FailedRun: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result | FailedRun]: ...
    def __getitem__(self, index: int | slice) -> Result | FailedRun | list[Result | FailedRun]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Result | FailedRun]:
        return iter(self.runs)

    @property
    def failed(self) -> list[FailedRun]:
        """The runs without a result."""
        from potluck.run import FailedRun

        return [run for run in self.runs if isinstance(run, FailedRun)]

    @property
    def folders(self) -> list[Path]:
        """The folders of all runs that began."""
        return [run.folder for run in self.runs if (run.folder / "manifest.json").exists()]

    @property
    def rows(self) -> list[dict[str, object]]:
        """One row for each method with mean and standard deviation over its seeds, as plain values."""
        from potluck.report import compare_rows

        return compare_rows(self._records())

    def frame(self, what: str = "scores") -> DataFrame:
        """All runs as one pandas frame: "scores" by run, round and tier, "costs" by run and round, or "tasks"."""
        from potluck.front.reading import frame

        return frame(self)[what]

    def table(
        self, to: str = "markdown", path: str | Path | None = None, *, columns: Sequence[str] | str | None = None
    ) -> str:
        """The table for a paper, as csv, latex, markdown or json; see `pl.table`."""
        from potluck.front.reading import table

        return table(self, to, path, columns=columns)

    def plot(
        self, what: str = "learning", path: str | Path | None = None, *, cost: str = "bytes", columns: int = 1
    ) -> PaperPlot:
        """A plot for a paper: learning, cost, coverage or tiers; see `pl.plot`."""
        from potluck.front.reading import plot

        return plot(self, what, path, cost=cost, columns=columns)

    def report(self, to: str | Path | None = None) -> Path:
        """Writes the HTML report of the comparison, by default report.html in its folder; returns its path."""
        from potluck.front.reading import report

        return report(self, to)

    def _records(self) -> list[RunRecord]:
        from potluck.report import read_record

        return [read_record(folder) for folder in self.folders]

    def __repr__(self) -> str:
        if not self.folders:
            return "\n".join(f"{run.label}, seed {run.seed}: {run.how}" for run in self.failed) or "no runs"
        from potluck.cli.safe_text import SafeConsole
        from potluck.report import compare_table

        out = io.StringIO()
        console = SafeConsole(file=out, force_jupyter=False)
        console.print(compare_table(self._records(), console.width))
        return f"{out.getvalue().rstrip()}\n{self.path}"

    def _repr_html_(self) -> str:
        from potluck.report.html import tag
        from potluck.report.notebook_view import runs_view

        return runs_view(self._records(), str(self.path)) if self.folders else tag("pre", repr(self))


def first_folder(runs: Any, folders: Sequence[Path]) -> Path:
    """Where files about these runs go: the folder of a comparison, or of the first run."""
    return runs.path if isinstance(runs, ComparisonResult) else folders[0]
