"""The runs of a comparison: every method with every seed under every variant, and a label and a folder for each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.core import SettingsError, UserError
from potluck.ledger import LedgerError
from potluck.run import config
from potluck.run.labels import own_settings
from potluck.run.result import FailedRun
from potluck.run.settings import Experiment


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    label: str
    """The method with its settings, and the variant."""
    experiment: Experiment
    folder: Path
    method: Any = None
    """The method, if it was given as an object; None: the settings name it."""

    def failed(self, status: str, round: int, reason: str) -> FailedRun:
        """This run without a result."""
        one = self.experiment
        return FailedRun(self.folder, self.label, str(one.method["name"]), one.seed, status, round, reason)


Fault = UserError | LedgerError
"""Why a run cannot start."""


class CannotStart(SettingsError):
    """Several runs of a comparison cannot start: `lines` says which and why, one line each."""

    def __init__(self, faults: Mapping[str, Fault], what: str) -> None:
        codes = {fault.exit_code for fault in faults.values()}
        if len(codes) == 1:
            self.exit_code = codes.pop()
        self.lines = [f"{what} cannot start, so no run was started:", *map(_line, faults, faults.values())]
        super().__init__("\n".join(self.lines))


def refuse(faults: Mapping[str, Fault], what: str) -> None:
    """Raises all faults at once, by whose they are; does nothing if there are none. Equal ones are told once."""
    by_text: dict[str, list[str]] = {}
    for who, fault in faults.items():
        by_text.setdefault(str(fault), []).append(who)
    told = {_names(several): faults[several[0]] for several in by_text.values()}
    if len(told) > 1:
        raise CannotStart(told, what)
    for who, fault in told.items():
        raise _again(fault, _line(who, fault)) from None


def _names(several: Sequence[str]) -> str:
    more = f" and {len(several) - 3} more" if len(several) > 3 else ""
    return ", ".join(several[:3]) + more


def _again(fault: Fault, text: str) -> Fault:
    """The same kind of error with this text."""
    try:
        return type(fault)(text)
    except TypeError:  # a user's own error may want more than a text
        return SettingsError(text)


def _line(who: str, fault: Fault) -> str:
    text = str(fault).removeprefix(METHODS)
    return text if text.startswith("compare.") else f"{who}: {text}"


METHODS = "methods: "
"""What an error about the list of methods begins with, before it is known whose it is."""


@dataclass(frozen=True)
class ComparedMethod:
    """A method that takes part in a comparison, under one variant: all of its runs share these settings."""

    label: str
    experiment: Experiment
    """With the variant and the method, and the experiment's own seed."""
    method: Any = None
    """The method, if it was given as an object."""

    def plan(self, seed: int, out: Path) -> Plan:
        """The run with this seed, in a folder of its own."""
        one = self.experiment.with_method(self.experiment.method, seed)
        return Plan(self.label, one, out / f"{slug(self.label)}-s{seed}", self.method)


def plan_entries(experiment: Experiment, methods: Sequence[Any]) -> list[ComparedMethod]:
    """Every method under every variant. `methods` are tables with a name and settings, or method objects.

    All that is wrong with them is told at once.
    """
    found, faults = find_entries(experiment, methods)
    refuse(faults, f"{len(faults)} methods or variants")
    return found


def find_entries(experiment: Experiment, methods: Sequence[Any]) -> tuple[list[ComparedMethod], dict[str, Fault]]:
    """Every method under every variant, as far as that can be; and what is wrong with the others, by their names."""
    _refuse_changes(experiment)
    found: list[ComparedMethod] = []
    faults: dict[str, Fault] = {}
    variants: Mapping[str, Iterable[str]] = experiment.compare.variants or {"": ()}
    for variant, changes in variants.items():
        try:
            base = _under_variant(experiment, variant, changes)
        except UserError as fault:
            faults[f"compare.variants '{variant}'"] = fault
            continue
        for method in methods:
            label = _label(method, variant, base.local)
            try:
                entry = _entry(base, method, label)
            except UserError as fault:
                faults.setdefault(_label(method, "", base.local), fault)
                continue
            if _runs_under(variant, entry, experiment):
                found.append(entry)
    if faults:
        return found, faults
    _refuse_idle(experiment, methods, found)
    if len({slug(entry.label) for entry in found}) < len(found):
        raise SettingsError("two runs of this comparison would have the same name; name each variant in its own way.")
    return found, {}


