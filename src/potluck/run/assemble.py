"""Builds a federation from settings, ready for round 0. Mistakes that are visible here are refused here."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from potluck.core import (
    SERVER,
    Client,
    Depth,
    Examples,
    Local,
    Newborn,
    Problem,
    ResourceError,
    Round,
    SettingsError,
    Spec,
    Tier,
    Zoo,
    display_name,
    facts_of,
    settings,
    stream,
)
from potluck.data import OWN, Federation, Source, load, load_public
from potluck.engines import ClientData, RoundSession, SimulationContext, TaskEnvelope, TaskResult, usable_cores
from potluck.fleet import Budget, Clients, Cut, Population, largest_that_fits, profile, tier_ends
from potluck.learn import Classify, NextToken, Regress, Tag
from potluck.models import ModelZoo, check, make_spec, tier_spec, uncut, widths_by_group
from potluck.run import config, privacy, secure
from potluck.run.data_record import DataRecord, fingerprint, input_facts
from potluck.run.devices import Devices, depths, is_measured
from potluck.run.settings import Experiment, TierSettings


@dataclass(frozen=True, eq=False)
class Splits:
    """The data of one side, in three splits. The server's training rows are the public ones."""

    train: Examples
    validation: Examples
    test: Examples
    labels: tuple[int, ...]


class FederationDatasets:
    """The data of every client and of the server, by id."""

    def __init__(self, federation: Federation, population: Population) -> None:
        self.public = federation.public
        self.federation, self._population = federation, population
        everything = tuple(range(federation.classes))
        self._server_data = Splits(federation.public, federation.validation, federation.test, everything)

    def shard(self, client: str) -> ClientData:
        return self._server_data if client == SERVER else self.federation.shard(self._population.index(client))


@dataclass(frozen=True, eq=False)
class Setup:
    """An experiment that is ready to start: its data, networks, method and clients."""

    experiment: Experiment
    context: SimulationContext
    population: Clients
    classes: int
    source: Source | None = None
    """The data set; None in a setup without data, as exports use it."""
    public: Source | None = None
    """Another data set, of which the public rows are."""
    samples: int = 0
    """Mean number of training rows per client, rounded up."""
    session_label: str = ""
    """Names the run in secure sums; empty: the experiment's name."""

    @property
    def server(self) -> Client:
        """The server as a client, in a tier that can train the full network."""
        return Client(SERVER, Tier("server", spec=self.context.zoo.full, profile="server"))

    def cohort(self, index: int) -> list[Client]:
        """The cohort of this round."""
        return self.population.cohort(index, self.experiment.cohort)

    def view(self, index: int, session: RoundSession) -> Round:
        """What the method sees in this round."""

        def recruit(wanted: Callable[[Client], bool]) -> Sequence[Client]:
            return self.population.cohort(index, self.experiment.cohort, wanted)

        cohort, context, population = self.cohort(index), self.context, self.population
        return Round(
            *(index, cohort, population.present, self._zoo(), context.seed, session.send, session.fold, recruit),
            everyone=partial(population.everyone, index),
        )

    def _zoo(self) -> Zoo:
        """The networks, with the shares that tiers have now: real nodes do not keep to the settings."""
        zoo, shares = self.context.zoo, self.population.shares()
        if not shares or not isinstance(zoo, ModelZoo):
            return zoo
        return replace(zoo, tiers=[replace(tier, share=shares[tier.name]) for tier in zoo.tiers])

    def asked(self, index: int, session: RoundSession) -> list[Client]:
        """The clients that got tasks in this session of this round: not only the cohort, if the method chooses."""
        ids = dict.fromkeys(entry.task.to for entry in session.entries if entry.task.to != SERVER)
        return [self.population.client(self.population.index(id), index) for id in ids]


def engine_name(experiment: Experiment) -> str:
    """The engine to use. "auto" means graphs on a GPU, else pool on Linux with several cores or workers or with a
    deadline, else serial."""
    run = experiment.run
    if run.engine != "auto":
        return run.engine
    if run.hardware == "cuda":
        return "graphs"
    several = usable_cores() > 1 or run.workers > 1
    return "pool" if sys.platform == "linux" and (several or run.deadline) else "serial"


def hardware(experiment: Experiment) -> str:
    """The hardware that the settings ask for; an error if it is missing."""
    wanted = experiment.run.hardware
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ResourceError('run.hardware = "cuda", but torch sees no GPU here; leave it out, or use --engine pool.')
    return wanted


