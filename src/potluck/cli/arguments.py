"""What the arguments of `compare` and `report` mean: methods, seeds and folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from potluck.core import InputError, SettingsError
from potluck.run import Experiment, value


def comparison_methods(experiment: Experiment, given: str | None) -> list[dict[str, Any]]:
    """The methods to compare, each with its settings: from --methods, or else from [compare]."""
    if given is not None:
        wanted = [_parse_method(text) for text in given.split(",") if text.strip()]
    else:
        wanted = [{"name": m} if isinstance(m, str) else dict(m) for m in experiment.compare.methods]
    if not wanted:
        raise SettingsError("nothing to compare: name methods with --methods a,b or under [compare] methods.")
    own = experiment.method
    found = [{**own, **method} if method == {"name": own.get("name")} else method for method in wanted]
    if len({repr(sorted(method.items(), key=str)) for method in found}) < len(found):
        raise SettingsError("--methods names the same method twice with the same settings; remove one.")
    return found


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


def comparison_seeds(experiment: Experiment, given: str | None) -> list[int]:
    """The seeds to run: from --seeds, or else from [compare], or else the experiment's own."""
    if given is None:
        return list(experiment.compare.seeds) or [experiment.seed]
    try:
        return [int(seed) for seed in given.split(",")]
    except ValueError:
        raise SettingsError(f"--seeds {given}: write whole numbers, such as --seeds 0,1,2.") from None


def run_folders(given: list[Path]) -> list[Path]:
    """Every run folder among these folders and directly inside them."""
    found: list[Path] = []
    for folder in given:
        below = sorted(folder.iterdir()) if folder.is_dir() else []
        found += [path for path in (folder, *below) if (path / "manifest.json").is_file()]
    if not found:
        raise InputError(f"{given[0]} is not a run folder and holds none; give a folder that `potluck run` made.")
    return list(dict.fromkeys(found))
