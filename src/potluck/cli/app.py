"""The commands. They import the rest of the package inside, so that `--help` is instant."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from potluck.cli import completion

app = typer.Typer(
    name="potluck",
    help="Federated learning where every device brings what it can.",
    epilog="Start with: potluck run",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class ModelFormat(StrEnum):
    """How `potluck export` writes a model."""

    safetensors = "safetensors"
    pt2 = "pt2"
    onnx = "onnx"
    executorch = "executorch"


class ListTopic(StrEnum):
    """What `potluck list` can list."""

    methods = "methods"
    models = "models"
    data = "data"
    engines = "engines"
    profiles = "profiles"


class ShowTopic(StrEnum):
    """What `potluck show` can show."""

    data = "data"


class EngineName(StrEnum):
    """The engines of `potluck list engines` that simulate, and auto. `potluck server` starts the other one, remote."""

    auto = "auto"
    serial = "serial"
    wire = "wire"
    pool = "pool"
    graphs = "graphs"
    ray = "ray"


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as local.lr=0.05 or tier.phone.share=3.",
        autocompletion=completion.settings,
    ),
]
RunFolderArgument = Annotated[Path, typer.Argument(help="A run folder.", autocompletion=completion.run_folders)]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS", help="Run folders, or folders of run folders.", autocompletion=completion.folders_of_runs
    ),
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="COST=AMOUNT",
        help="Show scores at this cost, such as energy=500, in place of \\[compare]'s.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Print a table, or one JSON object for programs.")]
EngineOption = Annotated[
    EngineName | None,
    typer.Option("--engine", help="What computes the clients' work; graphs needs a GPU, ray the extra 'ray'."),
]


def _engine_changes(engine: EngineName | None) -> list[str]:
    """The settings that --engine stands for."""
    if engine is None:
        return []
    hardware = ["run.hardware=cuda"] if engine is EngineName.graphs else []  # graphs works on nothing else
    return [f"run.engine={engine.value}", *hardware]


@app.command(epilog="Example: potluck run experiments/digits.toml --set rounds=10 --engine serial")
def run(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one the built-in digits run.")] = None,
    changes: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one under runs/.")] = None,
    engine: EngineOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Train a federation and keep everything in a run folder."""
    from potluck.cli import display
    from potluck.run import read_experiment
    from potluck.run import run as start_run

    experiment = read_experiment(file, [*(changes or ()), *_engine_changes(engine)])
    with display.show_progress(experiment.rounds, experiment.name) as watch:
        result = start_run(experiment, out, watch=watch)
    display.print_result(result, format is Format.json)


@app.command(epilog="Example: potluck resume runs/digits-fedavg-s0 --rounds 60")
def resume(
    folder: RunFolderArgument,
    rounds: Annotated[
        int | None,
        typer.Option(help="Continue to this many rounds; by default, to the number last asked for.", min=0),
    ] = None,
    engine: EngineOption = None,
    format: FormatOption = Format.table,
) -> None:
    """Continue a run that was stopped; the result is the same as without the stop."""
    from potluck.cli import display
    from potluck.ledger import planned_rounds, read_run
    from potluck.run import resume as continue_run

    manifest = read_run(folder).manifest
    length = planned_rounds(folder, manifest) if rounds is None else rounds
    with display.show_progress(length, str(manifest.get("name", folder.name))) as watch:
        result = continue_run(folder, rounds=rounds, engine=engine.value if engine else None, watch=watch)
    display.print_result(result, format is Format.json)