def assemble(
    experiment: Experiment, source: Source | None = None, method: Any = None, public: Source | None = None
) -> Setup:
    """Reads the data, builds the zoo and the method, and checks that they fit together.

    `source`, `method` and `public` (another data set for public rows) may be given as objects; they replace those in
    the settings.
    """
    method = method if method is not None else config.method(experiment.method, experiment.local)
    source = source if source is not None else load(experiment.data)
    if source.classes == 1:
        raise SettingsError(f"data '{source.name}' has one class; classification needs two. Check the labels.")
    if source.classes == 0 and source.train.columns["y"].dim() > 1:
        raise SettingsError(f"data '{source.name}' has several numbers in each row of y; give one to regress on.")
    if source.classes == 0 and settings(method).get("label_mask"):
        raise SettingsError(f"method.label_mask needs classes, and data '{source.name}' has none; set it to false.")
    refuse_unlabelled(method, experiment)
    _refuse_deadline(experiment)
    _refuse_shown_features(experiment)
    public = public if public is not None else load_public(experiment.data)
    federation = Federation(source, experiment.data, experiment.seed, public, client_tiers(experiment))
    full, tiers = networks(experiment, source, federation.samples)
    devices = Devices(experiment)
    refuse_uncut(method, full)
    present = [tier for tier in tiers if not tier.absent]
    check(full, [tier.spec for tier in present])
    where, run = hardware(experiment), experiment.run
    zoo = ModelZoo(full, present, len(federation.public), where)
    found = devices.of_tiers(tiers, usual_batch(experiment, federation.samples))
    population = Population(tiers, federation.clients, experiment.fleet, experiment.seed, found, devices.fit)
    method.check(zoo)
    datasets, problem = FederationDatasets(federation, population), learning_problem(source, zoo, experiment)
    mechanism = privacy.make_mechanism(experiment, method, zoo, population)
    context = SimulationContext(
        *(method, zoo, datasets, problem, experiment.seed, where, run.stack),
        *(run.precision, run.channels_last, run.streams, mechanism),
        secure=secure.make_client(experiment, method, zoo, mechanism),
        deadline=run.deadline,
    )
    return Setup(experiment, context, population, source.classes, source, public, federation.samples)


def client_tiers(experiment: Experiment) -> list[str]:
    """The tier of each client, which data.lean needs; empty without it."""
    if not experiment.data.lean:
        return []
    if experiment.fleet.tiers != "fixed":
        raise SettingsError(
            f"data.lean = {experiment.data.lean:g} needs clients whose tier stays the same; "
            f"leave fleet.tiers = '{experiment.fleet.tiers}' out."
        )
    ends = tier_ends([tier.share for tier in experiment.tier], experiment.data.clients)
    return [
        tier.name
        for tier, start, end in zip(experiment.tier, [0, *ends], ends, strict=False)
        for _ in range(start, end)
    ]


class NeedsData(Exception):
    """Data was asked for in a setup that has none."""


class NoDatasets:
    """The data sets of a setup without data."""

    @property
    def public(self) -> Examples:
        raise NeedsData

    def shard(self, client: str) -> ClientData:
        raise NeedsData


class NoEngine:
    """The engine of a setup without data: nothing can be computed."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for _ in envelopes:
            raise NeedsData
        yield from ()

    def close(self) -> None:
        pass


def assemble_without_data(experiment: Experiment, record: DataRecord, method: Any = None) -> Setup:
    """The networks, the method and the population of a run, by what its manifest says of its data."""
    method = method if method is not None else config.method(experiment.method, experiment.local)
    blank = Source(record.name, Examples({}), None, record.classes, record.shape)
    blank = replace(blank, tokens=record.tokens, pad=record.pad, sep=record.sep)
    full, tiers = networks(experiment, blank, record.samples)
    zoo = ModelZoo(full, [tier for tier in tiers if not tier.absent], record.public)
    population = Population(tiers, max(1, record.clients), experiment.fleet, experiment.seed, {})  # 0: real nodes
    context = SimulationContext(method, zoo, NoDatasets(), Classify(record.classes), experiment.seed)
    return Setup(experiment, context, population, record.classes)


def describe_data(setup: Setup) -> DataRecord:
    """What the manifest says of the data of a run."""
    source, data, context = setup.source, setup.experiment.data, setup.context
    assert source is not None
    return DataRecord(
        own=data.name == OWN,
        name=source.name,
        path=data.path,
        problem=type(context.problem).__name__.lower(),
        rows=len(source.train),
        test_rows=len(source.test) if source.test is not None else 0,
        shape=source.shape,
        classes=source.classes,
        tokens=source.tokens,
        pad=source.pad,
        sep=source.sep,
        clients=setup.population.clients,
        samples=setup.samples,
        public=len(context.datasets.public),
        sha256=fingerprint(source, setup.public),
        **input_facts(source),
    )


def _refuse_deadline(experiment: Experiment) -> None:
    """Refuses a deadline where tasks run in the server's own process, in which nothing can end them."""
    deadline, engine = experiment.run.deadline, engine_name(experiment)
    if deadline and engine not in ("pool", "ray"):
        raise SettingsError(
            f'run.deadline = {deadline:g} needs run.engine = "pool" or "ray": \'{engine}\' runs clients in its own '
            "process, where it cannot end one that hangs. Leave run.deadline out, or use --engine pool."
        )


