"""The commands that make tables and plots for papers: table, plot."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.app import BudgetOption, RunsArgument, app

__all__ = ["app"]


class TableFormat(StrEnum):
    """How a table for a paper is written."""

    csv = "csv"
    latex = "latex"
    markdown = "markdown"
    json = "json"


class PlotKind(StrEnum):
    """What a plot for a paper shows."""

    learning = "learning"
    cost = "cost"
    coverage = "coverage"
    tiers = "tiers"


class PlotFormat(StrEnum):
    """How a plot is written."""

    pdf = "pdf"
    svg = "svg"
    png = "png"


class CostName(StrEnum):
    """What scores are drawn against."""

    bytes = "bytes"
    time = "time"
    energy = "energy"


@app.command(epilog="Example: potluck table runs/digits-compare --to latex --columns global,tiers,bytes -o table.tex")
def table(
    folders: RunsArgument,
    to: Annotated[TableFormat, typer.Option(help="csv and json have all digits; latex needs booktabs.")],
    columns: Annotated[
        str | None, typer.Option(help="Comma-separated: global, average, worst_tier, tiers, phone, worst, bytes, …")
    ] = None,
    budget: BudgetOption = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The file; by default it is printed.")] = None,
) -> None:
    """Write the table of a comparison for a paper: mean and standard deviation over seeds, the best in bold."""
    from potluck.cli import arguments, display
    from potluck.report.budgets import with_budget
    from potluck.report.paper_table import make_table
    from potluck.report.published import write_file
    from potluck.report.read import read_record

    wanted = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    records = [read_record(folder) for folder in arguments.run_folders(folders)]
    text = make_table(with_budget(records, arguments.budget(budget or ())), to.value, wanted)
    if out is None:
        print(text, end="")
        return
    display.print_line(f"table: {write_file(out, text.encode(errors='replace'))}")


@app.command(epilog="Example: potluck plot runs/digits-compare --what cost --cost energy --to pdf -o energy.pdf")
def plot(
    folders: RunsArgument,
    what: Annotated[PlotKind, typer.Option(help="What to draw, mean and deviation over seeds.")] = PlotKind.learning,
    to: Annotated[
        PlotFormat | None, typer.Option(help="By default as the file ends, or else pdf, with its fonts in it.")
    ] = None,
    cost: Annotated[CostName, typer.Option(help="What --what cost draws scores against.")] = CostName.bytes,
    columns: Annotated[int, typer.Option(help="How many columns of a paper it is wide.", min=1, max=2)] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file; by default learning.pdf and so on, beside the runs.")
    ] = None,
) -> None:
    """Draw learning curves, score against cost, coverage or tiers for a paper. Needs the extra 'plot'."""
    from potluck.cli import arguments, display
    from potluck.core import require_library
    from potluck.report.paper_plot import make_plot
    from potluck.report.read import read_record

    require_library("matplotlib", "plot", "a plot")
    runs = [read_record(folder) for folder in arguments.run_folders(folders)]
    kind = to.value if to else out.suffix.removeprefix(".").lower() if out else "pdf"
    place = out or folders[0] / f"{what.value}.{kind}"
    drawn = make_plot(runs, what.value, cost=cost.value, columns=columns)
    display.print_line(f"plot: {drawn.save(place, kind)}")
