"""The contract: every method through the same checks.

A method is covered as soon as `potluck.methods.METHODS` lists it. It owes this file one line under `DEGENERATES`: the
settings under which it is FedAvg on equal devices, or why there are none.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from functools import cache

import pytest
import torch

from potluck.core import SERVER, Client, Examples, Model, Round, SettingsError, digest, settings, stream
from potluck.engines import ENGINES, Dispatcher, Graphs, Serial
from potluck.methods import METHODS
from potluck.run import assemble, config, experiment, resume, run


@dataclass(frozen=True)
class Case:
    """A method under some settings of its own."""

    name: str
    own: tuple[tuple[str, object], ...] = ()

    @property
    def method(self):
        return {"name": self.name, **dict(self.own)}

    def __str__(self):
        return "-".join([self.name, *(f"{value}" for _, value in self.own)])


VARIANTS = [
    Case("fedavg", (("share", "layerwise"),)),
    Case("fedavg", (("share", "per_arch"),)),
    Case("fedavg", (("weighting", "uniform"),)),
    Case("fedprox", (("share", "layerwise"),)),
    Case("fedadam", (("share", "layerwise"),)),
    Case("fedadam", (("share", "per_arch"),)),
    Case("exclusivefl", (("sampling", "eligible"),)),
    Case("fedin", (("share", "per_arch"), ("combine", "project"), ("fifo", 40))),
    Case("fedin", (("combine", "steps"), ("exclude_self", True))),
    Case("inclusivefl", (("profile", "code"),)),
    Case("inclusivefl", (("source", "pre"), ("share_layers", False))),
    Case("inclusivefl", (("private", "head"),)),
    Case("scaffold", (("share", "layerwise"), ("variate", "start"))),
    Case("scaffold", (("share", "per_arch"), ("variate", "mean"))),
    Case("fednova", (("share", "layerwise"), ("mu", 0.1))),
    Case("moon", (("share", "layerwise"),)),
    Case("lotteryfl", (("weighting", "samples"), ("label_mask", True))),
    Case("hermes", (("threshold", 0.0), ("prune", 0.5))),
    Case("tailorfl", (("tuning", 1), ("swap", 0.5))),
    Case("fedskel", (("period", 2), ("label_mask", True))),
    Case("fedmd", (("rows", 12),)),
    Case("feddf", (("share", "whole"), ("on", "noise"))),
    Case("dsfl", (("aggregate", "sa"), ("rows", 12))),
    Case("fedgems", (("rows", 12), ("exclude", True))),
    Case("fedgems", (("select", False),)),
    Case("fedet", (("weighting", "uniform"),)),
    Case("moss", (("prom", False), ("fidelity", "flat"))),
    Case("moss", (("proxy_sync", False), ("meta_persist", False), ("fidelity", "equal"))),
]
CASES = [*(Case(name) for name in METHODS), *VARIANTS]


@dataclass(frozen=True)
class Neutral:
    """On equal devices the method with these settings is FedAvg: bit for bit, or within this much."""

    own: dict
    within: float = 0.0
    local: dict | None = None
    """How clients must train for that."""
    rounds: int = 2
    """For how many rounds it is."""


ADAPTIVE = {
    "lr": 1e6,
    "beta1": 0.0,
    "tau": 1e6,
}  # a step divided by (its size + tau) and multiplied by lr = tau: itself
DEGENERATES = {
    "fedavg": Neutral({}),
    "fedprox": Neutral({"mu": 0.0}),
    "scaffold": Neutral({"weighting": "samples"}, rounds=1),
    "fednova": Neutral({"mu": 0.0}, 1e-6, local={"lr": 0.1, "steps": 3, "batch": 16}),
    "moon": Neutral({"mu": 0.0}),
    "fedavgm": Neutral({"server": {"name": "momentum", "beta": 0.0}}, 1e-6),
    "fedadam": Neutral({"server": {"name": "adam", **ADAPTIVE}}, 1e-5),
    "fedyogi": Neutral({"server": {"name": "yogi", **ADAPTIVE}}, 1e-5),
    "fedadagrad": Neutral({"server": {"name": "adagrad", **ADAPTIVE}}, 1e-5),
    "fedadamw": Neutral({"server": {"name": "adamw", "lr": 1e6, "beta1": 0.0, "eps": 1e6}}, 1e-5),
    "alllarge": Neutral({}),
    "allsmall": Neutral({}),
    "exclusivefl": Neutral({}),
    "local": "nothing is shared: there is no model to compare with FedAvg's",
    "heterofl": Neutral({"weighting": "samples", "label_mask": False}),
    "feddropout": Neutral({"weighting": "samples", "label_mask": False}),
    "fedrolex": Neutral({"weighting": "samples", "label_mask": False, "step": 0}),
    "fjord": Neutral({"widths": [1.0], "distill": False}),
    "fedin": Neutral({"mu": 0.0, "lend": 0}),
    "inclusivefl": Neutral(
        {"profile": "paper", "server": {"name": "replace"}, "weighting": "samples", "private": "none"}
    ),
    "lotteryfl": Neutral({"threshold": 2.0, "weighting": "samples", "label_mask": False}, 1e-6),
    "hermes": Neutral({"threshold": 2.0, "sparsity": 0.0, "weighting": "samples"}),
    "tailorfl": Neutral({"weighting": "samples"}),
    "fedmask": "weights never change: only bits are learned",
    "fedskel": Neutral({"cut": 0.0, "weighting": "samples", "label_mask": False}),
    "fedmd": "models live on the clients, and only scores cross the wire",
    "feddf": Neutral({"teach": {"epochs": 0}}),
    "dsfl": "models live on the clients, and only answers cross the wire",
    "fedgems": "models live on the clients, and only scores cross the wire",
    "fedet": Neutral({"teach": {"steps": 0}}),
    "moss": Neutral({"identity_shortcut": "both"}),
}
PUBLIC = 40
"""Public rows, of ten classes, for methods that need them."""
STILL = {
    "feddf": {"teach": {"epochs": 0}},
    "dsfl": {"distils": 0},
    "fedgems": {"passes": 0},
    "fedet": {"teach": {"steps": 0}},
    "moss": {"wire": {"epochs": 0}},
}
"""Settings under which a server that trains does not."""
QUICK = {"moss": {"wire": {"epochs": 1}}}
"""Settings under which a server that trains much trains less."""
SPOKEN = {
    "fedmd": {"answer": "up", "digest": "down"},
    "dsfl": {"train": "up", "distil": "down"},
    "fedgems": {"train": "up", "follow": "down"},
}
"""Methods of which only scores of public rows cross the wire: the way they go under each verb."""
MASKED = {"lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel"}
"""Methods whose clients are asked what they hold."""
LENT = {"fedin": 16 * (8 + 8)}
"""Numbers that a client uploads beside its part in its first round: features of a batch at both ends of the body."""
TWICE = {"scaffold"}
"""Methods whose tensors cross the wire with a control variate each."""


def plain(case, **changes):
    """A federation of 3 x 3 unequal devices with unequal data."""
    base = {
        "rounds": 4,
        "cohort": 5,
        "data": {"clients": 9, "partition": "dirichlet", "alpha": 0.5, "public": PUBLIC * (case.name in SPEAKING)},
        "model": {"name": "mlp", "hidden": 8, "depth": 3},
        "tier": NARROW if case.name in BY_WIDTH else SHALLOW,
        "method": {**QUICK.get(case.name, {}), **case.method},
        "local": {"lr": 0.1, "epochs": 1, "batch": 16},
        "score": {"every": 2, "clients": 3},
        "run": {"engine": "serial"},
    }
    return {**base, **changes}


SHALLOW = [{"name": name, "depth": depth} for name, depth in (("small", 1), ("medium", 2), ("large", 3))]
NARROW = [{"name": name, "width": width} for name, width in (("small", 0.2), ("medium", 0.6), ("large", 1.0))]
BY_WIDTH = {"heterofl", "feddropout", "fedrolex", "fjord", *MASKED}
"""Methods whose tiers differ in width; the others' differ in depth."""
EQUAL = [{"name": "everyone"}]
SPEAKING = {*SPOKEN, "feddf", "fedet", "moss"}
"""Methods that need public rows."""


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Runs a case, once for each set of changes."""

    @cache
    def done(case, changes):
        return run(experiment(plain(case, **json.loads(changes))), tmp_path_factory.mktemp("contract") / "run")

    return lambda case, **changes: done(case, json.dumps(changes))


@dataclass
class Table:
    """A federation laid out for single rounds."""

    case: Case
    changes: dict

    def __post_init__(self):
        self.setup = assemble(experiment(plain(self.case, **self.changes)))
        self.method, self.zoo = self.setup.context.method, self.setup.context.zoo
        self.population = self.setup.population
        self.memories = {}
        self.dispatcher = Dispatcher(Serial(self.setup.context), self.method, self.zoo, recall=self.memories.get)

    def init(self):
        return self.method.init(self.zoo, stream(0, "init"))

    def round(self, state, index=0, order=lambda cohort: cohort, size=9):
        """A committed round of `size` clients in this order."""
        self.session = self.dispatcher.open(index)

        def recruit(wanted):
            return order(self.population.cohort(index, size, wanted))

        cohort = recruit(lambda client: True)
        now = Round(index, cohort, 9, self.zoo, 0, self.session.send, self.session.fold, recruit)
        state = self.method.round(state, now)
        self.session.close()
        self.memories |= {client: (index, memory) for client, memory in self.session.staged.items()}
        return state


def table(case, **changes):
    return Table(case, changes)


def tensors(value, path=""):
    """Every tensor in a state or a memory, by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, Model):
        return tensors(value.arrays or {}, path)
    items = value if isinstance(value, dict) or hasattr(value, "items") else vars(value)
    return {k: t for name, item in items.items() if _holds(item) for k, t in tensors(item, f"{path}/{name}").items()}


