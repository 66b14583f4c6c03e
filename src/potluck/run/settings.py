"""The settings of an experiment, as in a TOML file; everything has a default."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from potluck.core import Local, SettingsError, nearest_name, to_plain
from potluck.data import OWN, Data
from potluck.engines import Gate
from potluck.fleet import Fleet
from potluck.learn import Precision
from potluck.secure.settings import Secure


@dataclass(frozen=True)
class TierSettings:
    """A kind of device, under [[tier]]."""

    name: str = "everyone"
    """Its name, in tables and in --set tier.NAME.share=2; each tier has its own."""
    share: float = 1.0
    """Its share of the clients, relative to the other tiers' shares."""
    width: float | dict[str, float] | Literal["fit"] | None = None
    """The fraction of each layer's units that it can train, for all layers or by axis group ("layer*.qk" stands for
    that group of every layer). "fit": the largest of fleet.widths that a device of its profile can train."""
    depth: int | tuple[int, ...] | Literal["fit"] | None = None
    """The number of blocks that it can train; one number per stage if the family has stages. "fit": the largest that a
    device of its profile can train; with width = "fit" too, the pair with the most FLOPs."""
    model: dict[str, Any] | None = None
    """Its own architecture instead of a part of [model]; written like [model]."""
    profile: str = "laptop"
    """The device profile for its costs: `potluck list profiles`; or a file that `potluck measure` wrote, "my.toml"."""
    server_lr: float | None = None
    """The learning rate of the server's rule (method.server) for this tier's network; None: the rule's own. Under
    InclusiveFL every tier has a network on the server. Methods with one network there take the rate of its tier."""
    absent: bool = False
    """Its clients never take part, nor does their data; all others keep the data they would have with this tier."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1e9:
            raise ValueError(f"tier '{self.name}' has share = {self.share}; give a number above 0, at most 1e9")
        if self.server_lr is not None and not 0 < self.server_lr <= 1e9:
            raise ValueError(f"tier '{self.name}' has server_lr = {self.server_lr}; give a number above 0")


@dataclass(frozen=True)
class Scoring:
    """When models are scored, and on which clients, under [score]."""

    every: int = 1
    """Score after every this many rounds, and after the last round."""
    clients: int = 20
    """How many clients score the model on their own splits; the same ones each time."""
    local: bool = False
    """Also score the server's full model on these clients' splits, with classes that a client does not own masked."""
    common: bool = False
    """Score models that only clients have on the common test set, and each tier by the scores of its clients. So they
    can be compared with models that the server has."""
    personal: bool = False
    """Also score the models of these clients after the clients' local epochs: on the common test set, and on it with
    each client's own mix of labels. So methods with one model for all can be compared with those of personal models."""
    features: bool = False
    """At the end, compare the features of the tiers' networks on test rows, stage by stage, for the report."""
    compare_clients: int = 0
    """With features: also compare the networks of this many clients with one another, after their local epochs. This
    takes as long as a round with so many clients. For simulations."""
    plane: Literal["pca", "tsne"] = "pca"
    """How the report draws these features in the plane: their first two principal components, or t-SNE."""
    best: Literal["validation", "test"] = "validation"
    """What chooses the best round in tables and reports. validation: the validation set. test: the test set itself, as
    papers that report "best over rounds" do; such a score is too high, so tables say so."""
    targets: tuple[float, ...] = ()
    """Test scores for which tables and reports count the rounds needed: [0.85] is 85 %. Empty: 50, 80, 90 and 95 %.
    Tables in the terminal show only the first."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.clients < 0:
            raise ValueError("score.every must be at least 1 and score.clients at least 0")
        if self.compare_clients < 0 or self.compare_clients == 1:
            raise ValueError(f"score.compare_clients = {self.compare_clients}; give 0, or 2 or more to compare")
        if self.compare_clients and not self.features:
            raise ValueError("score.compare_clients needs score.features = true")
        if odd := [target for target in self.targets if not -1 < target <= 1]:
            remedy = f": for {odd[0]:g} % write {odd[0] / 100:g}" if 1 < odd[0] <= 100 else ""
            raise ValueError(f"score.targets = {odd[0]:g} must be above -1 and at most 1{remedy}")


@dataclass(frozen=True)
class Running:
    """How the work is done, under [run]. `stop_at`, `quorum` and `deadline` can change a result, `precision` its
    digits, `hardware`, `channels_last` and `stack` its last bits. Nothing else here changes a result."""

    engine: Literal["auto", "serial", "wire", "pool", "graphs", "ray"] = "auto"
    """auto: graphs on a GPU; else pool on Linux with several cores or workers, or with a deadline; else serial. ray:
    several machines."""
    hardware: Literal["cpu", "cuda"] = "cpu"
    """The hardware that simulates the clients. A GPU works with graphs, serial and wire; its results differ from a
    CPU's in the last bits."""
    precision: Precision = "fp32"
    """The precision of local training: with "tf32" and "bf16", matrix products and convolutions round their inputs."""
    channels_last: bool = False
    """Use the channels-last memory format for kernels, which is faster on a GPU with "bf16"."""
    streams: int = 10
    """How many clients a GPU trains side by side with graphs."""
    workers: int = 0
    """Worker processes of the pool or on Ray; 0: one per core, or one for each core of a run's share if several run at
    once (compare.jobs). On this machine at most 32 per core."""
    address: str = ""
    """The Ray cluster: "auto" finds the one that this machine is a part of; "host:6379"; "ray://host:10001" (needs
    `ray[client]`); empty: one is started here, for this run."""
    cpus: float = 1.0
    """Cores that are reserved for each worker on Ray. A worker computes with one thread."""
    gpus: float = 0.0
    """GPUs that are reserved for each worker on Ray. Above 0, a worker trains its clients on a GPU, as graphs does."""
    send_data: bool = False
    """On Ray: send the data set to the workers once. false: every node reads it from `data.path` itself."""
    deadline: float = 0.0
    """Seconds that a task may take; 0: no limit. A client that gives no answer in time counts as absent, and its worker
    process is replaced. The server's own tasks and scoring are tried three times, on Ray all tasks. Needs the pool or
    Ray."""
    stack: int = 0
    """How many clients train stacked if their networks are small, dense and equal in shape (20 to 50 is good); 0: each
    trains alone."""
    checkpoint_every: int = 1
    """Rounds between checkpoints."""
    keep: int = 2
    """How many checkpoints are kept."""
    quorum: int = 1
    """How many clients must answer for a round to count."""
    retries: int = 3
    """How often a round that missed its quorum is tried again."""
    stop_at: dict[str, float] = field(default_factory=dict)
    """Stop early when the main score on the validation set reaches this: {accuracy = 0.95}."""
    live: bool = True
    """Write live.jsonl into the run folder, which `potluck board` follows: every task and round, as it happens."""

    def __post_init__(self) -> None:
        lows = {"workers": 0, "streams": 1, "stack": 0, "checkpoint_every": 1, "keep": 1, "quorum": 0, "retries": 0}
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ValueError(f"run.{name} = {getattr(self, name)} is below {low}")
        if not 0 <= self.deadline <= 1e9:
            raise ValueError(f"run.deadline = {self.deadline:g} must be from 0 (no limit) to 1e9 seconds")
        if self.cpus < 0 or self.gpus < 0 or not math.isfinite(self.cpus + self.gpus) or not self.cpus + self.gpus:
            raise ValueError(f"run.cpus = {self.cpus:g}, run.gpus = {self.gpus:g}: a worker needs a core or a GPU")
        if self.engine != "ray" and (self.address or self.gpus or self.cpus != 1.0 or self.send_data):
            names = ("address", "gpus", "cpus", "send_data")
            name = next(name for name in names if getattr(self, name) != getattr(type(self), name))
            raise ValueError(f'run.{name} needs run.engine = "ray"')
        if self.hardware != "cpu" and self.engine == "ray":
            raise ValueError('run.hardware = "cuda" is for this machine; on Ray, run.gpus = 1 gives each worker a GPU')
        if self.hardware != "cpu" and self.engine == "pool":
            raise ValueError('run.hardware = "cuda" needs run.engine = "graphs": a GPU is not shared among processes')
        if self.hardware == "cpu" and self.engine == "graphs":
            raise ValueError('run.engine = "graphs" needs run.hardware = "cuda": it captures work for a GPU')
        if self.hardware == "cpu" and not self.gpus and (self.channels_last or self.precision == "tf32"):
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
    """Noise on what clients upload, or on its sum, under [privacy]: off until `noise` or `epsilon` is given. See
    docs/security.md."""

    where: Literal["device", "server"] = "device"
    """Where noise is added. device: to every update before it leaves (local differential privacy). server: to the sum
    of the clipped updates (central differential privacy), so that much less is needed; the server is trusted to. With
    [secure], clients add this noise together, under the masks, and the server never sees a sum without it."""
    mechanism: Literal["gaussian", "tree"] = "gaussian"
    """The noise of the server. gaussian: independent in every round; counts on a random cohort that stays secret. tree:
    on sums over rounds (DP-FTRL), where nothing is assumed of who takes part."""
    clip: float | Literal["adaptive"] = 1.0
    """The largest norm of an update (new minus sent) that leaves a device; a longer one is scaled down. "adaptive":
    with noise of the server, it follows a quantile of the clients' norms, which costs a small part of the privacy."""
    first_clip: float = 0.1
    """The clip of the first round, if it is adaptive."""
    quantile: float = 0.5
    """The share of updates that an adaptive clip leaves as they are."""
    noise: float | None = None
    """The standard deviation of the Gaussian noise on each entry of an update (at the server: of the sum), as a
    multiple of `clip`."""
    epsilon: float | None = None
    """Instead of `noise`: the epsilon to guarantee to every client; the noise follows from it."""
    delta: float = 1e-5
    """The probability with which the guarantee may fail."""
    neighbours: Literal["auto", "replace-one"] = "auto"
    """What epsilon of the server's noise compares. auto: a client that is there or not, if cohorts are drawn by coins
    (fleet.draw = "poisson"); one whose updates are left out, under mechanism = "tree"; else replace-one. replace-one: a
    client with any other data, as always with noise of devices; a stronger promise."""
    per: Literal["run", "upload"] = "run"
    """What `epsilon` covers: all uploads of a client in the run, or each single upload."""

    def __post_init__(self) -> None:
        for name in ("clip", "first_clip", "noise", "epsilon"):
            value = getattr(self, name)
            if value is not None and value != "adaptive" and not 1e-6 <= value <= 1e6:
                raise ValueError(f"privacy.{name} = {value} must be from 1e-6 to 1e6")
        if not 1e-100 <= self.delta < 1:
            raise ValueError(f"privacy.delta = {self.delta} must be above 0 and below 1")
        if not 0 < self.quantile < 1:
            raise ValueError(f"privacy.quantile = {self.quantile} must be above 0 and below 1")
        if self.noise is not None and self.epsilon is not None:
            raise ValueError("privacy.noise and privacy.epsilon exclude each other; give one of them")
        if self.where == "device" and (self.clip == "adaptive" or self.mechanism == "tree"):
            name = 'clip = "adaptive"' if self.clip == "adaptive" else 'mechanism = "tree"'
            raise ValueError(f'privacy.{name} needs privacy.where = "server"')
        if self.clip == "adaptive" and self.mechanism == "tree":
            raise ValueError('privacy.clip = "adaptive" and privacy.mechanism = "tree" exclude each other: give a clip')
        if self.where == "server" and self.per == "upload":
            raise ValueError('privacy.per = "upload" needs privacy.where = "device": the server releases only sums')

    @property
    def enabled(self) -> bool:
        """Whether updates get noise."""
        return self.noise is not None or self.epsilon is not None

    @property
    def clip_at_first(self) -> float:
        """The clip of the first round."""
        return self.first_clip if self.clip == "adaptive" else self.clip