@app.command(
    epilog="Example: potluck compare experiments/digits.toml --methods alllarge,fedavg:share=layerwise --seeds 0,1"
)
def compare(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one the built-in digits run.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names, comma-separated: of the file's methods, with their settings there, or of others; "
            "name:key=value sets a method's own setting.",
            autocompletion=completion.method_list,
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, comma-separated.")] = None,
    changes: SetOption = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this variant of the file's \\[compare.variants], not all of them."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Run every method with each of these values of a setting."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Let every method choose among these values by validation score, before it runs: local.lr=0.01,0.1; "
            "fedprox.mu=0.1,1 is for one method.",
        ),
    ] = None,
    tune_seeds: Annotated[str | None, typer.Option(help="Seeds of the runs that choose; by default 1000.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the runs; finished runs in it are kept.")] = None,
    engine: EngineOption = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time, each with its share of the cores.", min=1)
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Run several methods on the same data, clients and cohorts; print a table and write one report.

    All runs are checked before the first one starts. A run that diverges or fails is marked, and the others go on; the
    exit code is then 8. The same command with the same --out goes on where it stopped, and repeats nothing.
    """
    from potluck.cli import arguments, display
    from potluck.report import compare_rows, read_record, write_report
    from potluck.run import FailedRun, read_experiment
    from potluck.run import compare as run_comparison
    from potluck.run.comparison import refuse_unfinished
    from potluck.run.session import fresh_path

    experiment = read_experiment(file, [*(changes or ()), *_engine_changes(engine)])
    experiment = arguments.with_variants(experiment, variant or ())
    experiment = arguments.with_grids(experiment, vary or (), tune or (), tune_seeds)
    wanted = arguments.comparison_methods(experiment, methods)
    numbers = arguments.comparison_seeds(experiment, seeds)
    folder = out or fresh_path(experiment.name, "compare")
    with display.show_comparison_progress(experiment.rounds) as watcher:
        results = run_comparison(experiment, folder, wanted, numbers, watcher, jobs=jobs, note=display.print_note)
    begun = [result.folder for result in results if (result.folder / "manifest.json").exists()]
    if not begun:
        refuse_unfinished(results)
    runs = [read_record(path) for path in begun]
    page = write_report(begun, folder / "report.html", title=experiment.name)
    if format is Format.json:
        failed = [result.plain() for result in results if isinstance(result, FailedRun)]
        done = [result.plain() for result in results if not isinstance(result, FailedRun)]
        display.print_json({"report": str(page), "runs": done, "failed": failed, "rows": compare_rows(runs)})
    else:
        display.print_comparison(runs)
        display.print_line(f"report: {page}")
    refuse_unfinished(results)


@app.command(epilog="Example: potluck report runs/digits-fedavg-s0 runs/digits-fedprox-s0 --to both.html")
def report(
    folders: RunsArgument,
    to: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first folder.")] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    budget: BudgetOption = None,
) -> None:
    """Write one self-contained HTML page about one run or many."""
    from potluck.cli import arguments, display
    from potluck.report import write_report

    found, limits = arguments.run_folders(folders), arguments.budget(budget or ())
    display.print_line(f"report: {write_report(found, to or folders[0] / 'report.html', title, limits)}")


@app.command(epilog="Example: potluck export runs/digits-fedavg-s0 --tier phone --to phone_model")
def export(
    folder: Annotated[
        Path,
        typer.Argument(help="A run folder; at a node, its kit or its folder.", autocompletion=completion.run_folders),
    ],
    to: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    tier: Annotated[
        str | None, typer.Option(help="The tier whose model to write; by default the largest tier.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="The client whose model to write, if models live on clients.")
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="Write the server's own model, which may be larger than any tier's.")
    ] = False,
    format: Annotated[
        ModelFormat,
        typer.Option(
            help="safetensors: weights, and a torch.export graph beside them; pt2: the graph alone; onnx; executorch."
        ),
    ] = ModelFormat.safetensors,
    train: Annotated[
        bool, typer.Option("--train", help="With --format executorch: write a graph for training on devices, too.")
    ] = False,
) -> None:
    """Write the model of a tier into a folder that runs without Potluck (predict.py); at a node, the node's own."""
    from potluck.cli import arguments, display
    from potluck.run.exporting import export_model

    if node := arguments.find_node_folder(folder):
        from potluck.federation.node_export import export_node, refuse_choices

        refuse_choices(tier, client, server, format.value, train)
        export_node(node, to)
        display.print_line(f"wrote {to}/model.safetensors and {to}/model.json")
    else:
        display.print_export(export_model(folder, to, tier, client, server, format=format.value, train=train), to)
    if format is ModelFormat.safetensors:
        display.print_line(f'load it with: from potluck.models import load; net = load("{to}")')


