"""Runs, resumed runs and comparisons, as Python starts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.front.compared import ComparisonResult
from potluck.front.given import (
    as_paths,
    gather,
    known_objects,
    method_table,
    model_table,
    short_label,
    source_of,
    with_local,
)

if TYPE_CHECKING:
    from potluck.run import Experiment, FailedRun, Result, Watch


def run(
    experiment: str | Path | Mapping[str, Any] | Experiment | None = None,
    out: str | Path | None = None,
    *,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    set: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Trains a federation and keeps everything in a run folder; returns its result.

        >>> result = pl.run()                                       # the built-in experiment
        >>> result = pl.run("experiments/digits.toml", set={"rounds": 10, "local.lr": 0.05})
        >>> result = pl.run({"rounds": 5, "data": {"clients": 20}}, data=(x, y), model=MyNet, method=MyMethod(mu=0.1))

    - experiment: the path of a TOML file, a mapping with the same keys, or None for the built-in digits.
    - out: the run folder; by default a new one under runs/.
    - data: arrays of your own: (x, y), (x, y, user), a mapping with x, y, user, x_test, y_test, names, a torch
      Dataset, or a Source of `pl.data`.
    - model: a network of your own, as a class or function that gets `classes` and, if it asks for it, `input`; or a
      name or a table as under [model]. A table may hold the class: {"name": MyNet, "channels": 8}.
    - method: a name such as "fedprox", a table {"name": "fedprox", "mu": 0.1}, a class or an object of your own.
    - set: settings to change, by the names that `potluck run --set` knows: {"local.lr": 0.05, "tier.tv.share": 3}.
    - watch: an object with some of the functions start, round, warn and end (`pl.Watch`), called while it runs.
    - progress: True shows progress, False shows none; by default it shows in a terminal and in a notebook.

    Ctrl-C, or the stop button of a notebook, saves the run; `pl.resume` continues it.
    """
    from potluck.front.progress import progress_of_run
    from potluck.run import session

    given = gather(experiment, data=data, model=model, method=method, changes=set)
    found = given.experiment
    path = Path(out) if out is not None else session.fresh_folder(found)
    with (
        progress_of_run(progress, found.rounds, found.name, watch) as watched,
        _go_on_with(_resume_call(path, given.objects)),
    ):
        result = session.run(found, path, source=given.source, method=given.method, watch=watched)
    return dataclasses.replace(result, given=given.objects)