def _holds(item):
    return isinstance(item, torch.Tensor | Model) or hasattr(item, "items")


def memories(made):
    return {client: memory for client, (_, memory) in made.memories.items()}


def lines(result, name):
    return [json.loads(line) for line in (result.folder / name).read_text().splitlines()]


def told(result):
    """The ledger, less what a clock measured."""
    found = lines(result, "ledger.jsonl")
    for line in found:
        line.pop("seconds", None)
        line.pop("time", None)
        line.get("measured", {}).pop("seconds", None)
    return found


def finite(value):
    """Whether every number in plain values is finite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def test_every_method_says_how_it_becomes_fedavg_or_why_it_does_not():
    assert set(DEGENERATES) == set(METHODS), "add a line to DEGENERATES for a new method"
    assert all(isinstance(line, Neutral) or (isinstance(line, str) and line) for line in DEGENERATES.values())


def test_settings_survive_json(case):
    made = config.method(case.method, experiment(plain(case)).local)
    again = json.loads(json.dumps(settings(made)))
    local = experiment(plain(case)).local
    assert config.method({"name": case.name, **again}, local) == made
    assert hash(made) == hash(config.method({"name": case.name, **again}, local))


def test_every_setting_that_is_changed_arrives(case):
    """A method's numbers, each moved a little, come back moved."""
    made = config.method(case.method, experiment(plain(case)).local)
    for field in fields(made):
        value = getattr(made, field.name)
        if isinstance(value, float):
            moved = replace(made, **{field.name: value + 0.25})
            assert config.method({"name": case.name, **json.loads(json.dumps(settings(moved)))}, made.local) == moved


