"""The commands about devices: measure, fit-fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.app import SetOption
from potluck.cli.boarding import app

if TYPE_CHECKING:
    from potluck.data import Source
    from potluck.run import Experiment
    from potluck.run.measuring import Measurement

__all__ = ["app"]

PAUSE = 5.0
"""Seconds between two lines of progress where there is no terminal."""


@app.command(epilog="Example: potluck measure experiments/digits.toml --to my.toml --down 50 --up 20")
def measure(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL|FILE]",
            help="An experiment's TOML file, or the name of a model (`potluck list models`); without one, the digits.",
            show_default=False,
        ),
    ] = "",
    to: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.toml"),
    changes: SetOption = None,
    input: Annotated[
        str, typer.Option(help="For a MODEL: the shape of one input, comma-separated; 3,32,32, or 64 tokens.")
    ] = "",
    classes: Annotated[int, typer.Option(help="For a MODEL: the number of classes.", min=2)] = 10,
    threads: Annotated[
        int, typer.Option(help="Threads of a training: 1, as in every simulation, or as many as the device has.", min=1)
    ] = 1,
    seconds: Annotated[
        float, typer.Option(help="The longest time to measure, unless times settle before.", min=0, max=86400)
    ] = 60.0,
    down: Annotated[float | None, typer.Option(help="The device's download, in Mbit/s.", min=0.001)] = None,
    up: Annotated[float | None, typer.Option(help="The device's upload, in Mbit/s.", min=0.001)] = None,
    like: Annotated[
        str, typer.Option(help="The built-in profile whose watts it gets, and whose link without --down and --up.")
    ] = "laptop",
) -> None:
    """Measure training steps of a network in several widths and depths here; write a profile for tier.profile."""
    from potluck.cli import display
    from potluck.fleet import profile
    from potluck.run import measuring
    from potluck.run.devices import write_profile

    profile(like, "--like")
    experiment, source = choose_network(what, changes or (), input, classes)
    with _progress(str(experiment.model.get("name"))) as told:
        found = measuring.measure(
            *(experiment, source, told), threads=threads, seconds=seconds, like=like, down=down, up=up
        )
    write_profile(found.profile, to)
    _print_measurement(found)
    display.print_line(f'wrote {to}; use it with: [[tier]] profile = "{to}"')


@app.command(name="fit-fleet", epilog="Example: potluck fit-fleet phones.json --to fleet.json --like pixel5")
def fit_fleet(
    file: Annotated[Path, typer.Argument(help="A JSON list of devices and traces (docs/devices.md).")],
    to: Annotated[Path, typer.Option(help="The fleet to write.")] = Path("fleet.json"),
    like: Annotated[str, typer.Option(help="The built-in profile that a score is set equal to.")] = "pixel5",
    score: Annotated[
        float | None,
        typer.Option(help="The score of that device; by default, the profile is the median device's.", min=1e-12),
    ] = None,
) -> None:
    """Fit a fleet to a list of devices: memory, speed and availability; nothing else of the list is kept."""
    from potluck.cli import display
    from potluck.fleet import fit_devices, profile
    from potluck.run.devices import read_list, write_fit

    fit = fit_devices(read_list(file), profile(like, "--like"), score)
    write_fit(fit, to)
    display.print_line(
        f"{fit.devices} devices: memory {fit.memory_gb:.3g} GB (x/ {_factor(fit.memory_spread)}), "
        f"{fit.gflops:.3g} GFLOP/s (x/ {_factor(fit.gflops_spread)}), correlation {fit.correlation:.2f}"
    )
    if fit.available:
        low, high = min(fit.available), max(fit.available)
        display.print_line(f"available: {low:.0%} to {high:.0%} by the hour, in blocks of {fit.hold_hours:.2g} h")
    display.print_line(f'wrote {to}; use it with: [fleet] file = "{to}"')


def choose_network(
    what: str, changes: Sequence[str] = (), input: str = "", classes: int = 10
) -> tuple[Experiment, Source]:
    """The experiment that a file or the name of a model stands for, and rows to train on."""
    from potluck.data import load
    from potluck.run import read_experiment
    from potluck.run.measuring import random_source

    if not what or _is_file(what):
        experiment = read_experiment(Path(what) if what else None, changes)
        return experiment, load(experiment.data)
    experiment = _model_experiment(what, changes)
    return experiment, random_source(experiment, _shape(input, experiment), classes)


def _factor(spread: float) -> str:
    """A standard deviation of logarithms, as a factor."""
    from math import exp

    return f"{exp(spread):.2f}"


def _is_file(what: str) -> bool:
    return what.endswith(".toml") or Path(what).is_file()


def _model_experiment(name: str, changes: Sequence[str]) -> Experiment:
    from potluck.run.config import apply_changes, experiment

    made = experiment({"name": name, "model": {"name": name}, "local": {"epochs": 1, "batch": 32, "momentum": 0.9}})
    return apply_changes(made, changes, f"potluck measure {name}")


def _shape(text: str, experiment: Experiment) -> list[int]:
    from potluck.core import SettingsError
    from potluck.models.families import find

    if not text:
        return [64] if find(str(experiment.model["name"]))[0].tokens else [3, 32, 32]
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(f"--input {text}: write whole numbers with commas, such as 3,32,32.") from None


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, str], None]]:
    """Shows what is measured now: a line that changes on a terminal, plain lines elsewhere."""
    from potluck.cli import display

    if not display.ERR.is_terminal:
        shown = [-PAUSE]

        def tell(passes: int, line: str) -> None:
            if time.monotonic() - shown[0] >= PAUSE:
                shown[0] = time.monotonic()
                display.print_note(f"{title}: pass {passes}, {line}")

        yield tell
        return
    with display.ERR.status(f"{title}: starting") as status:
        yield lambda passes, line: status.update(f"{title}: pass {passes}, {line}")


def _print_measurement(found: Measurement) -> None:
    """Prints every size that was measured."""
    from potluck.cli import display
    from potluck.report import units

    for line in found.skipped:
        display.print_note(f"note: {line}")
    rows = [
        {
            "width": f"{step.width:g}",
            "depth": "" if step.depth is None else str(step.depth),
            "FLOPs": units.format_flops(step.flops),
            "a step": units.format_seconds(step.seconds),
            "GFLOP/s": f"{step.flops / step.seconds / 1e9:.3g}",
            "peak memory": units.format_bytes(step.memory or None),
        }
        for step in sorted(found.profile.step, key=lambda step: -step.flops)
    ]
    display.print_rows("measure", rows)
    profile = found.profile
    plural = "s" if profile.threads > 1 else ""
    clock = "processor time" if profile.threads == 1 else "seconds on the wall"
    display.print_line(
        f"{profile.machine}: {profile.threads} thread{plural}, batches of {profile.step[0].batch}, the fastest step of "
        f"{found.passes} passes ({clock})."
    )
    if not found.settled:
        display.print_note("note: times had not settled; --seconds allows more, and an idle machine is better.")
