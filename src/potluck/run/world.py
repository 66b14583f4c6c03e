"""The same simulation in another process, perhaps on another machine: made from settings, and checked by checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potluck.core import Bytes, SettingsError, Spec, settings
from potluck.data import OWN, pack_sources, unpack_sources
from potluck.engines import ENGINES, ClusterPlan, Engine, SimulationContext
from potluck.run import config
from potluck.run.assemble import Setup, assemble, engine_name
from potluck.run.code_checksum import code_checksum
from potluck.run.data_record import fingerprint

MAKER = "potluck.run.world:make_context"


def start_engine(setup: Setup) -> Engine:
    """Starts the engine that the settings ask for."""
    name, context = engine_name(setup.experiment), setup.context
    if name == "ray":
        context = dataclasses.replace(context, cluster=plan_cluster(setup))
    return ENGINES[name](context, setup.experiment.run.workers)


def plan_cluster(setup: Setup) -> ClusterPlan:
    """How workers on other machines make this simulation."""
    experiment, method, run = setup.experiment, setup.context.method, setup.experiment.run
    kind = type(method)
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        raise SettingsError(
            f"method {kind.__qualname__} is defined where workers cannot import it; put it into a module of its own."
        )
    plain = experiment.plain()
    plain["run"] |= {
        "engine": "graphs" if run.gpus else "serial",
        "hardware": "cuda" if run.gpus else "cpu",
        "workers": 0,
        "deadline": 0.0,
        "address": "",
        "cpus": 1.0,
        "gpus": 0.0,
        "send_data": False,
    }
    recipe = {
        "experiment": plain,
        "method": {"class": f"{kind.__module__}:{kind.__qualname__}", "settings": settings(method)},
    }
    sent = experiment.data.name == OWN or run.send_data
    return ClusterPlan(
        *(MAKER, recipe, fingerprint_of(setup), (lambda: pack_sources(setup.source, setup.public)) if sent else None),
        *(run.address, run.cpus, run.gpus),
    )


def make_context(recipe: Mapping[str, Any], data: Bytes | None) -> tuple[SimulationContext, Mapping[str, str]]:
    """The simulation of a worker, and its fingerprint."""
    source, public = (None, None) if data is None else unpack_sources(data)
    told = recipe["method"]
    method = config.parse_settings(config.method_class(told["class"]), told["settings"], "method")
    setup = assemble(config.experiment(recipe["experiment"], "cluster"), source, method, public)
    return setup.context, fingerprint_of(setup)


def fingerprint_of(setup: Setup) -> dict[str, str]:
    """What must be equal on all machines, by what it is called in messages."""
    assert setup.source is not None
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "version of torch": torch.__version__.partition("+")[0],
        "version of numpy": np.__version__,
        "checksum of potluck's code": code_checksum(),
        "checksum of your own code": own_code(setup),
        "checksum of the data": fingerprint(setup.source, setup.public)[:16],
    }


def own_code(setup: Setup) -> str:
    """A checksum of the modules that a user's method and networks come from; "none" if there are none."""
    zoo = setup.context.zoo
    specs: list[Spec] = [zoo.full, *(tier.spec for tier in zoo.tiers)]
    names = {kind.__module__ for kind in type(setup.context.method).__mro__}
    names |= {spec.family.partition(":")[0] for spec in specs if ":" in spec.family}
    own = [name for name in sorted(names) if name.split(".")[0] not in ("potluck", *sys.stdlib_module_names)]
    total = hashlib.sha256()
    for name in own:
        file = inspect.getsourcefile(sys.modules[name]) if name in sys.modules else None
        total.update(name.encode() + b"\0" + (Path(file).read_bytes() if file else b""))
    return total.hexdigest()[:12] if own else "none"
