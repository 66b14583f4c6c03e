"""An experiment as settings: what a TOML file may say, with a default for everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from potluck.core import Local, SettingsError, to_plain
from potluck.data import Data
from potluck.engines import Gate
from potluck.fleet import Fleet
from potluck.learn import Precision


@dataclass(frozen=True)
class TierSettings:
    """A kind of device, under [[tier]]."""

    name: str = "everyone"
    share: float = 1.0
    """Its part of the population, relative to the other tiers' shares."""
    width: float | dict[str, float] | Literal["fit"] | None = None
    """The part of each layer's units it can train, for all layers or by axis group. "fit": the largest of fleet.widths
    that its profile can carry."""
    depth: int | tuple[int, ...] | None = None
    """The blocks it can train; one number per stage where the family has stages."""
    model: dict[str, Any] | None = None
    """An architecture of its own instead of a part of [model]; written like [model]."""
    profile: str = "laptop"
    """The device it is priced as: `potluck list profiles`."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1e9:
            raise ValueError(f"tier '{self.name}' has share = {self.share}; give a number above 0, at most 1e9")


@dataclass(frozen=True)
class Scoring:
    """When and on whom models are scored, under [score]."""

    every: int = 1
    """Score after every so many rounds, and after the last."""
    clients: int = 20
    """How many clients score the model on their own splits; the same ones each time."""
    local: bool = False
    """Also score the server's whole model on their splits, with classes that a client does not own masked."""
    common: bool = False
    """Let clients score models that live with them on the common test set, and tiers by their clients' mean: to be set
    beside models that the server has."""
    features: bool = False
    """At the end, look at what the tiers' networks make of test rows, for the report: how alike, stage by stage."""
    targets: tuple[float, ...] = ()
    """Test scores to which tables and reports count rounds: [0.85] is 85 %. None: 50, 80, 90 and 95 %. Tables in the
    terminal have room for the first."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.clients < 0:
            raise ValueError("score.every must be at least 1 and score.clients at least 0")
        if odd := [target for target in self.targets if not -1 < target <= 1]:
            remedy = f": for {odd[0]:g} % write {odd[0] / 100:g}" if 1 < odd[0] <= 100 else ""
            raise ValueError(f"score.targets = {odd[0]:g} must be above -1 and at most 1{remedy}")


@dataclass(frozen=True)
class Running:
    """How the work is done, under [run]. `stop_at` and `quorum` can change a result, `precision` its digits,
    `hardware`, `channels_last` and `stack` its last bits; nothing else here does."""

    engine: Literal["auto", "serial", "wire", "pool", "graphs"] = "auto"
    """auto: graphs on a GPU; else pool where there are several cores and Linux, else serial."""
    hardware: Literal["cpu", "cuda"] = "cpu"
    """Where devices' networks are simulated. A GPU works under graphs, serial and wire; its bits differ from a
    CPU's."""
    precision: Precision = "fp32"
    """How exactly local training computes: "tf32" and "bf16" let products and convolutions round their inputs."""
    channels_last: bool = False
    """Keep kernels with their channels innermost, which a GPU likes under "bf16"."""
    streams: int = 10
    """How many clients a GPU trains side by side under graphs."""
    workers: int = 0
    """Worker processes of the pool; 0: one per core."""
    stack: int = 0
    """How many clients train in one go where their networks are small, dense and alike (20 to 50 is good); 0: each by
    itself."""
    checkpoint_every: int = 1
    """Rounds between checkpoints."""
    keep: int = 2
    """Checkpoints kept."""
    quorum: int = 1
    """Clients that must answer for a round to count."""
    retries: int = 3
    """Further tries at a round that missed its quorum."""
    stop_at: dict[str, float] = field(default_factory=dict)
    """End early when the score that the data is judged by is reached on the validation set: {accuracy = 0.95}."""

    def __post_init__(self) -> None:
        lows = {"workers": 0, "streams": 1, "stack": 0, "checkpoint_every": 1, "keep": 1, "quorum": 0, "retries": 0}
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ValueError(f"run.{name} = {getattr(self, name)} is below {low}")
        if self.hardware != "cpu" and self.engine == "pool":
            raise ValueError('run.hardware = "cuda" needs run.engine = "graphs": a GPU is not shared among processes')
        if self.hardware == "cpu" and self.engine == "graphs":
            raise ValueError('run.engine = "graphs" needs run.hardware = "cuda": it captures work for a GPU')
        if self.hardware == "cpu" and (self.channels_last or self.precision == "tf32"):
            name = "channels_last = true" if self.channels_last else 'precision = "tf32"'
            raise ValueError(f'run.{name} needs run.hardware = "cuda"')
        if self.hardware == "cuda" and self.stack:
            raise ValueError(
                f'run.stack = {self.stack} is for CPUs; run.engine = "graphs" trains side by side on a GPU'
            )
        if odd := set(self.stop_at) - {"accuracy", "f1", "matthews", "pearson"}:
            raise ValueError(f"run.stop_at knows accuracy, f1, matthews and pearson, not {', '.join(sorted(odd))}")