@pytest.mark.parametrize("engine", [{"engine": "wire"}, {"engine": "pool", "workers": 2}], ids=["wire", "pool"])
def test_every_engine_gives_the_same_bits(case, ran, engine):
    reference, other = ran(case), ran(case, run=engine)
    assert other.weights_sha256 == reference.weights_sha256
    assert lines(other, "scores.jsonl") == lines(reference, "scores.jsonl")
    assert told(other) == told(reference)


def test_steps_that_are_recorded_and_played_give_the_same_bits(case, ran, tmp_path, monkeypatch):
    """The engine of GPUs, on a CPU: everything but the recording itself."""
    reference = ran(case)
    monkeypatch.setitem(ENGINES, "serial", Graphs)
    made = run(experiment(plain(case)), tmp_path / "run")
    assert made.weights_sha256 == reference.weights_sha256
    assert lines(made, "scores.jsonl") == lines(reference, "scores.jsonl")


def test_the_given_state_is_untouched(case):
    made = table(case)
    state = made.round(made.init())
    given, kept = tensors(state), {path: tensor.clone() for path, tensor in tensors(state).items()}
    remembered = {path: tensor.clone() for path, tensor in tensors(memories(made)).items()}
    before = dict(made.memories)
    after = made.round(state, 1)
    assert after is not state or not given
    assert all(torch.equal(given[path], tensor) for path, tensor in kept.items())
    assert tensors(state).keys() == kept.keys()
    held = tensors({client: memory for client, (_, memory) in before.items()})
    assert all(torch.equal(held[path], tensor) for path, tensor in remembered.items())
    if not isinstance(DEGENERATES[case.name], str):
        assert digest(tensors(after)) != digest(kept)


