"""From settings to a federation that is ready for round 0: every mistake that can be seen here is refused here."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from potluck.core import (
    SERVER,
    Client,
    Examples,
    Model,
    Problem,
    ResourceError,
    Round,
    SettingsError,
    Spec,
    Tier,
    Zoo,
    stream,
)
from potluck.data import Federation, Source, load
from potluck.engines import ENGINES, Engine, Session, Shard, World
from potluck.fleet import Budget, Crew, fit, profile
from potluck.learn import Classify, NextToken
from potluck.models import Menagerie, check, make_spec, tier_spec
from potluck.run import door
from potluck.run.settings import Experiment, TierSettings


@dataclass(frozen=True, eq=False)
class Bench:
    """What the server's device holds: the public set to learn from, and its own splits to score on."""

    train: Examples
    validation: Examples
    test: Examples
    labels: tuple[int, ...]


class Shelf:
    """Who has which examples, by client id."""

    def __init__(self, federation: Federation, crew: Crew) -> None:
        self.public = federation.public
        self._federation, self._crew = federation, crew
        everything = tuple(range(federation.classes))
        self._bench = Bench(federation.public, federation.validation, federation.test, everything)

    def shard(self, client: str) -> Shard:
        return self._bench if client == SERVER else self._federation.shard(self._crew.index(client))


@dataclass(frozen=True, eq=False)
class Setup:
    """An experiment with everything it needs, not yet started."""

    experiment: Experiment
    world: World
    crew: Crew
    classes: int

    def engine(self) -> Engine:
        """The engine that the settings ask for, started."""
        return ENGINES[engine_name(self.experiment)](self.world, self.experiment.run.workers)

    @property
    def server(self) -> Client:
        """The server as a client, of a tier that can carry the full network."""
        return Client(SERVER, Tier("server", spec=self.world.zoo.full, profile="server"))

    def cohort(self, index: int) -> list[Client]:
        """Who is asked in this round."""
        return self.crew.cohort(index, self.experiment.cohort)

    def view(self, index: int, session: Session) -> Round:
        """What the method sees of this round."""

        def recruit(wanted: Callable[[Client], bool]) -> Sequence[Client]:
            return self.crew.cohort(index, self.experiment.cohort, wanted)

        cohort, world = self.cohort(index), self.world
        return Round(index, cohort, self.crew.clients, world.zoo, world.seed, session.send, session.fold, recruit)


def engine_name(experiment: Experiment) -> str:
    """The engine behind "auto": worker processes where there are cores for them."""
    wanted = experiment.run.engine
    if wanted != "auto":
        return wanted
    several = sys.platform == "linux" and (os.cpu_count() or 1) > 1 and experiment.run.hardware == "cpu"
    return "pool" if several else "serial"


def hardware(experiment: Experiment) -> str:
    """The hardware asked for, if it is there."""
    wanted = experiment.run.hardware
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ResourceError('run.hardware = "cuda", but torch sees no GPU here; leave it out.')
    return wanted


def assemble(experiment: Experiment, source: Source | None = None, method: Any = None) -> Setup:
    """Reads the data, builds the zoo and the method, and checks that they go together.

    `source` and `method` may be given as objects, from Python, in place of what the settings name.
    """
    method = method if method is not None else door.method(experiment.method, experiment.local)
    source = source if source is not None else load(experiment.data)
    if source.classes < 2:
        raise SettingsError(f"data '{source.name}' has no classes to tell apart; only classification is known yet.")
    federation = Federation(source, experiment.data, experiment.seed)
    full, tiers = networks(experiment, source, federation.samples)
    check(full, [tier.spec for tier in tiers])
    zoo = Menagerie(full, tiers)
    crew = Crew(tiers, federation.clients, experiment.fleet, experiment.seed)
    method.check(zoo)
    shelf, problem = Shelf(federation, crew), _problem(source, zoo)
    world = World(method, zoo, shelf, problem, experiment.seed, hardware(experiment), experiment.run.stack)
    return Setup(experiment, world, crew, source.classes)


def _problem(source: Source, zoo: Zoo) -> Problem:
    """What is learned: a label for each example, or the next token after each token of it."""
    if source.train.columns["y"].dim() == 1:
        return Classify(source.classes)
    row = source.train[slice(0, 1)]
    wanted = (*row["y"].shape, source.classes)
    for spec in {zoo.full, *(tier.spec for tier in zoo.tiers)}:
        if _scored(spec, row["x"], zoo) != wanted:
            raise SettingsError(
                f"data '{source.name}' has a label for each token, and the model '{spec.family}' gives no scores for "
                'each. Take one that does, such as name = "transformer".'
            )
    return NextToken(source.classes)


def _scored(spec: Spec, x: torch.Tensor, zoo: Zoo) -> tuple[int, ...]:
    """The shape of the scores that a network gives; nothing where it cannot read such inputs."""
    net = zoo.build(Model(spec), stream(0, "blank")).eval()
    try:
        with torch.inference_mode():
            return tuple(net(x).shape)
    except (RuntimeError, IndexError, TypeError):
        return ()


def networks(experiment: Experiment, source: Source, samples: int) -> tuple[Spec, list[Tier]]:
    """The server's network, and each tier with its own; `samples` is what a client holds."""
    full = _spec(experiment.model, source, "[model]")
    return full, [_tier(tier, full, source, experiment, samples) for tier in experiment.tier]


def _tier(settings: TierSettings, full: Spec, source: Source, experiment: Experiment, samples: int) -> Tier:
    profile(settings.profile)
    where = f"tier '{settings.name}'"
    base = full if settings.model is None else _spec(settings.model, source, where)
    try:
        base = tier_spec(base, depth=settings.depth)
        width = settings.width if settings.width != "fit" else _fitting(settings, base, experiment, samples)
        spec = tier_spec(base, width)
    except SettingsError as fault:
        raise SettingsError(f"{where}: {fault}") from None
    return Tier(settings.name, settings.share, width, settings.depth, spec, settings.profile)


def _fitting(settings: TierSettings, base: Spec, experiment: Experiment, samples: int) -> float:
    """The width that the tier's device can carry."""
    local, fleet = experiment.local, experiment.fleet
    slots = 2 if local.optimiser == "adam" else int(local.momentum > 0)
    budget = Budget(local.count(samples), slots, fleet.memory, fleet.seconds or math.inf)
    zoo, batch = Menagerie(base), min(local.batch, max(samples, 1))
    return fit(fleet.widths, lambda width: zoo.cost(tier_spec(base, width), batch), profile(settings.profile), budget)


def _spec(model: Mapping[str, Any], source: Source, where: str) -> Spec:
    options = dict(model)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(f'{where} needs a name, such as name = "mlp".')
    if odd := options.keys() & {"input", "classes"}:
        raise SettingsError(f"{where}: '{min(odd)}' follows from the data; leave it out.")
    try:
        return make_spec(name, input=source.shape, classes=source.classes, **options)
    except SettingsError as fault:
        raise SettingsError(f"{where}: {fault}") from None