@app.command(name="verify-device", epilog="Example: potluck verify-device phone_model")
def verify_device(
    folder: Annotated[Path, typer.Argument(help="A folder that `potluck export --format executorch --train` wrote.")],
    lr: Annotated[
        float | None, typer.Option(help="The learning rate; by default, one at which rounding does not count.")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="module:factory", help="The code of the network, if it is one of your own.")
    ] = "",
    format: FormatOption = Format.table,
) -> None:
    """Train ten steps with ExecuTorch and with PyTorch on the sample rows, and compare parameters (within 1e-5).

    If they differ, the exit code is 9.
    """
    from potluck.cli import display
    from potluck.run.exporting import TrainingDiffers
    from potluck.run.exporting import verify_device as verify

    found = verify(folder, lr, model)
    if format is Format.json:
        display.print_json(found.plain())
    else:
        display.print_training_check(found)
    if found.wrong:
        raise TrainingDiffers(f"{folder}: {found.verdict}")


@app.command(name="list", epilog="Example: potluck list methods --format json")
def list_topic(
    what: Annotated[ListTopic, typer.Argument(help="What to list.")],
    format: FormatOption = Format.table,
) -> None:
    """List methods, models, data sets, engines or device profiles."""
    from potluck.cli import display, listing

    rows: list[dict[str, Any]] = listing.rows(what.value)
    if format is Format.json:
        display.print_json(rows)
        return
    display.print_rows(what.value, listing.table_rows(what.value, rows))


@app.command(epilog="Example: potluck show data experiments/digits.toml --set data.alpha=0.1 --to data.html")
def show(
    what: Annotated[ShowTopic, typer.Argument(help="What to show.")],
    file: Annotated[
        Path | None, typer.Argument(help="A TOML file or a run folder; without one the built-in digits run.")
    ] = None,
    changes: SetOption = None,
    to: Annotated[Path | None, typer.Option(help="Also draw it: a page (.html) or a picture (.svg).")] = None,
    format: FormatOption = Format.table,
) -> None:
    """Show who holds what: the rows of each label that clients have, before anything is trained."""
    from potluck.cli.showing import show_data

    show_data(file, changes or [], to, format is Format.json)


@app.command(epilog="Example: potluck explain local.lr")
def explain(
    name: Annotated[
        str,
        typer.Argument(
            help="A setting, a section, a method, a model or a file; without one, the sections are listed.",
            show_default=False,
            autocompletion=completion.explained,
        ),
    ] = "",
    format: FormatOption = Format.table,
) -> None:
    """Say what a setting means: its type, its default, and what it does."""
    from potluck.cli import explanations

    explanations.explain(name, format is Format.json)


@app.command(name="check-method", epilog="Example: potluck check-method my_method:MyMethod --set mu=0.05")
def check_method(
    method: Annotated[
        str,
        typer.Argument(
            metavar="module:Class",
            help="Your own method, or one of ours by name.",
            autocompletion=completion.method_names,
        ),
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the method's own.")
    ] = None,
    format: FormatOption = Format.table,
) -> None:
    """Check that a method keeps every promise that methods make; takes a few seconds."""
    from potluck.cli import arguments, display
    from potluck.run.contract import BrokenPromise
    from potluck.run.contract import check_method as check

    own = arguments.method_settings(changes or ())
    verdicts = check(method, own, None if format is Format.json else display.print_verdict)
    if format is Format.json:
        display.print_json([{"promise": each.promise, "broken": each.broken or None} for each in verdicts])
    broken = sum(bool(each.broken) for each in verdicts)
    if broken:
        raise BrokenPromise(f"{method} breaks {broken} of {len(verdicts)} promises.")


@app.callback(invoke_without_command=True)
def potluck(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[  # `main` has read it already; it is here for --help
        bool, typer.Option("--debug", help="Show the traceback of an error; also with POTLUCK_DEBUG=1.")
    ] = False,
) -> None:
    """Federated learning where every device brings what it can."""
    if version:
        from importlib.metadata import version as installed_version

        print(f"potluck {installed_version('potluck')}")
        raise typer.Exit