@dataclass(frozen=True)
class Privacy:
    """Noise on what clients upload, under [privacy]: off until `noise` or `epsilon` is given. See docs/security.md."""

    clip: float = 1.0
    """The longest update (new minus sent) that leaves a device; a longer one is scaled down to this."""
    noise: float | None = None
    """The standard deviation of the Gaussian noise on each number of an update, in lengths of the clip."""
    epsilon: float | None = None
    """Instead of `noise`: as much as keeps this promise to every client."""
    delta: float = 1e-5
    """The chance with which the promise may fail."""
    per: Literal["run", "upload"] = "run"
    """What `epsilon` is promised for: all that a client uploads in the run, or each time it does."""

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "epsilon"):
            if (value := getattr(self, name)) is not None and not 1e-6 <= value <= 1e6:
                raise ValueError(f"privacy.{name} = {value} must be from 1e-6 to 1e6")
        if not 1e-100 <= self.delta < 1:
            raise ValueError(f"privacy.delta = {self.delta} must be above 0 and below 1")
        if self.noise is not None and self.epsilon is not None:
            raise ValueError("privacy.noise and privacy.epsilon are two ways to say one thing; give one of them")

    @property
    def wanted(self) -> bool:
        """Whether updates get noise."""
        return self.noise is not None or self.epsilon is not None


@dataclass(frozen=True)
class Comparison:
    """What `potluck compare` runs when it is not told, under [compare]."""

    methods: tuple[str | dict[str, Any], ...] = ()
    """Names, or tables with a name and that method's own settings."""
    seeds: tuple[int, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What else to vary, every method under each: a name, and the settings it changes, each written like --set."""
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The methods that run under a variant, by name, where not all do: methods may want tiers of different kinds."""

    def __post_init__(self) -> None:
        if odd := self.only.keys() - self.variants.keys():
            raise ValueError(f"compare.only speaks of '{min(odd)}', which is none of compare.variants")


@dataclass(frozen=True)
class Experiment:
    """One experiment, complete."""

    name: str = "digits"
    variant: str = ""
    """What sets this run apart from others of its name; a comparison fills it in."""
    seed: int = 0
    rounds: int = 40
    cohort: int = 10
    """Clients asked in each round."""
    data: Data = Data()
    model: dict[str, Any] = field(default_factory=lambda: {"name": "cnn"})
    """The server's network: its name, and what its family wants to know. `potluck list models`."""
    tier: tuple[TierSettings, ...] = (TierSettings(),)
    fleet: Fleet = Fleet()
    method: dict[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    """The method's name, and its own settings. `potluck list methods`."""
    local: Local = Local(epochs=5, batch=8)
    """How clients train, under every method alike."""
    gate: Gate = Gate()
    privacy: Privacy = Privacy()
    score: Scoring = Scoring()
    run: Running = Running()
    compare: Comparison = Comparison()

    def __post_init__(self) -> None:
        for name, low in (("seed", 0), ("rounds", 0), ("cohort", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} = {getattr(self, name)} is below {low}")
        if not self.tier:
            raise ValueError("there is no [[tier]]; leave the list out for one tier of equal devices")

    def plain(self) -> dict[str, Any]:
        """Every setting as plain values."""
        found: dict[str, Any] = to_plain(dataclasses.asdict(self))
        return found

    def with_method(self, method: Mapping[str, Any], seed: int | None = None) -> Experiment:
        """The same experiment under another method, and perhaps another seed."""
        try:
            return dataclasses.replace(self, method=dict(method), seed=self.seed if seed is None else seed)
        except ValueError as fault:
            raise SettingsError(f"{fault}.") from None