def test_a_resumed_run_equals_one_that_never_stopped(case, ran, tmp_path):
    run(experiment(plain(case, rounds=2)), tmp_path / "run")
    resumed, whole = resume(tmp_path / "run", rounds=4), ran(case)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert lines(resumed, "scores.jsonl") == lines(whole, "scores.jsonl")
    assert told(resumed) == told(whole)
    assert resumed.rounds == 4


def test_permuting_the_cohort_changes_nothing_beyond_rounding(case):
    found = []
    for order in (list, lambda cohort: cohort[::-1], lambda cohort: cohort[4:] + cohort[:4]):
        made = table(case)
        state = made.round(made.round(made.init(), 0, order), 1, order)
        found.append({**tensors(state), **tensors(memories(made))})
        assert made.session.accepted > 0
    first, *others = found
    assert first
    for other in others:
        assert other.keys() == first.keys()
        assert all(torch.allclose(other[path], tensor, rtol=1e-5, atol=1e-6) for path, tensor in first.items())


def test_a_client_dropped_at_random_is_survived(case, ran):
    result = ran(case, fleet={"dropout": 0.4})
    tasks = [line for line in told(result) if line["event"] == "task"]
    assert {line["outcome"] for line in tasks} == {"accepted", "absent"}
    assert {line["reason"] for line in tasks if line["outcome"] == "absent"} == {"dropped out"}
    assert result.rounds == 4
    assert finite(lines(result, "scores.jsonl"))


def test_everything_is_finite(case, ran):
    result = ran(case)
    assert finite(told(result))
    assert finite(lines(result, "scores.jsonl"))
    assert finite(result.plain())
    made = table(case)
    state = made.round(made.round(made.init()), 1)
    numbers = {**tensors(state), **tensors(memories(made))}
    assert numbers
    assert all(bool(tensor.isfinite().all()) for tensor in numbers.values())


def test_bytes_in_the_ledger_are_the_size_of_the_part(case):
    made = table(case)
    state = made.init()
    clients = {client.id: client for client in made.population.cohort(0, 9)}
    made.round(state)
    assert made.session.entries
    for entry in made.session.entries:
        if entry.task.to == SERVER:  # what the server asks of itself crosses no wire
            continue
        if case.name in MASKED:
            units = {"small": 2, "medium": 5, "large": 8}[clients[entry.task.to].tier.name]
            assert (entry.cost.bytes_down, entry.cost.bytes_up) == masked(case, entry.task.verb, units)
            continue
        if case.name in SPOKEN:
            assert (entry.cost.bytes_down, entry.cost.bytes_up) == spoken(case, entry.task.verb)
            continue
        model = made.method.serve(state, clients[entry.task.to], made.zoo)
        numbers = sum(tensor.numel() for tensor in model.arrays.values()) if model else 0
        down = 2 * numbers if case.name in TWICE else numbers
        up = down + LENT.get(case.name, 0)
        assert (entry.cost.bytes_down, entry.cost.bytes_up) == (4 * down, 4 * up)


