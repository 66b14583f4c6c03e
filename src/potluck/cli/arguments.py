"""What the arguments of `compare` and `report` mean: methods, seeds and folders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from potluck.core import InputError, SettingsError, suggestion
from potluck.run import Experiment, config, value
from potluck.run.tuning import without_unused


def comparison_methods(experiment: Experiment, given: str | None) -> list[dict[str, Any]]:
    """The methods to compare, each with its settings: from --methods, or else from [compare]."""
    wanted = listed_methods(experiment)
    if given is not None:
        named = (_parse_method(text) for text in given.split(",") if text.strip())
        wanted = [method for one in named for method in chosen_methods(experiment, one)]
    if not wanted:
        raise SettingsError("nothing to compare: name methods with --methods a,b or under [compare] methods.")
    own = experiment.method
    found = [{**own, **method} if method == {"name": own.get("name")} else method for method in wanted]
    if len({repr(sorted(method.items(), key=str)) for method in found}) < len(found):
        raise SettingsError("--methods names the same method twice with the same settings; remove one.")
    return found


def listed_methods(experiment: Experiment) -> list[dict[str, Any]]:
    """The methods under [compare], each as a table with its name and settings."""
    return [{"name": method} if isinstance(method, str) else dict(method) for method in experiment.compare.methods]


def chosen_methods(experiment: Experiment, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The methods that a user's table means. A name without settings means the methods of that name under [compare],
    with their settings there, if there are any. Any other table means itself."""
    found = [method for method in listed_methods(experiment) if method["name"] == wanted.get("name")]
    return found if found and wanted.keys() == {"name"} else [dict(wanted)]


def with_variants(experiment: Experiment, wanted: Iterable[str]) -> Experiment:
    """The experiment with these of its variants alone, and with the methods that run under them; none: all of them."""
    compare, names = experiment.compare, list(wanted)
    if not names:
        return experiment
    if odd := [name for name in names if name not in compare.variants]:
        hint = suggestion(odd[0], compare.variants, "It has none." if not compare.variants else None)
        raise SettingsError(f"[compare.variants] has no '{odd[0]}'.{hint}")
    variants = {name: changes for name, changes in compare.variants.items() if name in names}
    only = {name: methods for name, methods in compare.only.items() if name in names}
    running = {name for methods in only.values() for name in methods} if only.keys() == variants.keys() else None
    methods = [method for method in listed_methods(experiment) if running is None or method["name"] in running]
    plain = experiment.plain()
    told = {**plain["compare"], "variants": variants, "only": only, "methods": methods}
    return config.experiment({**plain, "compare": told}, "[compare]")


def _parse_method(text: str) -> dict[str, Any]:
    """A method from --methods: `name`, or `name:key=value:key=value`; a name may itself be `module:Class`."""
    name, *pairs = text.strip().split(":")
    if pairs and "=" not in pairs[0]:
        name, *pairs = f"{name}:{pairs[0]}", *pairs[1:]
    method: dict[str, Any] = {"name": name}
    for pair in pairs:
        key, equals, given = pair.partition("=")
        if not equals:
            raise SettingsError(f"--methods {text}: write a setting as name:key=value.")
        method[key] = value(given)
    return method


def method_settings(changes: Iterable[str]) -> dict[str, Any]:
    """A method's own settings from --set key=value."""
    found: dict[str, Any] = {}
    for change in changes:
        key, equals, given = change.partition("=")
        if not equals:
            raise SettingsError(f"--set {change}: write a setting of the method as key=value, such as mu=0.05.")
        found[key.removeprefix("method.")] = value(given)
    return found


def with_grids(experiment: Experiment, vary: Iterable[str], tune: Iterable[str], tune_seeds: str | None) -> Experiment:
    """The experiment with variants from --vary, and with what --tune and --tune-seeds say in place of [compare]."""
    compare = experiment.compare
    varied = [_values("--vary", text) for text in vary]
    if varied and compare.variants:
        raise SettingsError("--vary and [compare.variants] exclude each other; use one of them.")
    variants = {
        ", ".join(f"{key.rpartition('.')[2]} = {shown}" for key, shown, _ in each): tuple(
            f"{key}={shown}" for key, shown, _ in each
        )
        for each in itertools.product(*varied)
        if each
    }
    tuned = {some[0][0]: [given for *_, given in some] for some in (_values("--tune", text) for text in tune)}
    told: dict[str, Any] = {"variants": variants or compare.variants, "tune": tuned or compare.tune}
    if tune_seeds is not None:
        told["tune_seeds"] = _seeds("--tune-seeds", tune_seeds)
    plain = experiment.plain()
    return config.experiment({**plain, "compare": {**plain["compare"], **told}}, "[compare]")


def _values(option: str, text: str) -> list[tuple[str, str, Any]]:
    """The values of KEY=A,B: the key, each value as it was written, and as TOML reads it."""
    key, equals, given = text.partition("=")
    shown = [part.strip() for part in given.split(",") if part.strip()]
    if not equals or not key.strip() or not shown:
        raise SettingsError(f"{option} {text}: write it as key=a,b,c, such as {option} local.lr=0.01,0.03,0.1.")
    found = [(key.strip(), part, value(part)) for part in shown]
    given_values = [one for *_, one in found]
    if twice := [part for place, part in enumerate(shown) if given_values[place] in given_values[:place]]:
        raise SettingsError(f"{option} {text}: {twice[0]} is given twice; give each value once.")
    return found


def _seeds(option: str, given: str) -> list[int]:
    try:
        return [int(seed) for seed in given.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {given}: write whole numbers, such as {option} 0,1,2.") from None


def comparison_seeds(experiment: Experiment, given: str | None) -> list[int]:
    """The seeds to run: from --seeds, or else from [compare], or else the experiment's own."""
    if given is None:
        return list(experiment.compare.seeds) or [experiment.seed]
    return _seeds("--seeds", given)


def find_node_folder(path: Path) -> Path | None:
    """The folder of a node, given itself or the kit that holds it; None if it is neither."""
    return next((found for found in (path, path / "state") if (found / "charters").is_dir()), None)


def run_folders(given: list[Path]) -> list[Path]:
    """Every run folder among these folders and directly inside them; each of them must be one or hold some.

    In the folder of a comparison that was tuned again, runs of a choice that was dropped are left out.
    """
    if not given:
        raise InputError("no runs were given; give run folders, results or a comparison.")
    found: list[Path] = []
    for folder in given:
        below = sorted(folder.iterdir()) if folder.is_dir() else []
        runs = [path for path in (folder, *below) if (path / "manifest.json").is_file()]
        if not runs:
            raise InputError(f"{folder} is not a run folder and holds none; give a folder that `potluck run` made.")
        found += without_unused(folder, runs)
    return list(dict.fromkeys(found))


def budget(given: Iterable[str]) -> dict[str, float]:
    """Budgets from --budget energy=500."""
    found: dict[str, Any] = {}
    for text in given:
        key, equals, amount = text.partition("=")
        if not equals or not isinstance(value(amount), int | float):
            raise SettingsError(f"--budget {text}: write it as cost=amount, such as --budget energy=500.")
        found[key.strip()] = value(amount)
    return check_budget(found)


def check_budget(given: Mapping[str, Any]) -> dict[str, float]:
    """A budget by which runs are looked at, by the rules of [compare] budget."""
    return config.experiment({"compare": {"budget": dict(given)}}, "budget").compare.budget
