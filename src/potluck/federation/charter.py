"""The charter: what a federation agrees on before its first round, named by its hash.

It holds settings, checksums of the networks and of the code, and what every node's data must be like. Code is never
sent: both sides must have it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from potluck.core import (
    NOTHING,
    SERVER,
    Examples,
    InputError,
    Limits,
    SettingsError,
    Spec,
    UserError,
    display_name,
    facts_of,
    settings,
)
from potluck.data import Source
from potluck.engines import ClientData, SimulationContext
from potluck.federation.roster import Roster
from potluck.learn import GaussianMechanism
from potluck.methods import METHODS
from potluck.models import ModelZoo, check
from potluck.run import config, privacy, secure
from potluck.run.assemble import (
    Setup,
    Splits,
    hardware,
    learning_problem,
    networks,
    refuse_uncut,
    refuse_unlabelled,
)
from potluck.run.code_checksum import code_checksum
from potluck.run.settings import Experiment, Nodes
from potluck.run.world import own_code

if TYPE_CHECKING:
    from potluck.secure.client import SecureClient
    from potluck.secure.protocol import Identities

PROTOCOL = 1
"""Counts changes of what the server and nodes say to each other."""
SPARE = 64 << 20
"""Bytes that a message may have besides its models."""
COPIES = 8
"""A message may hold as many bytes as this many copies of the server's model: tasks carry several models."""
LEFT_OUT = ("name", "variant", "run", "compare", "fleet", "track")
"""Settings that are no concern of a node."""
MAY_CHANGE = ("rounds", "score", "run", "nodes")
"""Settings that may be changed when a run goes on."""
PLACES = ("path", "test_path", "public_from")
"""Settings under [data] that say where files are on the server; each side has its own."""


class CharterError(UserError):
    """A node cannot agree to a charter, or a charter makes no sense."""

    exit_code = 2


@dataclass(frozen=True, eq=False)
class Charter:
    """A charter as plain values."""

    plain: Mapping[str, Any]

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the charter, in an order of its own."""
        return hashlib.sha256(json.dumps(self.plain, sort_keys=True).encode()).hexdigest()

    @property
    def limits(self) -> Limits:
        """The most that a message of this federation may hold."""
        most = int(self.plain["most_bytes"])
        return Limits(bytes=min(most, Limits().bytes))

    @property
    def experiment(self) -> Experiment:
        """The settings that a node needs."""
        return config.experiment(self.plain["experiment"], "the charter")

    @cached_property
    def method(self) -> Any:
        """The method, from the node's own copy of its code."""
        told = self.plain["method"]
        return config.parse_settings(config.method_class(str(told["class"])), told["settings"], "the charter: method")


def write_charter(setup: Setup, federation: str, public: str) -> Charter:
    """The charter of a federation; `public` is the checksum of its public rows, or empty."""
    method, zoo, experiment = setup.context.method, setup.context.zoo, setup.experiment
    kind = type(method)
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        raise SettingsError(
            f"method {kind.__qualname__} is defined where nodes cannot import it; put it into a module of its own."
        )
    plain = experiment.plain()
    kept = {name: value for name, value in plain.items() if name not in LEFT_OUT}
    kept["run"] = {"precision": experiment.run.precision}
    kept["nodes"] = {
        name: plain["nodes"][name]
        for name in ("shape", "classes", "names", "labels", "tokens", "pad", "sep", "most_samples", "floor", "updates")
    }
    kept["data"] = {name: value for name, value in plain["data"].items() if name not in PLACES}
    charter = {
        "protocol": PROTOCOL,
        "federation": federation,
        "potluck": version("potluck"),
        "code": code_checksum(),
        "own_code": own_code(setup),
        "experiment": without_none(kept),
        "method": {"class": f"{kind.__module__}:{kind.__qualname__}", "settings": settings(method)},
        "networks": network_checksums(zoo),
        "public": public,
        "most_bytes": COPIES * zoo.cost(zoo.full, 1).parameter_bytes + SPARE,
    }
    return Charter({**charter, "run": _run_name(charter)})


