"""Several methods over several seeds, on the same data, clients and cohorts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core import SettingsError
from potluck.ledger import read_run
from potluck.run import door
from potluck.run.assemble import assemble
from potluck.run.interrupts import Interrupted
from potluck.run.loop import Watch
from potluck.run.session import Result, mark, resume, run
from potluck.run.settings import Experiment


def compare(
    experiment: Experiment,
    out: Path,
    methods: Sequence[Mapping[str, Any]],
    seeds: Iterable[int],
    watcher: Callable[[str, int], Watch],
) -> list[Result]:
    """Runs several methods over several seeds on the same data, clients and cohorts; each in its own folder.

    A run that is already there and done is not run again; one that was stopped is resumed.
    """
    for method in methods:
        door.method(method, experiment.local, "methods")  # all of them, before the first one runs
    plans = [(method, experiment.with_method(method, seed)) for seed in seeds for method in methods]
    results = []
    try:
        for method, one in plans:
            path = out / f"{slug(method)}-s{one.seed}"
            results.append(_run_or_resume(one, path, watcher(_label(method), one.seed)))
    except KeyboardInterrupt:
        done = f"interrupted with {len(results)} runs done"
        again = f"go on with: the same command and --out {shlex.quote(str(out))}"
        raise Interrupted(f"{done}; {again}") from None
    return results


def _run_or_resume(experiment: Experiment, path: Path, watch: Watch) -> Result:
    if not (path / "manifest.json").exists():
        return run(experiment, path, watch=watch)
    there = read_run(path).manifest
    if there["mark"] != mark(assemble(experiment)) or int(there.get("rounds", 0)) > experiment.rounds:
        raise SettingsError(f"{path} holds a run with other settings than were asked for; choose another --out.")
    return resume(path, rounds=experiment.rounds, watch=watch)


def _label(method: Mapping[str, Any]) -> str:
    own = ", ".join(f"{key}={value}" for key, value in method.items() if key != "name")
    return f"{method['name']}" + (f" ({own})" if own else "")


def slug(method: Mapping[str, Any]) -> str:
    """A method and its own settings as a folder name."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", _label(method)).strip("_")
