"""Comparison of several methods over several seeds, on the same data, clients and cohorts."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core import QuorumError, SettingsError, UserError
from potluck.ledger import planned_rounds, read_run
from potluck.run import config
from potluck.run.assemble import assemble
from potluck.run.cluster_places import ClusterPlaces
from potluck.run.interrupts import Interrupted
from potluck.run.loop import ProgressListener
from potluck.run.places import LocalPlaces, Places
from potluck.run.result import FailedRun, Result
from potluck.run.scheduler import Plan, Scheduler, fault_round
from potluck.run.session import mark, resume, run
from potluck.run.settings import Experiment


class UnfinishedComparison(UserError):
    """A comparison in which some runs have no result."""

    exit_code = 8


def compare(
    experiment: Experiment,
    out: Path,
    methods: Sequence[Mapping[str, Any]],
    seeds: Iterable[int],
    watcher: Callable[[str, int], ProgressListener],
    *,
    jobs: int | None = None,
    places: Places | None = None,
) -> list[Result | FailedRun]:
    """Runs several methods over several seeds on the same data, clients and cohorts; each run has its own folder.

    If the experiment has variants, every method runs under each variant, unless `only` lists other methods for it.
    `changes` has settings of its own for a method. A finished run is not repeated; an interrupted run is resumed. A run
    that diverges or lacks clients is marked in its manifest, and the others go on. If it diverged, it is not repeated.

    With `jobs` above 1 (by default compare.jobs), that many runs go on at the same time, each in a process of its own;
    `places` may carry them out elsewhere. With run.engine = "ray", whole runs are spread over the cluster, as many at
    once as it has room for, unless `jobs` is 1.
    """
    plans = [
        Plan(label, one, out / f"{slug(label)}-s{one.seed}")
        for label, one in plan_runs(experiment, methods, list(seeds))
    ]
    places = places or _places(experiment, plans, out, jobs)
    outcomes: dict[int, Result | FailedRun] = {}
    try:
        if places is None:
            for number, plan in enumerate(plans):
                outcomes[number] = _run_or_mark(plan, watcher(plan.label, plan.experiment.seed))
        else:
            watches = [watcher(plan.label, plan.experiment.seed) for plan in plans]
            Scheduler(plans, places, watches, outcomes).run()
    except KeyboardInterrupt:
        done = f"interrupted with {len(outcomes)} runs done"
        again = f"go on with: the same command and --out {shlex.quote(str(out))}"
        raise Interrupted(f"{done}; {again}") from None
    return [outcomes[number] for number in range(len(plans))]


def _places(experiment: Experiment, plans: Sequence[Plan], out: Path, jobs: int | None) -> Places | None:
    """Where several runs go on at once; None: this process runs one after the other."""
    wanted = experiment.compare.jobs if jobs is None else jobs
    if experiment.run.engine != "ray":
        return _local_places(plans, wanted)
    if jobs == 1 or len(plans) == 1:  # then all workers of the cluster share in one run
        return None
    return ClusterPlaces(experiment, out, None if wanted == 1 else wanted)


def _local_places(plans: Sequence[Plan], jobs: int) -> LocalPlaces | None:
    """Processes for several runs at once; None if one at a time is enough, which this process runs itself."""
    if jobs < 1:
        raise SettingsError(f"jobs = {jobs} is below 1.")
    if min(jobs, len(plans)) == 1:
        return None
    if lost := [name for plan in plans if (name := str(plan.experiment.method["name"])).startswith("__main__:")]:
        raise SettingsError(
            f"method '{lost[0]}' is in the program that is running, which other processes cannot import; "
            "move it to a file of its own, or leave jobs out."
        )
    return LocalPlaces(min(jobs, len(plans)))


def plan_runs(
    experiment: Experiment, methods: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> list[tuple[str, Experiment]]:
    """All runs with their labels. All are checked before the first one starts."""
    found = []
    for name, own in experiment.compare.changes.items():
        config.method_class(name, "compare.changes: ")
        _refuse_method_changes(own, f"compare.changes '{name}'")
    for variant, changes in (experiment.compare.variants or {"": ()}).items():
        where = f"compare.variants '{variant}'"
        _refuse_method_changes(changes, where)
        base = (
            dataclasses.replace(config.apply_changes(experiment, changes, where), variant=variant)
            if variant
            else experiment
        )
        for method in methods:
            config.method(method, base.local, "methods")
        chosen = [method for method in methods if _runs_under(variant, method, experiment)]
        changed = {
            name: config.apply_changes(base, own, f"compare.changes '{name}'")
            for name, own in experiment.compare.changes.items()
        }
        for seed in seeds:
            found += [
                (_label(method, variant), changed.get(str(method["name"]), base).with_method(method, seed))
                for method in chosen
            ]
    _refuse_idle(methods, [one for _, one in found])
    folders = {(slug(label), one.seed) for label, one in found}
    if len(folders) < len(found):
        raise SettingsError("two runs of this comparison would have the same name; name each variant in its own way.")
    return found


def _refuse_method_changes(changes: Iterable[str], where: str) -> None:
    """Refuses changes of the method's settings: each method of a comparison has its own, which would replace them."""
    if lost := [change for change in changes if change.strip().startswith("method.")]:
        raise SettingsError(
            f"{where} changes '{lost[0].split('=')[0].strip()}', but every method of a comparison has its own "
            'settings. Give it in the list of methods: {name = "...", ...}.'
        )