@dataclass(frozen=True)
class Nodes:
    """A federation of real nodes, under [nodes]: what their data is, and how the server waits for them. Simulations do
    not read it. See docs/deploying.md."""

    shape: tuple[int, ...] = ()
    """The shape of one input, the same at every node, such as [1, 28, 28]; for texts, the tokens of a row."""
    classes: int | None = None
    """The number of classes; 0: the labels are numbers to regress on."""
    names: tuple[str, ...] = ()
    """The names of the classes, in order, if they matter: for tags, they are the tags."""
    labels: Literal["row", "tokens", "tags"] = "row"
    """What has a label: each row; each token (the next token); or each token, with BIO tags."""
    tokens: int = 0
    """For texts: the size of the vocabulary. All nodes need the same one (data.tokenizer). 0: inputs are no tokens."""
    pad: int = 0
    """For texts: the padding token."""
    sep: int = -1
    """For texts: the token that ends the first text of a row, if rows may hold two texts; -1: they hold one."""
    test: str = ""
    """A file with test rows that the server has itself; empty: only nodes score models, on rows of their own."""
    public: str = ""
    """A file with public rows, for methods that need them. Every node has a copy, which is compared by a checksum."""
    wait_for: int = 0
    """How many nodes must be there before the first round; 0: all that are admitted."""
    patience: float = 600.0
    """Seconds that the server waits for nodes to come back, before a round that has too few of them, or after it was
    started again. Then it goes on with those that are there."""
    grace: float = 45.0
    """Seconds that a node may be away within a round before the round goes on without it."""
    deadlines: dict[str, float] = field(default_factory=dict)
    """Seconds that a task may take, by tier; for tiers that are not named, run.deadline counts."""
    misses: int = 3
    """After this many rounds in a row without an answer, a node is not asked again until it comes back; one that is
    there but too slow is offered a smaller tier."""
    most_samples: int = 10_000_000
    """The largest number of samples that a node may say it has. It bounds the weight of its updates."""
    floor: int = 20
    """A node tells no scores of splits that have fewer rows than this."""
    updates: Literal["exact", "16-bit", "8-bit"] = "exact"
    """How nodes send the models that they trained. exact: all numbers in full. 16-bit, 8-bit: the difference from the
    model that they got, rounded; buffers stay exact."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if any(length < 1 for length in self.shape):
            raise ValueError(f"nodes.shape = {list(self.shape)} must hold whole numbers above 0")
        lows = {"wait_for": 0, "misses": 1, "most_samples": 1, "floor": 0, "tokens": 0, "pad": 0, "sep": -1}
        for name, low in lows.items():
            if getattr(self, name) < low:
                raise ValueError(f"nodes.{name} = {getattr(self, name)} is below {low}")
        if self.classes is not None and (self.classes < 0 or self.classes == 1):
            raise ValueError(f"nodes.classes = {self.classes} must be at least 2, or 0 for numbers to regress on")
        for name in ("patience", "grace"):
            if not 0 <= getattr(self, name) <= 1e9:
                raise ValueError(f"nodes.{name} = {getattr(self, name):g} must be from 0 to 1e9 seconds")
        if odd := [tier for tier, seconds in self.deadlines.items() if not 0 < seconds <= 1e9]:
            raise ValueError(f"nodes.deadlines has {self.deadlines[odd[0]]:g} for '{odd[0]}'; give seconds above 0")


BUDGETS = ("rounds", "bytes", "time", "energy", "flops")
"""What a comparison can be held equal in."""


@dataclass(frozen=True)
class Comparison:
    """What `potluck compare` runs by default, under [compare]."""

    methods: tuple[str | dict[str, Any], ...] = ()
    """Names, or tables with a name and settings of that method."""
    seeds: tuple[int, ...] = ()
    """The seeds with which every method runs; empty: the experiment's own seed."""
    jobs: int = 1
    """How many runs go on at the same time, each in a process of its own with its share of the cores. The results are
    the same."""
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Variants by name: the settings that each changes, written like --set. Every method runs under every variant."""
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The methods that run under a variant, if not all do: methods may need different kinds of tiers."""
    changes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings that are changed for a method, by its name, written like --set: a method may need tiers of another kind
    (widths for HeteroFL, depths for InclusiveFL). They come after those of a variant."""
    budget: dict[str, float] = field(default_factory=dict)
    """Compare at equal cost as well: tables and reports show the score at the last scored round within {energy = 500}.
    Keys: rounds, bytes, time (modelled seconds), energy (joules), flops; each has its own column. No run is cut."""
    tune: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that every method tries for a setting: {"local.lr" = [0.01, 0.03, 0.1]}. Each chooses by validation
    score, and runs with what it chose. A method's own setting has the method's name in front: "fedprox.mu"."""
    tune_seeds: tuple[int, ...] = (1000,)
    """The seeds of the runs that choose; none of them may be in `seeds`."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """What a method chose, by which score, and what the choice cost. `potluck compare` sets it."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"compare.jobs = {self.jobs} is below 1")
        if empty := [name for name, values in self.tune.items() if not values]:
            raise ValueError(f"compare.tune has no values for '{empty[0]}'; give some, such as [0.01, 0.1]")
        if self.tune and not self.tune_seeds:
            raise ValueError("compare.tune_seeds is empty; give at least one seed")
        for key, amount in self.budget.items():
            if key not in BUDGETS:
                near = nearest_name(key, BUDGETS)
                hint = f"did you mean '{near}'?" if near else "there is no such cost."
                raise ValueError(f"compare.budget.{key} = {amount:g}: {hint} There are {', '.join(BUDGETS)}")
            if not 0 < amount < math.inf:
                raise ValueError(f"compare.budget.{key} = {amount:g} must be above 0")
        if odd := self.only.keys() - self.variants.keys():
            raise ValueError(f"compare.only names '{min(odd)}', which is not in compare.variants")


