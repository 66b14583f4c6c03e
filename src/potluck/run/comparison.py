"""Comparison of several methods over several seeds, on the same data, clients and cohorts."""

from __future__ import annotations

import dataclasses
import operator
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core import QuorumError, SettingsError, UserError
from potluck.data import Source
from potluck.ledger import RunFolder, read_run
from potluck.run import toml
from potluck.run.assemble import assemble
from potluck.run.child import stops_all
from potluck.run.cluster_places import ClusterPlaces
from potluck.run.interrupts import Interrupted
from potluck.run.places import LocalPlaces, Places
from potluck.run.planning import ComparedMethod, Fault, Plan, find_entries, refuse
from potluck.run.prechecks import check_plans, refuse_other_run
from potluck.run.result import FailedRun, Result, reason_of
from potluck.run.scheduler import Scheduler, failed_as_recorded, failed_by, fault_round
from potluck.run.session import resume, run, settings_of, with_own_data
from potluck.run.settings import Experiment
from potluck.run.tuning import (
    Candidate,
    Choice,
    all_failed,
    candidates,
    check_grid,
    choose,
    with_choice,
    write_choices,
)
from potluck.run.watch import Silent, Watch, whole


class UnfinishedComparison(UserError):
    """A comparison in which some runs have no result."""

    exit_code = 8