def _runs_under(variant: str, method: Mapping[str, Any], experiment: Experiment) -> bool:
    only = experiment.compare.only
    return variant not in only or method["name"] in only[variant]


def _refuse_idle(methods: Sequence[Mapping[str, Any]], found: Sequence[Experiment]) -> None:
    """Refuses a method that would run under no variant."""
    ran = {str(one.method["name"]) for one in found}
    if idle := [str(method["name"]) for method in methods if method["name"] not in ran]:
        raise SettingsError(f"method '{idle[0]}' runs under no variant; add it to one of the lists of compare.only.")


def _run_or_mark(plan: Plan, watch: ProgressListener) -> Result | FailedRun:
    return result_or_none(plan.experiment, plan.folder, watch) or plan.failed_as_recorded()


def result_or_none(experiment: Experiment, path: Path, watch: ProgressListener) -> Result | None:
    """The result of a run that is started or resumed; None if it diverged or lacked clients, as its manifest tells."""
    try:
        return _run_or_resume(experiment, path, watch)
    except QuorumError:
        return None


def _run_or_resume(experiment: Experiment, path: Path, watch: ProgressListener) -> Result | None:
    """The result of a run; None if it diverged before, and would again."""
    if not (path / "manifest.json").exists():
        return run(experiment, path, watch=watch)
    there = read_run(path).manifest
    if there["mark"] != mark(assemble(experiment)) or planned_rounds(path, there) > experiment.rounds:
        raise SettingsError(f"{path} holds a run with other settings than were asked for; choose another --out.")
    if there.get("status") == "diverged":
        watch.warn(f"diverged in round {fault_round(there)}; to run it again, delete {path}")
        return None
    return resume(path, rounds=experiment.rounds, watch=watch)


def refuse_unfinished(results: Sequence[Result | FailedRun]) -> None:
    """Raises an error that names the runs without a result, if there are any."""
    failed = [one for one in results if isinstance(one, FailedRun)]
    if not failed:
        return
    names = "; ".join(f"{one.label}, seed {one.seed}, {one.how}" for one in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    verb = "has" if len(failed) == 1 else "have"
    raise UnfinishedComparison(f"{len(failed)} of {len(results)} runs {verb} no result: {names}{more}.")


def _label(method: Mapping[str, Any], variant: str) -> str:
    own = ", ".join(f"{key}={value}" for key, value in method.items() if key != "name")
    return f"{method['name']}" + (f" ({own})" if own else "") + (f", {variant}" if variant else "")


def slug(label: str) -> str:
    """A run's label as a folder name."""
    return re.sub(r"[^\w.=+-]+", "_", label).strip("_")
