"""Every method of a comparison chooses its settings by validation score, on seeds that no table shows."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core import SettingsError, suggestion
from potluck.run import config
from potluck.run.planning import ComparedMethod, Plan
from potluck.run.result import FailedRun, Result
from potluck.run.settings import Experiment, Track

Values = Mapping[str, Any]
"""One value for each setting that is tuned, by name."""
SECTIONS = {field.name for field in dataclasses.fields(Experiment)} - {"compare", "method", "seed", "variant"}
"""What the name of a shared setting may begin with. A method of the same name has no settings of its own here."""
SAME = ("data", "fleet", "rounds", "cohort")
"""What all methods of a comparison share, so that no method may choose it."""
TUNE_FILE = "tune.json"
"""In the folder of a comparison: what was tried and chosen, for readers."""
COSTS = ("bytes_down", "bytes_up", "device_seconds", "joules", "flops")


@dataclass(frozen=True)
class Candidate:
    """A method with one choice of values."""

    entry: ComparedMethod
    values: Values
    chooser: ComparedMethod
    """The same, as it is tried: scored once, at the end, and not tracked."""


@dataclass(frozen=True)
class Choice:
    """What a method chose, and from what."""

    candidate: Candidate | None
    """None: no candidate came to an end."""
    facts: Mapping[str, Any]
    """The same for tables and files, as plain values."""


def check_grid(experiment: Experiment, entries: Sequence[ComparedMethod], seeds: Sequence[int]) -> None:
    """Refuses a tuning that cannot work: unknown settings, no validation rows, seeds that tables show."""
    compare, names = experiment.compare, {own_prefix(entry) for entry in entries} - SECTIONS
    for name, values in compare.tune.items():
        first, _, rest = name.partition(".")
        if first in SAME:
            raise SettingsError(
                f"compare.tune '{name}': methods that differ in {first} cannot be compared; tune local training or a "
                "method's own settings, and set this one for all."
            )
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise SettingsError(f"compare.tune '{name}': {twice[0]} is given twice; give each value once.")
        if first == "method":
            raise SettingsError(
                f"compare.tune '{name}': write the name of the method, such as '{min(names)}.{rest}', for a setting of "
                "its own."
            )
        if first not in names | SECTIONS:
            hint = suggestion(first, sorted(names | SECTIONS))
            raise SettingsError(f"compare.tune '{name}': there is no section or method '{first}' here.{hint}")
    if len(set(compare.tune_seeds)) < len(compare.tune_seeds):
        raise SettingsError(f"compare.tune_seeds = {list(compare.tune_seeds)} has a seed twice; give each once.")
    if both := set(compare.tune_seeds) & set(seeds):
        raise SettingsError(
            f"seed {min(both)} is a seed of the comparison and one of compare.tune_seeds; choose on other seeds."
        )
    if not experiment.data.validation:
        raise SettingsError(
            "compare.tune chooses by validation rows, and data.validation is 0; set it, such as to 0.1."
        )


def own_prefix(entry: ComparedMethod) -> str:
    """What a method's own settings begin with in a grid: its name, without the module."""
    return str(entry.experiment.method["name"]).rpartition(":")[2]


def candidates(entry: ComparedMethod, grid: Mapping[str, Sequence[Any]], test_seed: int) -> list[Candidate]:
    """A method with every combination of the values of its grid."""
    mine = {name: grid[name] for name in grid if name.partition(".")[0] in SECTIONS | {own_prefix(entry)}}
    return [
        _candidate(entry, dict(zip(mine, values, strict=True)), test_seed)
        for values in itertools.product(*mine.values())
    ]


def _candidate(entry: ComparedMethod, values: Values, test_seed: int) -> Candidate:
    mine = f"{own_prefix(entry)}."
    shared = {name: value for name, value in values.items() if name.partition(".")[0] in SECTIONS}
    own = {name.removeprefix(mine): value for name, value in values.items() if name not in shared}
    changes = [f"{name}={json.dumps(value)}" for name, value in shared.items()]
    changes += [f"data.test_seed={test_seed}"]
    method = entry.method
    if method is None:
        changes += [f"method.{name}={json.dumps(value)}" for name, value in own.items()]
    elif own:
        method = _replace(method, own)
    found = config.apply_changes(entry.experiment, changes, "compare.tune")
    if entry.method is None:
        config.method(found.method, found.local, "compare.tune")
    else:
        method = dataclasses.replace(method, local=found.local) if hasattr(method, "local") else method
    told = ", ".join(f"{name}={value}" for name, value in values.items())
    label = f"{entry.label}, {told}" if told else entry.label
    once = dataclasses.replace(
        found.score, every=found.score.every if found.run.stop_at else max(found.rounds, 1), common=True
    )
    chooser = dataclasses.replace(found, score=once, track=Track())
    return Candidate(ComparedMethod(label, found, method), values, ComparedMethod(label, chooser, method))


