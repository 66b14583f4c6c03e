"""Commands. Rooms are imported inside them, so that `--help` is instant."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="potluck",
    help="Federated learning where every device brings what it can.",
    epilog="Start with: potluck run",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class Things(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    data = "data"
    engines = "engines"
    profiles = "profiles"


class EngineName(StrEnum):
    """Engines by name."""

    auto = "auto"
    serial = "serial"
    wire = "wire"
    pool = "pool"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as local.lr=0.05 or tier.phone.share=3."),
]
As = Annotated[Format, typer.Option("--format", help="Print tables for people or one JSON object for programs.")]
Carrier = Annotated[EngineName | None, typer.Option("--engine", help="How tasks reach devices.")]


@app.command(epilog="Example: potluck run experiments/digits.toml --set rounds=10 --engine serial")
def run(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one the built-in digits run.")] = None,
    changes: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one under runs/.")] = None,
    engine: Carrier = None,
    format: As = Format.table,
) -> None:
    """Train a federation and keep everything in a run folder."""
    from potluck.cli import display
    from potluck.run import read_experiment
    from potluck.run import run as start

    experiment = read_experiment(file, [*(changes or ()), *([f"run.engine={engine.value}"] if engine else ())])
    with display.watching(experiment.rounds, experiment.name) as watch:
        result = start(experiment, out, watch=watch)
    display.result(result, format is Format.json)


@app.command(epilog="Example: potluck resume runs/digits-fedavg-s0 --rounds 60")
def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    rounds: Annotated[
        int | None,
        typer.Option(help="Go on to this many rounds; by default, to as many as were last asked for.", min=0),
    ] = None,
    engine: Carrier = None,
    format: As = Format.table,
) -> None:
    """Go on with a run that was stopped, as if it never had been."""
    from potluck.cli import display
    from potluck.ledger import read_run
    from potluck.run import resume as go_on

    manifest = read_run(folder).manifest
    length = int(manifest["rounds"]) if rounds is None else rounds
    with display.watching(length, str(manifest["name"])) as watch:
        result = go_on(folder, rounds=rounds, engine=engine.value if engine else None, watch=watch)
    display.result(result, format is Format.json)


@app.command(
    epilog="Example: potluck compare experiments/digits.toml --methods alllarge,fedavg:share=layerwise --seeds 0,1"
)
def compare(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one the built-in digits run.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Names, comma-separated; name:key=value sets a method's own setting.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated.")] = None,
    changes: Set = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; what is done there already is kept.")] = None,
    engine: Carrier = None,
    format: As = Format.table,
) -> None:
    """Run several methods on the same data, clients and cohorts; print a table and write one report."""
    from potluck.cli import comparing, display
    from potluck.report import compare_rows, read_record, write_report
    from potluck.run import compare as run_all
    from potluck.run import read_experiment

    experiment = read_experiment(file, [*(changes or ()), *([f"run.engine={engine.value}"] if engine else ())])
    wanted = comparing.methods(experiment, methods)
    numbers = comparing.seeds(experiment, seeds)
    folder = out or comparing.fresh(experiment.name)
    with display.comparing(experiment.rounds) as watcher:
        results = run_all(experiment, folder, wanted, numbers, watcher)
    runs = [read_record(result.folder) for result in results]
    page = write_report([result.folder for result in results], folder / "report.html", title=experiment.name)
    if format is Format.json:
        rows = compare_rows(runs)
        display.print_json({"report": str(page), "runs": [r.plain() for r in results], "rows": rows})
        return
    display.results(runs)
    display.say(f"report: {page}")


@app.command(epilog="Example: potluck report runs/digits-fedavg-s0 runs/digits-fedprox-s0 --to both.html")
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    to: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first folder.")] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Write one self-contained HTML page about one run or many."""
    from potluck.cli import comparing, display
    from potluck.report import write_report

    found = comparing.run_folders(folders)
    display.say(f"report: {write_report(found, to or folders[0] / 'report.html', title)}")


@app.command(epilog="Example: potluck export runs/digits-fedavg-s0 --tier phone --to phone_model")
def export(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Option(help="Where the model goes.")],
    tier: Annotated[str | None, typer.Option(help="Whose model; by default the largest tier's.")] = None,
    client: Annotated[str | None, typer.Option(help="A client's own model, where models live on clients.")] = None,
    server: Annotated[
        bool, typer.Option("--server", help="The server's own model, which may be larger than any tier's.")
    ] = False,
) -> None:
    """Write a tier's model as safetensors, with what is needed to load it as a plain nn.Module."""
    from potluck.cli import display
    from potluck.run import export as write

    write(folder, to, tier, client, server)
    display.say(f"wrote {to}/model.safetensors and {to}/model.json")
    display.say(f'load it with: from potluck.models import load; net = load("{to}")')


@app.command(name="list", epilog="Example: potluck list methods --format json")
def list_things(
    what: Annotated[Things, typer.Argument(help="What to list.")],
    format: As = Format.table,
) -> None:
    """List what there is: methods, models, data, engines, device profiles."""
    from potluck.cli import display, listing

    rows: list[dict[str, Any]] = listing.rows(what.value)
    if format is Format.json:
        display.print_json(rows)
        return
    display.listed(what.value, listing.shown(what.value, rows))


@app.callback(invoke_without_command=True)
def start(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Federated learning where every device brings what it can."""
    if version:
        from importlib.metadata import version as found

        print(f"potluck {found('potluck')}")
        raise typer.Exit