def _under_variant(experiment: Experiment, variant: str, changes: Iterable[str]) -> Experiment:
    if not variant:
        return experiment
    found = config.apply_changes(experiment, changes, f"compare.variants '{variant}'")
    return dataclasses.replace(found, variant=variant)


def _entry(base: Experiment, method: Any, label: str) -> ComparedMethod:
    table = method_table(method)
    name = str(table.get("name"))
    own = base.compare.changes.get(name)
    changed = base if own is None else config.apply_changes(base, own, f"compare.changes '{name}'")
    if isinstance(method, Mapping):
        config.method(method, changed.local, "methods")
        return ComparedMethod(label, changed.with_method(method))
    return ComparedMethod(label, changed.with_method(table), method)


def method_table(method: Any) -> Mapping[str, Any]:
    """The settings of a method in a comparison; of an object, its class by name."""
    if isinstance(method, Mapping):
        return method
    return {"name": f"{type(method).__module__}:{type(method).__name__}"}


def _refuse_changes(experiment: Experiment) -> None:
    for name, own in experiment.compare.changes.items():
        config.method_class(name, "compare.changes: ")
        _refuse_method_changes(own, f"compare.changes '{name}'")
    for variant, changes in experiment.compare.variants.items():
        _refuse_method_changes(changes, f"compare.variants '{variant}'")


def _refuse_method_changes(changes: Iterable[str], where: str) -> None:
    """Refuses changes of the method's settings: each method of a comparison has its own, which would replace them."""
    if lost := [change for change in changes if change.strip().startswith("method.")]:
        raise SettingsError(
            f"{where} changes '{lost[0].split('=')[0].strip()}', but every method of a comparison has its own "
            'settings. Give it in the list of methods: {name = "...", ...}.'
        )


def _runs_under(variant: str, entry: ComparedMethod, experiment: Experiment) -> bool:
    only = experiment.compare.only
    return variant not in only or entry.experiment.method["name"] in only[variant]


def _refuse_idle(experiment: Experiment, methods: Sequence[Any], found: Sequence[ComparedMethod]) -> None:
    """Refuses a method that would run under no variant."""
    ran = {str(entry.experiment.method["name"]) for entry in found}
    names = [str(method_table(method)["name"]) for method in methods]
    if idle := [name for name in names if name not in ran]:
        raise SettingsError(f"method '{idle[0]}' runs under no variant; add it to one of the lists of compare.only.")


def _label(method: Any, variant: str, local: Any) -> str:
    if isinstance(method, Mapping):
        own = ", ".join(text for key, value in method.items() if key != "name" for text in _setting(key, value))
        name = str(method.get("name"))
    else:
        own, name = own_settings(method, local), type(method).__name__
    return f"{name}" + (f" ({own})" if own else "") + (f", {variant}" if variant else "")


def _setting(name: str, value: Any) -> Iterator[str]:
    """A setting as text; of a table its name and its entries: ``server=adamw``, ``wire.lr=0.03``."""
    if not isinstance(value, Mapping):
        yield f"{name}={value}"
        return
    if "name" in value:
        yield f"{name}={value['name']}"
    for key, inner in value.items():
        if key != "name":
            yield from _setting(f"{name}.{key}", inner)


def slug(label: str) -> str:
    """A run's label as a folder name."""
    return re.sub(r"[^\w.=+-]+", "_", label).strip("_")