def _replace(method: Any, own: Mapping[str, Any]) -> Any:
    try:
        return dataclasses.replace(method, **own)
    except TypeError as fault:
        raise SettingsError(f"compare.tune: {type(method).__name__}: {fault}.") from None


def choose(
    entry: ComparedMethod,
    tried: Sequence[tuple[Candidate, Sequence[Result | FailedRun]]],
    grid: Mapping[str, Sequence[Any]],
) -> Choice:
    """The candidate with the best mean validation score over its seeds; one that diverged is never chosen.

    Of equals, the first in the order of the grid.
    """
    scores = [_mean_score(outcomes) for _, outcomes in tried]
    known = [score for score in scores if score is not None]
    place = scores.index(max(known)) if known else None
    winner = None if place is None else tried[place][0]
    every = [one for _, outcomes in tried for one in outcomes]
    results = [one for one in every if isinstance(one, Result)]
    facts = {
        "label": entry.label,
        "values": None if winner is None else dict(winner.values),
        "score": None if place is None else scores[place],
        "metric": results[0].metric if results else None,
        "seeds": sorted({one.seed for one in every}),
        "runs": len(every),
        "edge": [] if winner is None else _at_the_edge(winner.values, grid),
        "cost": {name: sum(one.totals.get(name) or 0.0 for one in every) for name in COSTS},
        "tried": [
            {
                "values": dict(candidate.values),
                "score": score,
                "failed": [one.how for one in outcomes if isinstance(one, FailedRun)],
            }
            for (candidate, outcomes), score in zip(tried, scores, strict=True)
        ],
    }
    return Choice(winner, facts)


def _mean_score(outcomes: Sequence[Result | FailedRun]) -> float | None:
    """The mean validation score over seeds; None if a run has none."""
    scores = [validation_score(one) if isinstance(one, Result) else None for one in outcomes]
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known and len(known) == len(scores) else None


def validation_score(result: Result) -> float | None:
    """The main score on the validation rows: of the server's model, or else the mean over the tiers' models."""
    whole = result.scores.get("global")
    if whole:
        return _validation(whole, result.metric)
    tiers = [_validation(tier, result.metric) for tier in result.scores.get("tiers", {}).values()]
    known = [score for score in tiers if score is not None]
    return statistics.fmean(known) if known else None


def _validation(scores: Mapping[str, Any], metric: str) -> float | None:
    found = (scores.get("validation") or {}).get(metric)
    return found if isinstance(found, int | float) else None


def _at_the_edge(values: Values, grid: Mapping[str, Sequence[Any]]) -> list[str]:
    """The settings whose chosen number is the smallest or the largest that was tried."""
    return [
        name
        for name, value in values.items()
        if len(grid[name]) > 1
        and all(isinstance(other, int | float) and not isinstance(other, bool) for other in grid[name])
        and value in (min(grid[name]), max(grid[name]))
    ]


def with_choice(candidate: Candidate, facts: Mapping[str, Any]) -> ComparedMethod:
    """The method as it runs with the seeds of the comparison; its settings say what was chosen."""
    one = candidate.entry.experiment
    kept = {name: value for name, value in facts.items() if name != "tried"}
    compare = dataclasses.replace(one.compare, chosen=kept)
    return dataclasses.replace(candidate.entry, experiment=dataclasses.replace(one, compare=compare))


def without_unused(out: Path, folders: Sequence[Path]) -> list[Path]:
    """The runs of a comparison without those of a choice that the method has dropped since, as tune.json tells."""
    try:
        told = json.loads((out / TUNE_FILE).read_text())
        chosen = {choice["label"]: choice["values"] for choice in told}
    except (OSError, ValueError, TypeError, KeyError):
        return list(folders)
    return [folder for folder in folders if _is_used(folder, chosen)]


def _is_used(folder: Path, chosen: Mapping[str, Any]) -> bool:
    try:
        found = tomllib.loads((folder / "settings.toml").read_text())["compare"]["chosen"]
        return bool(chosen.get(found["label"], found["values"]) == found["values"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return True


def all_failed(plan: Plan) -> FailedRun:
    """A run that was not started, because its method diverged or failed with every choice."""
    return plan.failed("diverged", 0, "it diverged, or failed, with every value that was tried")


def write_choices(out: Path, choices: Sequence[Choice]) -> None:
    """Writes what was tried and chosen into tune.json, for readers."""
    (out / TUNE_FILE).write_text(json.dumps([choice.facts for choice in choices], indent=2, default=str) + "\n")