def spoken(case, verb):
    """Bytes down and up of scores of public rows and, where a round is about some of them, of which they are."""
    rows = dict(case.own).get("rows")
    told, scores = 8 * (rows or 0), 4 * 10 * (rows or PUBLIC)
    return (told, scores) if SPOKEN[case.name][verb] == "up" else (told + scores, 0)


def masked(case, verb, units):
    """Bytes down and up of a first round under masks, to a client that keeps so many of the 8 units of a layer."""
    whole, part = 4 * numbers(3), 4 * (65 * units + 3 * (units * units + units) + 10 * units + 10)
    bits = 2 * math.ceil(units * units / 8) + math.ceil(10 * units / 8)  # of the last three layers
    held = {"lotteryfl": 64 + 3 * 8 + 10}.get(case.name, 4)  # a bit for each weight; for each of 4 x 8 units
    return {
        "show": (0, held),
        "tailor": (whole, held),
        "train": {
            "lotteryfl": (whole, whole + held),
            "tailorfl": (part, part),
            "fedmask": (0, bits),
        }.get(case.name, (whole, whole)),
        "merge": (whole if case.name == "hermes" else 2 * units * units + 10 * units, 0),
    }[verb]


def numbers(depth):
    """Weights and biases of the stem (64 inputs), of each block, and of the head (10 classes), 8 units wide."""
    return (64 * 8 + 8) + depth * (8 * 8 + 8) + (8 * 10 + 10)


@pytest.mark.parametrize(
    ("case", "depths"),
    [
        (Case("fedavg"), {"small": 3, "medium": 3, "large": 3}),
        (VARIANTS[0], {"small": 1, "medium": 2, "large": 3}),
        (VARIANTS[1], {"small": 1, "medium": 2, "large": 3}),
        (Case("alllarge"), {"small": 3, "medium": 3, "large": 3}),
        (Case("allsmall"), {"small": 1, "medium": 1, "large": 1}),
        (Case("exclusivefl"), {"large": 3}),
        (Case("local"), {"small": None, "medium": None, "large": None}),
    ],
    ids=str,
)
def test_bytes_by_hand(case, depths, ran):
    tasks = [line for line in told(ran(case)) if line["event"] == "task"]
    found = {line["tier"]: line["measured"] for line in tasks}
    expected = {tier: 0 if depth is None else 4 * numbers(depth) for tier, depth in depths.items()}
    assert found == {tier: {"bytes_down": size, "bytes_up": size} for tier, size in expected.items()}


def test_zero_local_steps_leave_the_model_bit_identical(case):
    own = {**dict(case.own), **STILL.get(case.name, {})}
    made = table(Case(case.name, tuple(own.items())), local={"lr": 0.1, "steps": 0})
    state = made.init()
    after = made.round(made.round(state), 1)
    assert made.session.accepted > 0
    assert digest(tensors(Served(after))) == digest(tensors(Served(state)))


class Served:
    """A state without what its server rule remembers and what clients lent."""

    def __init__(self, state):
        self.__dict__.update({name: value for name, value in vars(state).items() if name not in ("slots", "bank")})


def test_a_run_of_zero_local_steps_finishes(case, ran):
    result = ran(case, local={"lr": 0.1, "steps": 0})
    assert result.rounds == 4
    assert finite(lines(result, "scores.jsonl"))
    assert finite(told(result))


