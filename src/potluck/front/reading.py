"""What is made of run folders: reports, frames, tables, plots and models; and the list of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.front.compared import first_folder
from potluck.front.given import as_paths, gather, known_objects, method_table, source_of

if TYPE_CHECKING:
    from torch import nn

    from potluck.report import RunRecord
    from potluck.report.frames import DataFrame, Frames
    from potluck.report.paper_plot import PaperPlot
    from potluck.run import Result

Runs = Any
"""A run folder or a folder of them, a result, a comparison, or several of these."""


def report(
    runs: Runs,
    to: str | Path | None = None,
    *,
    title: str | None = None,
    budget: Mapping[str, float] | None = None,
) -> Path:
    """Writes one HTML page about one run or many, which needs no other file; returns its path.

        >>> pl.report("runs/first")
        >>> pl.report([result, "runs/digits-fedprox-s0"], "both.html")

    - runs: a run folder or a folder of them, what `pl.run` or `pl.compare` returned, or a list of these.
    - to: the page; by default report.html in the first folder.
    - title: the page's title.
    - budget: scores at these costs, in place of [compare] budget: {"energy": 500}.
    """
    from potluck.cli.arguments import check_budget
    from potluck.report import write_report

    folders = as_paths(runs)
    found = _run_folders(folders)
    page = Path(to) if to is not None else first_folder(runs, folders) / "report.html"
    return write_report(found, page, title, check_budget(budget or {}))


def frame(runs: Runs) -> Frames:
    """Runs as pandas frames: `scores` by run, round and tier, `costs` by run and round, `tasks` by task.

        >>> scores = pl.frame("runs/first").scores
        >>> scores[scores["tier"] == "all"].groupby(["method", "round"])["score"].mean()

    - runs: as in `pl.report`. Needs the extra `frames`: pip install 'potluck[frames]'.
    """
    from potluck.core import require_library

    require_library("pandas", "frames", "a data frame")
    from potluck.report.frames import make_frames

    return make_frames(_run_folders(as_paths(runs)))


def table(
    runs: Runs,
    to: str = "markdown",
    path: str | Path | None = None,
    *,
    columns: Sequence[str] | str | None = None,
    budget: Mapping[str, float] | None = None,
) -> str:
    """The table of a comparison for a paper: mean and standard deviation over seeds, the best in bold.

        >>> print(pl.table("runs/first", "latex", columns=["global", "tiers", "bytes"]))

    - runs: as in `pl.report`.
    - to: csv, latex (needs booktabs), markdown or json.
    - path: a file to write it to as well.
    - columns: global, average, worst_tier, tiers or a tier's name, worst, clients, rounds_to, bytes, joules, …; or one
      of them as text.
    - budget: scores at these costs, in place of [compare] budget: {"energy": 500}.
    """
    from potluck.cli.arguments import check_budget
    from potluck.report.budgets import with_budget
    from potluck.report.paper_table import FORMATS, make_table
    from potluck.report.published import write_file

    _refuse_other("to", to, FORMATS)
    wanted = [columns] if isinstance(columns, str) else columns
    text = make_table(with_budget(_records(runs), check_budget(budget or {})), to, wanted)
    if path is not None:
        write_file(Path(path), text.encode(errors="replace"))
    return text


def plot(
    runs: Runs, what: str = "learning", path: str | Path | None = None, *, cost: str = "bytes", columns: int = 1
) -> PaperPlot:
    """A plot for a paper, which a notebook shows: means over seeds with a band of one standard deviation.

        >>> pl.plot("runs/first", "cost", "energy.pdf", cost="energy")

    - runs: as in `pl.report`.
    - what: learning (score over rounds), cost (score against cost), coverage (how often units were trained), tiers.
    - path: a file to write it to as well; its ending says how: pdf (with its fonts), svg or png.
    - cost: what `cost` draws scores against: bytes, time or energy.
    - columns: how many columns of a paper it is wide: 1 (3.5 inches) or 2.

    Needs the extra `plot`: pip install 'potluck[plot]'. `save` writes the plot, and `figure` is matplotlib's own.
    """
    from potluck.core import require_library

    require_library("matplotlib", "plot", "a plot")
    from potluck.report.paper_plot import COSTS, KINDS, WIDTHS, make_plot

    _refuse_other("what", what, KINDS)
    _refuse_other("cost", cost, tuple(COSTS))
    _refuse_other("columns", columns, tuple(WIDTHS))
    found = make_plot(_records(runs), what, cost=cost, columns=columns)
    if path is not None:
        found.save(path)
    return found


def export(
    run: str | Path | Result,
    to: str | Path,
    tier: str | None = None,
    *,
    client: str | None = None,
    server: bool = False,
    format: str = "safetensors",
    train: bool = False,
    data: Any = None,
    method: Any = None,
) -> Path:
    """Writes a trained model into a folder that runs without Potluck; returns the folder.

        >>> pl.export("runs/digits-fedavg-s0", "phone_model", tier="phone")
        >>> net = pl.load("phone_model")
        >>> pl.export("runs/digits-fedavg-s0", "phone_onnx", tier="phone", format="onnx")
        >>> pl.predict("phone_onnx", x)

    - run: the run folder, or what `pl.run` returned.
    - to: the folder to write.
    - tier: whose model; by default the largest tier's.
    - client: the client whose model to write, if models live on clients; `server`: the server's own.
    - format: "safetensors", which `pl.load` reads; "pt2", "onnx" or "executorch".
    - train: with "executorch", write a graph for training on devices, too.
    - data, method: only if an error asks for them.
    """
    from potluck.run.exporting import export as write

    [path] = as_paths(run)
    kept = getattr(run, "given", {})
    source = kept.get("source") if data is None else source_of(data)
    again = kept.get("method") if method is None else method_table(method, {})[1]
    objects = known_objects(source=source, method=again)
    write(path, to, tier, client, server, format=format, train=train, **objects)
    return Path(to)


def load(path: str | Path) -> nn.Module:
    """The network of an exported model, in evaluation mode. Nothing is unpickled.

    >>> net = pl.load("phone_model")
    >>> net(x).argmax(1)
    """
    from potluck.models import load as read

    return read(path)


def who_holds_what(
    experiment: Any = None, *, data: Any = None, set: Mapping[str, Any] | None = None, clients: int | None = None
) -> DataFrame:
    """How many training rows of each label the clients of an experiment hold, as a frame; nothing is trained.

        >>> pl.who_holds_what("experiments/digits.toml", set={"data.partition": "dirichlet", "data.alpha": 0.1})

    - experiment, data, set: as in `pl.run`.
    - clients: at most this many, an even sample of every tier; None: all.

    A row is a client, with its tier, its rows, and its rows of each label. Needs the extra `frames`: pip install
    'potluck[frames]'. `potluck show data` prints and draws the same.
    """
    from potluck.core import require_library

    require_library("pandas", "frames", "a data frame")
    from potluck.report.frames import make_frame
    from potluck.run.holdings import who_holds_what as count

    given = gather(experiment, data=data, model=None, method=None, changes=set)
    found = count(given.experiment, given.source, clients)
    rows = [
        {"client": each["client"], "tier": each["tier"], "rows": sum(each["counts"])}
        | dict(zip(found["labels"], each["counts"], strict=False))
        for each in found["held"]
    ]
    return make_frame(rows, ("client", "tier", "rows"))


def list_methods() -> MethodList:
    """All methods with what they are, what they need, and their settings; prints as a table.

    >>> pl.list_methods()
    >>> [row["name"] for row in pl.list_methods()]
    """
    from potluck.cli.listing import rows

    return MethodList(rows("methods"))


class MethodList(list[dict[str, Any]]):
    """Methods as rows: name, about, facts and settings."""

    def frame(self) -> DataFrame:
        """The same as a pandas frame."""
        from potluck.core import require_library

        require_library("pandas", "frames", "a data frame")
        from potluck.report.frames import make_frame

        return make_frame(self)

    def _text_rows(self) -> list[dict[str, str]]:
        from potluck.cli.listing import table_rows

        return table_rows("methods", self)

    def __repr__(self) -> str:
        rows = self._text_rows()
        name = max((len(row["name"]) for row in rows), default=0)
        return "\n".join(f"{row['name']:<{name}}  {row['about']}" for row in rows)

    def _repr_html_(self) -> str:
        from potluck.report.notebook_view import list_view

        rows = self._text_rows()
        return list_view(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def _run_folders(folders: list[Path]) -> list[Path]:
    from potluck.cli.arguments import run_folders

    return run_folders(folders)


def _records(runs: Runs) -> list[RunRecord]:
    from potluck.report import read_record

    return [read_record(folder) for folder in _run_folders(as_paths(runs))]


def _refuse_other(name: str, given: object, known: Sequence[object]) -> None:
    from potluck.core import SettingsError

    if given not in known:
        raise SettingsError(f"{name} = {given!r}: there is {', '.join(map(str, known))}.")
