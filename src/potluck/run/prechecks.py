"""Checks all runs of a comparison before the first one starts, and tells all that is wrong at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from potluck.core import SettingsError, UserError, to_plain
from potluck.data import Data, Federation, Source, load, load_public
from potluck.ledger import LedgerError, planned_rounds, read_run
from potluck.run.advice import advice
from potluck.run.assemble import Setup, assemble, client_tiers
from potluck.run.observers import check_observers
from potluck.run.planning import Fault, Plan, refuse
from potluck.run.session import mark


def check_plans(
    plans: Sequence[Plan], source: Source | None = None, known: Mapping[str, Fault] = MappingProxyType({})
) -> list[str]:
    """Refuses a comparison in which a run cannot start; returns warnings about those that can.

    Every method is put together with its data and networks, and the data is divided with every seed. What a folder
    holds already must be the same run. `known` is what is wrong with methods that have no plans: it is told as well.
    """
    checks = _Checks(source)
    faults = dict(known)
    warnings: dict[str, None] = {}
    for plan in plans:
        if plan.label in faults:
            continue
        try:
            warnings |= dict.fromkeys(f"{plan.label}: {text}" for text in checks.check(plan))
        except (UserError, LedgerError) as fault:
            faults[plan.label] = fault
    refuse(faults, f"{len(faults)} of {len({plan.label for plan in plans} | known.keys())} methods")
    return list(warnings)


DIVIDES = (
    *("clients", "partition", "groups", "labels", "alpha", "balance", "samples", "test", "validation", "held_out"),
    *("public", "public_partition", "client_test", "client_validation", "augment", "metric", "test_seed"),
    *("flwr", "lean", "lean_by", "quantity_skew", "beta", "least"),
)
"""The settings under [data] that do not change what is read."""


class _Checks:
    """Reads each data set once, and divides it once for each seed."""

    def __init__(self, source: Source | None) -> None:
        self.source = source
        self._sources: dict[str, tuple[Source, Source | None]] = {}
        self._divided: set[tuple[Any, ...]] = set()
        self._assembled: set[str] = set()

    def check(self, plan: Plan) -> Iterator[str]:
        """Raises what is wrong with a run; yields warnings."""
        there = (plan.folder / "manifest.json").exists()
        if there or plan.label not in self._assembled:
            setup = self._assemble(plan)
            if there:
                refuse_other_run(plan, setup)
            if plan.label not in self._assembled:
                check_observers(setup)
                yield from advice(setup)
            self._assembled.add(plan.label)
        self._divide(plan)

    def _assemble(self, plan: Plan) -> Setup:
        source, public = self._read(plan.experiment.data)
        return assemble(plan.experiment, source, plan.method, public)

    def _divide(self, plan: Plan) -> None:
        data, seed, tiers = plan.experiment.data, plan.experiment.seed, client_tiers(plan.experiment)
        if (key := (_key(data), seed, tuple(tiers))) not in self._divided:
            source, public = self._read(data)
            Federation(source, data, seed, public, tiers)
            self._divided.add(key)

    def _read(self, data: Data) -> tuple[Source, Source | None]:
        key = _key(data, DIVIDES)
        if key not in self._sources:
            self._sources = {key: (self.source or load(data), load_public(data))}  # one at a time: they may be large
        return self._sources[key]


def _key(data: Data, without: Sequence[str] = ()) -> str:
    plain = {name: value for name, value in vars(data).items() if name not in without}
    return json.dumps(to_plain(plain), sort_keys=True, default=str)


def refuse_other_run(plan: Plan, setup: Setup) -> None:
    """Refuses a folder that holds another run than the planned one."""
    there = read_run(plan.folder).manifest
    longer = planned_rounds(plan.folder, there) > plan.experiment.rounds
    if there["mark"] != mark(setup) or longer:
        raise SettingsError(f"{plan.folder} holds a run with other settings than were asked for; choose another --out.")