@pytest.mark.parametrize("case", [VARIANTS[0], VARIANTS[1], VARIANTS[4]], ids=str)
def test_a_largest_tier_that_stays_away_keeps_its_bits_and_is_missed(case, ran):
    """FAULTS 11: the large tier's share is too small for a single client."""
    shares = {"small": 1.0, "medium": 1.0, "large": 0.001}
    tiers = [{"name": name, "depth": 1 + number, "share": share} for number, (name, share) in enumerate(shares.items())]
    made = table(case, tier=tiers)
    start = made.init()
    after = made.round(made.round(start), 1)
    large = next(tier for tier in made.zoo.tiers if tier.name == "large")
    old, new = (made.method.serve(state, Client("c0", large), made.zoo).arrays for state in (start, after))
    own = [name for name in old if name.startswith("body.2") or "per_arch" in str(case)]
    assert len(own) == (10 if "per_arch" in str(case) else 2)
    assert digest({name: new[name] for name in own}) == digest({name: old[name] for name in own})
    result = ran(case, tier=tiers)
    (warning,) = [line["text"] for line in told(result) if line["event"] == "warning"]
    assert warning.startswith("round 3: nothing from tier 'large' for 3 rounds")
    assert f"{made.session.coverage:.0%} of the model was trained" in warning
    assert finite(lines(result, "scores.jsonl"))


def test_on_equal_devices_and_with_neutral_settings_it_is_fedavg(case):
    neutral = DEGENERATES[case.name]
    if isinstance(neutral, str):
        assert neutral
        return
    own = tuple({**dict(case.own), **neutral.own}.items())
    changes = {"tier": EQUAL, "data": plain(case)["data"], **({"local": neutral.local} if neutral.local else {})}
    same = table(Case(case.name, own), **changes)
    weighting = tuple((name, value) for name, value in case.own if name == "weighting")
    fedavg = table(Case("fedavg", weighting), **changes)
    ours, theirs = same.init(), fedavg.init()
    for index in range(neutral.rounds):
        ours, theirs = same.round(ours, index, size=5), fedavg.round(theirs, index, size=5)
    assert digest(theirs.model.arrays) != digest(fedavg.init().model.arrays)
    if neutral.within:
        for name, tensor in theirs.model.arrays.items():
            assert torch.allclose(ours.model.arrays[name], tensor, rtol=0, atol=neutral.within), name
    else:
        assert digest(ours.model.arrays) == digest(theirs.model.arrays)


def test_methods_meet_the_same_clients(ran):
    """Paired comparisons are valid: for a given seed and round, sampling does not depend on the method."""

    def met(name):
        return [(line["round"], line["client"]) for line in told(ran(Case(name))) if line["event"] == "task"]

    assert met("fedavg") == met("fedprox") == met("fedadam") == met("allsmall") == met("local")
    assert set(met("exclusivefl")) < set(met("fedavg"))


OWN = [
    {"name": "small", "model": {"name": "mlp", "hidden": 4}},
    {"name": "medium", "model": {"name": "lenet"}},
    {"name": "large"},
]
"""Tiers with nothing in common but the classes."""


class Overheard(Serial):
    """An engine that notes whose network each task speaks of and what kinds of numbers come back.

    With `blinded` every second client adds to its upload what every other one takes away from its own: sums stay.
    """

    def __init__(self, context, blinded=False):
        super().__init__(context)
        self.blinded, self.specs, self.bits = blinded, set(), False

    def carry(self, envelopes):
        for envelope in envelopes:
            (outcome,) = super().carry([envelope])
            task, reply = envelope.task, outcome.reply
            if task.to == SERVER or reply is None:
                yield outcome
                continue
            if "model" in task.models and task.verb != "tailor":  # to choose its units a client is once sent them all
                self.specs.add(task.models["model"].spec)
            uploaded = [*reply.arrays.values(), *tensors(reply.models).values()]
            self.bits |= any(tensor.dtype == torch.bool for tensor in uploaded)
            yield replace(outcome, reply=self.blind(reply)) if self.blinded else outcome

    def blind(self, reply):
        sign = 1 - 2 * (int(reply.task.to.removeprefix("c")) % 2)

        def hidden(arrays):
            pads = {name: torch.rand(t.shape, generator=stream(0, "pad", name)) for name, t in arrays.items()}
            return {name: t + sign * pads[name] if t.is_floating_point() else t for name, t in arrays.items()}

        models = {key: Model(model.spec, hidden(model.arrays)) for key, model in reply.models.items()}
        return replace(reply, models=models, arrays=hidden(reply.arrays))