def _run_name(charter: Mapping[str, Any]) -> str:
    """A hash that stays the same if a run goes on with other settings that may be changed, such as its length. A node's
    memory belongs to it."""
    experiment = {name: item for name, item in charter["experiment"].items() if name not in MAY_CHANGE}
    told = [charter["federation"], experiment, charter["method"], charter["networks"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def without_none(value: Any) -> Any:
    """Settings that are not set are left out, as in a file."""
    if isinstance(value, Mapping):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list | tuple) else value


def network_checksums(zoo: ModelZoo | Any) -> dict[str, str]:
    """A checksum of the server's network and of each tier's: its settings, and the shapes of its tensors."""
    specs = {SERVER: zoo.full} | {tier.name: tier.spec for tier in zoo.tiers}
    return {name: _network_checksum(zoo, spec) for name, spec in specs.items()}


def _network_checksum(zoo: ModelZoo | Any, spec: Spec) -> str:
    shapes = [[name, list(shape), str(dtype)] for name, (shape, dtype) in zoo.shapes(spec).items()]
    return hashlib.sha256(json.dumps([spec.plain(), shapes], sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions that may change the last bits of results, by what they are called in messages."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
    }


def read_charter(plain: Any, trusted: Collection[str] = ()) -> Charter:
    """A charter that came in a message; an error of one line if it makes no sense, or is of another version.

    It may name modules that are not Potluck's, for methods and networks of one's own. To import a module runs its code,
    so only `trusted` ones are.
    """
    if not isinstance(plain, Mapping):
        raise CharterError("what the server calls a charter is none.")
    if plain.get("protocol") != PROTOCOL:
        raise CharterError(
            f"the server speaks version {plain.get('protocol')!r:.20} of the protocol, this node version {PROTOCOL}; "
            f"it has potluck {str(plain.get('potluck'))[:20]}, here is {version('potluck')}. Install the same."
        )
    if plain.get("code") != code_checksum():
        raise CharterError(
            f"the server runs potluck {str(plain.get('potluck'))[:20]} (code {str(plain.get('code'))[:12]}), here is "
            f"{version('potluck')} (code {code_checksum()}). Install the same version on both sides."
        )
    found = Charter(plain)
    if odd := sorted(own_modules(plain) - set(trusted)):
        raise CharterError(
            f"the server names the module '{odd[0][:60]}', which is not Potluck's. If you trust that code, which must "
            f"be installed here, join with --trust {odd[0][:60]}."
        )
    try:
        _ = (found.limits, found.experiment, found.method, found.hash)
    except UserError as fault:
        raise CharterError(str(fault)) from None
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as fault:
        raise CharterError(f"what the server calls a charter is none ({type(fault).__name__}).") from None
    return found


def own_modules(plain: Mapping[str, Any]) -> set[str]:
    """The modules besides Potluck's that a charter names: of its method, or of a network."""
    method, experiment = plain.get("method"), plain.get("experiment")
    wanted = [str(method.get("class"))] if isinstance(method, Mapping) else []
    ours = {f"{kind.__module__}:{kind.__qualname__}" for kind in METHODS.values()}
    own = {name.partition(":")[0] for name in wanted if name not in ours}
    return own | {name.partition(":")[0] for name in _texts(experiment) if ":" in name and name.isascii()}


def _texts(settings: Any) -> Iterator[str]:
    """Every name of a network or of a method in settings."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key == "name" and isinstance(value, str):
                yield value
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)


def blank_source(nodes: Nodes, where: str = "[nodes]") -> Source:
    """A data set of one empty row that is like the nodes' data: networks and problem follow from it."""
    if not nodes.shape or nodes.classes is None:
        missing = "shape" if not nodes.shape else "classes"
        raise SettingsError(
            f"{where} needs {missing}: the server has no data of its own to take it from, such as "
            f"{'shape = [1, 28, 28]' if missing == 'shape' else 'classes = 10'}."
        )
    tokens = bool(nodes.tokens) or nodes.labels == "tokens"
    x = torch.zeros(1, *nodes.shape, dtype=torch.int64 if tokens else torch.float32)
    shape = (1, *nodes.shape) if nodes.labels != "row" else (1,)
    y = torch.zeros(shape, dtype=torch.int64 if nodes.classes else torch.float32)
    return Source(
        *("nodes", Examples({"x": x, "y": y}), None, nodes.classes, nodes.shape, None, nodes.names),
        *(nodes.tokens, nodes.pad, nodes.sep, nodes.labels == "tags"),
    )


def describe_source(source: Source) -> dict[str, Any]:
    """The settings under [nodes] that describe this data."""
    labels = "row" if source.train.columns["y"].dim() == 1 else "tags" if source.tagged else "tokens"
    return {
        "shape": list(source.shape),
        "classes": source.classes,
        "names": list(source.names),
        "labels": labels,
        "tokens": source.tokens,
        "pad": source.pad,
        "sep": source.sep,
    }


@dataclass(frozen=True, eq=False)
class OwnDatasets:
    """The data of one side of a federation: the server's or a node's own, and its copy of the public rows."""

    owner: str
    data: ClientData
    public: Examples = field(default_factory=lambda: NOTHING)

    def shard(self, client: str) -> ClientData:
        if client != self.owner:
            raise InputError(f"the data of '{client[:40]}' is not here")
        return self.data


def server_data(test: Examples | None, public: Examples, classes: int) -> OwnDatasets:
    """What the server has: perhaps test rows, perhaps public rows."""
    return OwnDatasets(SERVER, Splits(public, NOTHING, test or NOTHING, tuple(range(classes))), public)


def make_setup(
    experiment: Experiment, method: Any, datasets: OwnDatasets, roster: Roster, identities: Identities | None = None
) -> Setup:
    """A federation that is ready to start, on the server or at a node; the same checks on both sides. The roster gets
    its tiers here. `identities` are this side's own, for [secure]."""
    source = blank_source(experiment.nodes)
    refuse_for_nodes(experiment, method)
    refuse_unlabelled(method, experiment)
    full, tiers = networks(experiment, source, 1)
    refuse_uncut(method, full)
    roster.tiers = tuple(tiers)
    check(full, [tier.spec for tier in tiers])
    where, run = hardware(experiment), experiment.run
    zoo = ModelZoo(full, tiers, len(datasets.public), where)
    if not len(datasets.public) and (needs := facts_of(method)) is not None and needs.public != "none":
        raise SettingsError(f"{display_name(method)} needs public rows: set nodes.public to a file that all have.")
    method.check(zoo)
    mechanism = privacy.make_mechanism(experiment, method, zoo, roster)
    context = SimulationContext(
        *(method, zoo, datasets, learning_problem(source, zoo, experiment), experiment.seed, where, 0),
        *(run.precision, run.channels_last, run.streams, mechanism),
        secure=_secure_client(experiment, method, zoo, identities, mechanism),
    )
    return Setup(experiment, context, roster, source.classes, source, None, 1)


def _secure_client(
    experiment: Experiment,
    method: Any,
    zoo: ModelZoo,
    identities: Identities | None,
    mechanism: GaussianMechanism | None,
) -> SecureClient | None:
    """What this side needs for [secure], by the settings that both sides agreed to; None without it."""
    found = secure.make_client(experiment, method, zoo, mechanism)
    if found is None:
        return None
    from potluck.federation.identities import make_client

    made = make_client(found.settings, identities)
    made.noise = found.noise
    return made


def refuse_for_nodes(experiment: Experiment, method: Any) -> None:
    """Refuses settings that make no sense with real nodes."""
    if fitted := [tier for tier in experiment.tier if "fit" in (tier.width, tier.depth)]:
        what = "width" if fitted[0].width == "fit" else "depth"
        raise SettingsError(
            f"tier '{fitted[0].name}' has {what} = \"fit\", which follows from a simulated device; give a number: a "
            "node measures for itself which tier it can carry."
        )
    if odd := [tier.name for tier in experiment.tier if tier.absent]:
        raise SettingsError(f"tier '{odd[0]}' is absent, which is for simulations; leave it out.")
    for name in ("common", "personal", "compare_clients"):
        if value := getattr(experiment.score, name):
            told = "true" if value is True else value
            raise SettingsError(f"score.{name} = {told} needs test rows that all clients share; nodes share none.")
    fleet = experiment.fleet
    if fleet.tiers != "fixed" or fleet.availability != 1 or fleet.dropout or fleet.file:
        raise SettingsError("[fleet] simulates who is there; real nodes come and go by themselves. Leave it out.")
    if experiment.privacy.enabled and experiment.nodes.updates != "exact":
        raise SettingsError(
            '[privacy] and nodes.updates: rounded noise is not the noise that was promised; use "exact".'
        )
    if experiment.secure.enabled and experiment.nodes.updates != "exact":
        raise SettingsError('[secure] and nodes.updates: masked numbers cannot be rounded; use "exact".')
    names = {tier.name for tier in experiment.tier}
    if unknown := sorted(set(experiment.nodes.deadlines) - names):
        raise SettingsError(f"nodes.deadlines names '{unknown[0]}'; the tiers are {', '.join(sorted(names))}.")


def tier_names(charter: Charter) -> list[str]:
    """The names of the tiers, smallest network first."""
    return [name for name in charter.plain["networks"] if name != SERVER]