@dataclass(frozen=True)
class Track:
    """Trackers that hear of a run, under [track]; any of them at once (`pip install 'potluck[track]'`). None of them
    changes a result. See docs/tracking.md."""

    tensorboard: bool | str = False
    """true: an event file in the run folder. A folder, such as "runs/tb": one in a folder for each run in there."""
    mlflow: str = ""
    """Where MLflow keeps runs: a folder, such as "file:./mlruns", or the address of a server. The experiment has the
    name of this one."""
    wandb: str = ""
    """The project at Weights & Biases: "project", or "team/project"."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """offline: W&B's files stay in the run folder, until you send them with `wandb sync`. online: they are also sent
    while the run goes on."""

    def __post_init__(self) -> None:
        if "@" in urlsplit(self.mlflow).netloc:
            raise ValueError(
                "track.mlflow holds a user or password, which every copy of the settings would tell; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )
        if self.wandb and not re.fullmatch(r"([^/\\#?%:]+/)?[^/\\#?%:]+", self.wandb):
            raise ValueError(f"track.wandb = {self.wandb!r} must be a project, or a team and a project: team/project")


@dataclass(frozen=True)
class Experiment:
    """All settings of one experiment."""

    name: str = "digits"
    """What run folders and reports are called; in a file, by default the file's name. Only runs on the data set digits
    have this name: others have that of their data."""
    variant: str = ""
    """The name of the variant in a comparison, which sets it; else empty."""
    seed: int = 0
    """Everything random follows from it: the partition, the first weights, cohorts and batches."""
    rounds: int = 40
    """How many rounds are trained."""
    cohort: int = 10
    """The number of clients in each round."""
    data: Data = Data()
    model: dict[str, Any] = field(default_factory=lambda: {"name": "cnn"})
    """The server's network: its name, and options of its family. See `potluck list models`. A network of your own has
    the name "module:function"; its other settings are the function's arguments."""
    tier: tuple[TierSettings, ...] = (TierSettings(),)
    fleet: Fleet = Fleet()
    method: dict[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    """The method's name and its settings. See `potluck list methods`. A method of your own has the name
    "module:Class"."""
    local: Local = Local(epochs=5, batch=8)
    """How clients train; the same for every method."""
    gate: Gate = Gate()
    privacy: Privacy = Privacy()
    secure: Secure = Secure()
    score: Scoring = Scoring()
    run: Running = Running()
    compare: Comparison = Comparison()
    nodes: Nodes = Nodes()
    track: Track = Track()

    def __post_init__(self) -> None:
        if self.data.name != OWN:
            object.__setattr__(self, "name", self.name_for(self.data.name))
        for name, low in (("seed", 0), ("rounds", 0), ("cohort", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} = {getattr(self, name)} is below {low}")
        if not self.tier:
            raise ValueError("there is no [[tier]]; leave the list out for one tier of equal devices")
        if all(tier.absent for tier in self.tier):
            raise ValueError("every [[tier]] is absent; leave absent = true out of one of them")

    def name_for(self, data: str) -> str:
        """The experiment's name if it runs on this data: nothing is called digits that is not."""
        return data if self.name == Experiment.name else self.name

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