def compare(
    experiment: Experiment,
    out: Path,
    methods: Sequence[Any],
    seeds: Iterable[int],
    watcher: Callable[[str, int], Watch] | None = None,
    *,
    jobs: int | None = None,
    places: Places | None = None,
    source: Source | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[Result | FailedRun]:
    """Runs several methods over several seeds on the same data, clients and cohorts; each run has its own folder.

    A method is a table with its name and settings, or an object. If the experiment has variants, every method runs
    under each variant, unless `only` lists other methods for it. `changes` has settings of its own for a method.

    All runs are checked before the first one starts, and all that is wrong is told at once; `note` hears warnings. With
    compare.tune, every method first chooses its settings by validation score, on seeds of their own; those runs are in
    the folder tune. A finished run is not repeated; an interrupted run is resumed. A run that diverges, lacks clients
    or ends with an error is marked in its manifest, and the others go on; only an interruption and a full disk end the
    comparison. If a run diverged, it is not repeated.

    With `jobs` above 1 (by default compare.jobs), that many runs go on at the same time, each in a process of its own;
    `places` may carry them out elsewhere. With run.engine = "ray", whole runs are spread over the cluster, as many at
    once as it has room for, unless `jobs` is 1. `source` is data of your own, which stays in this process.
    """
    wanted = whole_seeds(seeds, "seeds")
    if source is not None:
        experiment = with_own_data(experiment)
    entries, faults = find_entries(experiment, methods)
    if faults or not experiment.compare.tune:
        plans = _plans(entries, wanted, out)
        runs = PlannedRuns(plans, watcher, jobs, places, source)
        _tell(check_plans(plans, source, faults), note)
        return runs.carry_out(out)
    check_grid(experiment, entries, wanted)
    every = _candidates(entries, experiment, wanted[0])
    tried = _plans([one.chooser for some in every for one in some], experiment.compare.tune_seeds, out / TUNE)
    choosing = PlannedRuns(tried, watcher, jobs, places, source)
    shown = _plans([some[0].entry for some in every], wanted, out)
    _tell(check_plans([*tried, *shown], source), note)
    by_plan = dict(zip(((plan.label, plan.experiment.seed) for plan in tried), choosing.carry_out(out), strict=True))
    choices = [
        choose(
            entry,
            [(one, [by_plan[one.chooser.label, seed] for seed in experiment.compare.tune_seeds]) for one in some],
            experiment.compare.tune,
        )
        for entry, some in zip(entries, every, strict=True)
    ]
    write_choices(out, choices)
    return _run_chosen(entries, choices, wanted, out, PlannedRuns([], watcher, jobs, None, source))


TUNE = "tune"
"""The folder of the runs that choose settings."""


def whole_seeds(given: Any, name: str) -> list[int]:
    """Seeds as a list; refuses what is no list of whole numbers, none at all, and one that is given twice."""
    try:
        found = [] if isinstance(given, str | bytes) else [operator.index(seed) for seed in given]
    except TypeError:
        found = []
    if not found:
        raise SettingsError(f"{name} = {given!r}: give at least one whole number in a list, such as {name}=[0, 1, 2].")
    if twice := [seed for place, seed in enumerate(found) if seed in found[:place]]:
        raise SettingsError(f"seed {twice[0]} is given twice in {name}; give each once.")
    return found


def _candidates(entries: Sequence[ComparedMethod], experiment: Experiment, test_seed: int) -> list[list[Candidate]]:
    """What each method tries; all that is wrong with that is told at once."""
    found: list[list[Candidate]] = []
    faults: dict[str, Fault] = {}
    for entry in entries:
        try:
            found.append(candidates(entry, experiment.compare.tune, test_seed))
        except UserError as fault:
            faults[entry.label] = fault
    refuse(faults, f"{len(faults)} of {len(entries)} methods")
    return found


def _tell(texts: Iterable[str], note: Callable[[str], None]) -> None:
    for text in texts:
        note(text)


def _plans(entries: Sequence[ComparedMethod], seeds: Iterable[int], out: Path) -> list[Plan]:
    """The runs, in order: by variant, then by seed."""
    variants = dict.fromkeys(entry.experiment.variant for entry in entries)
    numbers = list(seeds)
    return [
        entry.plan(seed, out)
        for variant in variants
        for seed in numbers
        for entry in entries
        if entry.experiment.variant == variant
    ]


def _run_chosen(
    entries: Sequence[ComparedMethod], choices: Sequence[Choice], seeds: Sequence[int], out: Path, runs: PlannedRuns
) -> list[Result | FailedRun]:
    """Runs every method with what it chose; one that could choose nothing has failed."""
    chosen = [
        entry if choice.candidate is None else with_choice(choice.candidate, choice.facts)
        for entry, choice in zip(entries, choices, strict=True)
    ]
    lost = {entry.label for entry, choice in zip(chosen, choices, strict=True) if choice.candidate is None}
    every = _plans(chosen, seeds, out)
    runs.plans = [plan for plan in every if plan.label not in lost]
    outcomes = iter(runs.carry_out(out))
    return [all_failed(plan) if plan.label in lost else next(outcomes) for plan in every]


@dataclass
class PlannedRuns:
    """Runs that are carried out one after the other, or several at once."""

    plans: Sequence[Plan]
    watcher: Callable[[str, int], Watch] | None
    jobs: int | None
    places: Places | None
    source: Source | None

    def __post_init__(self) -> None:
        """Refuses what cannot be carried out so, before anything is checked or run."""
        if self.plans and self._at_once() > 1 and self.places is None:
            _refuse_what_stays_here(self.plans, self.source)

    def _at_once(self) -> int:
        """How many runs go on at the same time; as many as there are on a cluster, unless 1 is asked for."""
        first = self.plans[0].experiment
        wanted = first.compare.jobs if self.jobs is None else self.jobs
        if wanted < 1:
            raise SettingsError(f"jobs = {wanted} is below 1.")
        if first.run.engine == "ray":
            return 1 if self.jobs == 1 else len(self.plans)
        return min(wanted, len(self.plans))

    def _find_places(self) -> Places | None:
        """Where several runs go on at once; None: this process runs one after the other."""
        if self.places is not None or not self.plans or self._at_once() == 1:
            return self.places  # on Ray, all workers of the cluster then share in one run
        first = self.plans[0].experiment
        if first.run.engine != "ray":
            return LocalPlaces(self._at_once())
        wanted = first.compare.jobs if self.jobs is None else self.jobs
        return ClusterPlaces(first, self.plans[0].folder.parent, None if wanted == 1 else wanted)

    def carry_out(self, out: Path) -> list[Result | FailedRun]:
        """How each run ended, in order."""
        outcomes: dict[int, Result | FailedRun] = {}
        try:
            places = self._find_places()
            if places is None:
                for number, plan in enumerate(self.plans):
                    outcomes[number] = _run_or_mark(plan, self._watch(plan), self.source)
            else:
                watches = [self._watch(plan) for plan in self.plans]
                Scheduler(self.plans, places, watches, outcomes).run()
        except KeyboardInterrupt:
            done = f"interrupted with {len(outcomes)} runs done"
            again = f"go on with: the same command and --out {shlex.quote(str(out))}"
            raise Interrupted(f"{done}; {again}") from None
        return [outcomes[number] for number in range(len(self.plans))]

    def _watch(self, plan: Plan) -> Watch:
        return Silent() if self.watcher is None else self.watcher(plan.label, plan.experiment.seed)


def _refuse_what_stays_here(plans: Sequence[Plan], source: Source | None) -> None:
    """Refuses to run in other processes what only this one has."""
    if source is not None or any(plan.method is not None for plan in plans):
        raise SettingsError(
            "data and methods that are given as objects stay in this process; leave jobs out, or name them in settings."
        )
    if lost := [name for plan in plans if (name := str(plan.experiment.method["name"])).startswith("__main__:")]:
        raise SettingsError(
            f"method '{lost[0]}' is in the program that is running, which other processes cannot import; "
            "move it to a file of its own, or leave jobs out."
        )


def _run_or_mark(plan: Plan, watch: Watch, source: Source | None) -> Result | FailedRun:
    """How a run ended. An error ends this run alone; only an interruption and a full disk end the comparison."""
    heard = whole(watch)
    try:
        result = result_or_none(plan.experiment, plan.folder, heard, plan.method, source)
        found = result or failed_as_recorded(plan.folder, plan.label)
    except Exception as fault:
        if stops_all(fault):
            raise
        found = failed_by(plan, reason_of(fault), heard)
    objects = {"source": source, "method": plan.method}
    return dataclasses.replace(found, given={name: one for name, one in objects.items() if one is not None})


def result_or_none(
    experiment: Experiment, path: Path, watch: Watch, method: Any = None, source: Source | None = None
) -> Result | None:
    """The result of a run that is started or resumed; None if it diverged or lacked clients, as its manifest tells."""
    try:
        return _run_or_resume(Plan("", experiment, path, method), watch, source)
    except QuorumError:
        return None


def _run_or_resume(plan: Plan, watch: Watch, source: Source | None) -> Result | None:
    """The result of a run; None if it diverged before, and would again."""
    experiment, path = plan.experiment, plan.folder
    if not (path / "manifest.json").exists():
        return run(experiment, path, source=source, method=plan.method, watch=watch, advise=False)
    there = read_run(path).manifest
    refuse_other_run(plan, assemble(experiment, source, plan.method))
    _note_question(experiment, path)
    if there.get("status") == "diverged":
        watch.warn(f"diverged in round {fault_round(there)}; to run it again, delete {path}")
        watch.end(failed_as_recorded(path, str(there.get("label"))))
        return None
    return resume(path, rounds=experiment.rounds, source=source, method=plan.method, watch=watch)


def _note_question(experiment: Experiment, path: Path) -> None:
    """Writes into the settings of a run that is there already what this comparison asks of it.

    That is how tables and reports look at it: budgets, targets, what chooses the best round, and what was chosen by
    tuning. How it ran and was scored stays as it was.
    """
    with RunFolder.open(path) as folder:
        there, asked = settings_of(folder), experiment.score
        score = dataclasses.replace(there.score, targets=asked.targets, best=asked.best)
        now = dataclasses.replace(there, compare=experiment.compare, score=score)
        if now != there:
            folder.update_settings(toml.write(now.plain()))


def refuse_unfinished(results: Sequence[Result | FailedRun]) -> None:
    """Raises an error that names the runs without a result, if there are any."""
    failed = [one for one in results if isinstance(one, FailedRun)]
    if not failed:
        return
    names = "; ".join(f"{one.label}, seed {one.seed}, {one.how}" for one in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    verb = "has" if len(failed) == 1 else "have"
    raise UnfinishedComparison(f"{len(failed)} of {len(results)} runs {verb} no result: {names}{more}.")