def _refuse_shown_features(experiment: Experiment) -> None:
    """Refuses to look into clients' networks where a promise says that nobody does."""
    for name in ("secure", "privacy"):
        if experiment.score.compare_clients and getattr(experiment, name).enabled:
            raise SettingsError(
                f"score.compare_clients shows what single clients' networks see, and [{name}] promises that nobody "
                "sees that; leave it out."
            )


def refuse_unlabelled(method: Any, experiment: Experiment) -> None:
    """Refuses public data from another data set if the method needs its labels. (Moss's WIRE can do without.)"""
    facts, other = facts_of(method), experiment.data.public_from.name
    if not other or facts is None or facts.public != "labels" or facts.unlabelled:
        return
    raise SettingsError(
        f"{display_name(method)} learns labels of public rows, and those of data.public_from are of other classes; "
        "leave it out, or choose a method that needs no labels (`potluck list methods`)."
    )


def refuse_uncut(method: Any, full: Spec) -> None:
    """Refuses a network that cannot be cut under a method that works with its units."""
    facts = facts_of(method)
    if facts is not None and (facts.networks == "width" or facts.units) and (why := uncut(full)):
        raise SettingsError(
            f"{display_name(method)} works with the units of a network, and '{full.family}' cannot be cut: {why} "
            "(`potluck list methods` shows those that cut nothing.)"
        )


def learning_problem(source: Source, zoo: Zoo, experiment: Experiment) -> Problem:
    """The learning problem: a label or a number for each example, or a tag or the next token for each token."""
    goal = _goal(source, experiment.data.metric)
    if odd := set(experiment.run.stop_at) - {goal.metric}:
        raise SettingsError(f"run.stop_at names {min(odd)}, but this data is scored by {goal.metric}; use that.")
    specs = {zoo.full, *(tier.spec for tier in zoo.tiers)}
    row = source.train[slice(0, 1)]
    if not source.tokens and not isinstance(goal, NextToken):
        _refuse_whole_numbers(source, row["x"], specs, zoo)
        return goal
    wanted = (*row["y"].shape, source.classes or 1)
    for spec in specs:
        if _output_shape(spec, row["x"], zoo) != wanted:
            raise SettingsError(_misfit_text(source, spec, len(wanted)))
    return goal


def _refuse_whole_numbers(source: Source, x: torch.Tensor, specs: Collection[Spec], zoo: Zoo) -> None:
    """Refuses inputs of whole numbers, which are token ids, for a network that cannot read them."""
    if x.is_floating_point():
        return
    for spec in specs:
        if not _output_shape(spec, x, zoo):
            raise SettingsError(
                f"data '{source.name}' has inputs of whole numbers, which are token ids, and the model '{spec.family}' "
                'cannot read them. Give floats, x.astype("float32"), or pixels as bytes (uint8).'
            )


def _misfit_text(source: Source, spec: Spec, dims: int) -> str:
    """The error message for a network that does not fit these tokens."""
    if dims == 2:
        has, gives, such = "rows of tokens", "does not read them, or scores each", 'name = "bert"'
    else:
        such = 'name = "bert" with output = "tokens"' if source.tagged else 'name = "transformer"'
        has, gives = "a label for each token", "gives no scores for each"
    return f"data '{source.name}' has {has}, and the model '{spec.family}' {gives}. Take one that does, such as {such}."


def _goal(source: Source, metric: str) -> Classify | NextToken | Regress | Tag:
    """The learning problem of this data, with the main score that the settings ask for."""
    several = source.train.columns["y"].dim() > 1
    known = ("accuracy", "f1", "matthews") if not several else ("f1", "accuracy") if source.tagged else ("accuracy",)
    known = known if source.classes else ("pearson",)
    if metric not in (*known, "auto"):
        raise SettingsError(f"data.metric = '{metric}', but data '{source.name}' is scored by {' or '.join(known)}.")
    chosen = known[0] if metric == "auto" else metric
    if not source.classes:
        return Regress()
    if not several:
        return Classify(source.classes, chosen)
    return Tag(source.names, chosen) if source.tagged else NextToken(source.classes)