def heard(case, blinded=False, rounds=1, size=9, **changes):
    """A federation after some rounds: its table, its state, and what its engine overheard."""
    made = table(case, **changes)
    made.dispatcher.engine = engine = Overheard(made.setup.context, blinded)
    state = made.init()
    for index in range(rounds):
        state = made.round(state, index, size=size)
    return made, state, engine


def known(state, made):
    """Every tensor that the server or a client holds."""
    return {**tensors(state, "server"), **tensors(memories(made), "clients")}


def test_clients_remember_something_exactly_where_the_method_says_so(case):
    made, _, _ = heard(case)
    assert bool(memories(made)) == made.method.facts.memory


def test_devices_train_the_networks_that_the_method_says(case):
    made, _, engine = heard(case)
    networks = made.method.facts.networks
    assert len(engine.specs) == (1 if networks == "one" else 3)
    if networks == "any":
        made, _, engine = heard(case, tier=OWN)
        assert engine.specs == {tier.spec for tier in made.zoo.tiers}
        assert {entry.verdict for entry in made.session.entries} == {"accepted"}
    elif networks == "width":
        assert {(spec.family, spec.depth) for spec in engine.specs} == {(made.zoo.full.family, made.zoo.full.depth)}
    elif networks == "depth":
        with pytest.raises(SettingsError):
            table(case, tier=NARROW)


def test_public_rows_are_needed_exactly_where_the_method_says_so(case):
    declared = config.method(case.method, experiment(plain(case)).local).facts.public
    without = {**plain(case)["data"], "public": 0}
    if declared == "none":
        heard(case, data=without)
        return
    with pytest.raises(SettingsError, match=r"public rows, and there are none; set data\.public"):
        table(case, data=without)
    right, wrong = table(case), table(case)
    datasets = wrong.setup.context.datasets
    public = datasets.public
    columns = {**public.columns, "y": (public.columns["y"] + 1) % 10}
    datasets.public = Examples(columns, public.rows, public.prepare, public.augment)
    found = [digest(known(made.round(made.init()), made)) for made in (right, wrong)]
    assert (found[0] == found[1]) == (declared == "inputs")


def test_a_server_model_larger_than_any_client_is_trained_all_over_exactly_where_the_method_says_so(case):
    smaller = NARROW[:2] if case.name in BY_WIDTH else SHALLOW[:2]
    made, state, engine = heard(case, rounds=4, tier=smaller)
    served = [made.method.serve(each, made.setup.server, made.zoo) for each in (made.init(), state)]
    larger = served[1] is not None and served[1].spec == made.zoo.full and made.zoo.full not in engine.specs
    if larger:
        before, after = (model.arrays for model in served)
        rows = [(after[name] != before[name]).flatten(1).any(1) for name in before if name.endswith(".weight")]
        larger = all(moved.float().mean() >= 0.75 for moved in rows)  # a few units are dead from birth
    assert larger == made.method.facts.larger


def test_sums_of_what_clients_upload_suffice_where_the_method_says_so(case):
    calm = {key: value for key, value in getattr(DEGENERATES[case.name], "own", {}).items() if key == "server"}
    case = Case(case.name, tuple({**dict(case.own), **calm}.items()))  # else Adam makes steps of rounding errors
    alike = {"tier": EQUAL, "data": {"clients": 8, "samples": 100, "public": plain(case)["data"]["public"]}}
    (open_, state, engine), (hidden, blind, _) = (heard(case, way, size=8, **alike) for way in (False, True))
    assert engine.specs
    seen, unseen = known(state, open_), known(blind, hidden)
    same = all(torch.allclose(seen[path], unseen[path], rtol=0, atol=1e-4) for path in seen)
    assert (same and not engine.bits) == open_.method.facts.sums