def resume(
    run: str | Path | Result | FailedRun,
    *,
    rounds: int | None = None,
    engine: str | None = None,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Continues a run that was stopped; the result is the same as without the stop.

        >>> result = pl.resume("runs/digits-fedavg-s0")
        >>> result = pl.resume(result, rounds=60)                   # twenty rounds more than its forty

    - run: the run folder, or what `pl.run` returned.
    - rounds: continue to this many rounds in all; by default, to the number last asked for.
    - engine: what computes the clients' work, if it is to change: serial, pool, graphs, ray.
    - data: the arrays that the run began with, if it was given arrays.
    - model, method: only if they were defined inside a function; otherwise the run folder names them.
    - watch, progress: as in `pl.run`.
    """
    from potluck.front.progress import progress_of_run
    from potluck.ledger import planned_rounds, read_run
    from potluck.run import session

    [path] = as_paths(run)
    manifest, kept = read_run(path).manifest, getattr(run, "given", {})
    if model is not None:
        model_table(model)  # registers it
    again = kept.get("method") if method is None else _same_method(method, manifest, path)
    objects = known_objects(source=kept.get("source") if data is None else source_of(data), method=again)
    length, name = planned_rounds(path, manifest) if rounds is None else rounds, str(manifest.get("name", path.name))
    with progress_of_run(progress, length, name, watch) as watched, _go_on_with(_resume_call(path, objects)):
        result = session.resume(path, rounds=rounds, engine=engine, **objects, watch=watched)
    return dataclasses.replace(result, given=objects)


def compare(
    methods: Iterable[Any] | None = None,
    experiment: str | Path | Mapping[str, Any] | Experiment | None = None,
    out: str | Path | None = None,
    *,
    seeds: Iterable[int] | None = None,
    variants: Iterable[str] | None = None,
    data: Any = None,
    model: Any = None,
    set: Mapping[str, Any] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    tune_seeds: Iterable[int] | None = None,
    jobs: int | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> ComparisonResult:
    """Runs several methods on the same data, clients and cohorts; returns all results, which print as a table.

        >>> c = pl.compare(["fedavg", {"name": "fedprox", "mu": 0.1}, MyMethod()], seeds=[0, 1, 2], out="runs/first")
        >>> c.frame().groupby("method")["score"].max()
        >>> print(c.table("latex")); c.plot("learning", "curves.pdf"); c.report()

    - methods: names, tables with a name and settings, classes or objects of your own; None: those under [compare]. A
      name alone means the methods of that name under [compare], with their settings there, if there are any.
    - experiment, data, model, set, watch, progress: as in `pl.run`; the watch hears of every run.
    - out: the folder of the runs; by default a new one under runs/. The same call with the same `out` repeats no
      run: it goes on where it stopped.
    - seeds: every method runs with each; by default those under [compare], or the experiment's own.
    - variants: names under [compare.variants]; by default all of them.
    - tune: values among which every method chooses by validation score, on `tune_seeds`, before it runs:
      {"local.lr": [0.01, 0.03, 0.1]}.
    - jobs: how many runs go on at the same time, in processes of their own.

    A run that diverges or fails is a `FailedRun` in the list, and the others go on.
    """
    from potluck.cli import arguments, display
    from potluck.front.progress import progress_of_comparison
    from potluck.run import comparison, session

    given = gather(experiment, data=data, model=model, method=None, changes=set)
    found = arguments.with_variants(given.experiment, [variants] if isinstance(variants, str) else variants or ())
    found = _with_grid(found, tune, tune_seeds)
    wanted = _methods(found, methods)
    folder = Path(out) if out is not None else session.fresh_path(found.name, "compare")
    numbers = arguments.comparison_seeds(found, None) if seeds is None else comparison.whole_seeds(seeds, "seeds")
    again = f"the same call with out={str(folder)!r}"
    with progress_of_comparison(progress, found.rounds, watch) as watcher, _go_on_with(again):
        runs = comparison.compare(
            found,
            folder,
            wanted,
            numbers,
            lambda label, seed: watcher(short_label(label), seed),
            jobs=jobs,
            source=given.source,
            note=display.print_note,
        )
    return ComparisonResult([_with_short_label(one) for one in runs], folder)


def _with_short_label(outcome: Result | FailedRun) -> Result | FailedRun:
    from potluck.run import FailedRun

    if isinstance(outcome, FailedRun):
        return dataclasses.replace(outcome, label=short_label(outcome.label))
    return outcome


def _methods(experiment: Experiment, methods: Iterable[Any] | None) -> list[Any]:
    """The methods to compare: tables, and objects that settings cannot name."""
    from potluck.cli import arguments
    from potluck.core import SettingsError

    if methods is None:
        return list(arguments.comparison_methods(experiment, None))
    several = [methods] if isinstance(methods, str | Mapping) or not isinstance(methods, Iterable) else methods
    chosen = (arguments.chosen_methods(experiment, {"name": m}) if isinstance(m, str) else [m] for m in several)
    pairs = [method_table(method, experiment.method) for some in chosen for method in some]
    if not pairs:
        raise SettingsError("nothing to compare: name some methods.")
    return [table if object_ is None else with_local(object_, experiment) for table, object_ in pairs]


def _with_grid(
    experiment: Experiment, tune: Mapping[str, Sequence[Any]] | None, tune_seeds: Iterable[int] | None
) -> Experiment:
    from potluck.core import SettingsError
    from potluck.run import config
    from potluck.run.comparison import whole_seeds

    for key, values in (tune or {}).items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise SettingsError(f"tune {key!r} = {values!r}: give a list of values, such as [0.01, 0.1].")
    told: dict[str, Any] = {} if tune is None else {"compare.tune": {key: list(values) for key, values in tune.items()}}
    if tune_seeds is not None:
        told["compare.tune_seeds"] = whole_seeds(tune_seeds, "tune_seeds")
    return config.apply_changes(experiment, told, "tune") if told else experiment


def _same_method(method: Any, manifest: Mapping[str, Any], path: Path) -> Any:
    """The method object to go on with; None if the settings of the run name it."""
    from potluck.core import SettingsError
    from potluck.run import config, toml

    table, object_ = method_table(method, {})
    if object_ is None and table["name"] != manifest.get("method"):
        raise SettingsError(f"{path} ran {manifest.get('method')}, not {table['name']}; leave `method` out.")
    plain, _ = toml.read(path / "settings.toml")
    return with_local(object_, config.experiment(plain))


@contextmanager
def _go_on_with(call: str) -> Iterator[None]:
    """Says in Python's words how to go on after an interruption."""
    from potluck.run import Interrupted

    try:
        yield
    except Interrupted as stop:
        when = str(stop).partition("; go on with")[0]
        raise Interrupted(f"{when}; go on with: {call}") from None


def _resume_call(path: Path, objects: Mapping[str, Any]) -> str:
    again = "".join(f", {'data' if name == 'source' else name}=..." for name in objects)
    return f"pl.resume({str(path)!r}{again})"