def _output_shape(spec: Spec, x: torch.Tensor, zoo: Zoo) -> tuple[int, ...]:
    """The shape of a network's logits; empty if it cannot read such inputs."""
    net = zoo.build(Newborn(spec), stream(0, "blank")).eval()
    try:
        with torch.inference_mode():
            return tuple(net(x).shape)
    except (RuntimeError, IndexError, TypeError):
        return ()


def networks(experiment: Experiment, source: Source, samples: int) -> tuple[Spec, list[Tier]]:
    """The server's network, and every tier with its network; `samples` is the number of samples per client."""
    full = _spec(experiment.model, source, "[model]")
    return full, [_tier(tier, full, source, experiment, samples) for tier in experiment.tier]


def _tier(settings: TierSettings, full: Spec, source: Source, experiment: Experiment, samples: int) -> Tier:
    if not is_measured(settings.profile):
        profile(settings.profile)
    where = f"tier '{settings.name}'"
    base = full if settings.model is None else _spec(settings.model, source, where)
    try:
        given, depth = _size(settings, base, experiment, samples)
        base = tier_spec(base, depth=depth)
        width = None if given is None else widths_by_group(base, given)
        spec = tier_spec(base, width)
    except SettingsError as fault:
        raise SettingsError(f"{where}: {fault}") from None
    return Tier(
        *(settings.name, settings.share, width, depth, spec, settings.profile),
        *(settings.server_lr, settings.absent),
    )


def _size(
    settings: TierSettings, base: Spec, experiment: Experiment, samples: int
) -> tuple[float | Mapping[str, float] | None, Depth]:
    """The tier's width and depth; those that are to "fit" are the largest that its device can train."""
    width = settings.width if settings.width != "fit" else None
    depth = settings.depth if settings.depth != "fit" else None
    if "fit" not in (settings.width, settings.depth):
        return width, depth

    def part(cut: Cut) -> Spec:
        spec = tier_spec(base, depth=cut.depth or depth)
        cut_width = cut.width or width
        return spec if cut_width is None else tier_spec(spec, widths_by_group(spec, cut_width))

    local, fleet, devices, zoo = experiment.local, experiment.fleet, Devices(experiment), ModelZoo(base)
    batch = usual_batch(experiment, samples)
    widths = sorted(fleet.widths, reverse=True) if settings.width == "fit" else [None]
    blocks = depths(base.depth) if settings.depth == "fit" else [None]
    cuts = [Cut(width, depth) for width in widths for depth in blocks]
    if settings.width == settings.depth:
        cuts.sort(key=lambda cut: -zoo.cost(part(cut), batch).flops)
    found = largest_that_fits(
        cuts,
        lambda cut: zoo.cost(part(cut), batch),
        lambda cut: devices.to_fit(settings, part(cut), batch),
        Budget(local.count(samples), optimiser_slots(local), fleet.memory, fleet.seconds or math.inf),
    )
    return found.width or width, found.depth or depth


def optimiser_slots(local: Local) -> int:
    """Numbers that a client's optimiser keeps per parameter."""
    return 2 if local.optimiser == "adam" else int(local.momentum > 0)


def usual_batch(experiment: Experiment, samples: int) -> int:
    """The rows of a client's batch, if it has so many samples."""
    return min(experiment.local.batch, max(samples, 1))


def _spec(model: Mapping[str, Any], source: Source, where: str) -> Spec:
    options = dict(model)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(f'{where} needs a name, such as name = "mlp".')
    if odd := options.keys() & {"input", "classes"}:
        raise SettingsError(f"{where}: '{min(odd)}' follows from the data; leave it out.")
    try:
        # Regression needs one output.
        told = {**options, "input": source.shape, "classes": source.classes or 1}
        spec = make_spec(name, **told)
        more: dict[str, Any] = {}
        if name == spec.family and "vocab" in spec.options and not options.keys() & {"vocab", "pretrained"}:
            more = {"vocab": source.tokens or spec.options["vocab"], "pad": source.pad}
        if "sep" in spec.options and "sep" not in options and source.sep >= 0:
            more["sep"] = source.sep
        spec = make_spec(name, **told, **more) if more else spec
    except SettingsError as fault:
        raise SettingsError(f"{where}: {fault}") from None
    if source.tokens and "vocab" in spec.options:
        _refuse_other_tokens(spec, source, where)
    return spec


def _refuse_other_tokens(spec: Spec, source: Source, where: str) -> None:
    known: Any = spec.options["vocab"]
    pad: Any = spec.options.get("pad", source.pad)
    if known < source.tokens or pad != source.pad:
        raise SettingsError(
            f"{where}: the network knows {known} tokens, of which {pad} is padding; data '{source.name}' has "
            f"{source.tokens} and pads with {source.pad}. Set data.tokenizer to the folder of the pre-trained network."
        )
