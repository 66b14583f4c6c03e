"""The contract: what every method promises, tested on any method, built-in or a user's own.

A method runs in a small federation on digits: nine clients in three tiers, unequal data, four rounds. What it needs
(tiers of different width or depth, public data) follows from its `facts`. ``potluck check-method module:Class`` and
`check_method` test all promises and report which are broken.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from potluck.core import (
    EMPTY,
    SERVER,
    Client,
    ContractSettings,
    Examples,
    Facts,
    Model,
    Reply,
    Round,
    SettingsError,
    Task,
    UserError,
    digest,
    facts_of,
    settings,
    stream,
)
from potluck.engines import ENGINES, Dispatcher, Graphs, Serial, SimulationContext, TaskEnvelope, TaskResult
from potluck.methods import METHODS, FedAvg
from potluck.run import config
from potluck.run.assemble import Setup, assemble
from potluck.run.result import Result
from potluck.run.session import resume, run

SHALLOW = [{"name": name, "depth": depth} for name, depth in (("small", 1), ("medium", 2), ("large", 3))]
NARROW = [{"name": name, "width": width} for name, width in (("small", 0.2), ("medium", 0.6), ("large", 1.0))]
EQUAL = [{"name": "everyone"}]
OWN_NETWORKS = [
    {"name": "small", "model": {"name": "mlp", "hidden": 4}},
    {"name": "medium", "model": {"name": "lenet"}},
    {"name": "large"},
]
"""Tiers with different architectures; only the classes are the same."""
PUBLIC = 40
"""The number of public rows, for methods that need them."""
CLIENTS = 9


class BrokenPromise(UserError):
    """A method breaks a promise of the contract."""

    exit_code = 7


@dataclass(frozen=True, eq=False)
class MethodCase:
    """A method with some of its settings, and the small federation in which it is tested."""

    kind: type[Any]
    own: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The method's name in settings."""
        listed = {kind: name for name, kind in METHODS.items()}
        return listed.get(self.kind) or f"{self.kind.__module__}:{self.kind.__qualname__}"

    @property
    def contract(self) -> ContractSettings:
        """The contract settings that the method's class declares."""
        found = vars(self.kind).get("contract")
        return found if isinstance(found, ContractSettings) else ContractSettings(why_not="it does not say")

    @cached_property
    def facts(self) -> Facts:
        return facts_of(self.make({}, {})) or Facts()

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """Three tiers that differ in width or in depth, as the method needs."""
        kind = self.contract.tiers or ("width" if self.facts.networks == "width" else "depth")
        return NARROW if kind == "width" else SHALLOW

    def plain(self, **changes: Any) -> dict[str, Any]:
        """The settings of the federation: 3 tiers of 3 clients, with unequal data."""
        public = PUBLIC * (self.facts.public != "none" or bool(self.contract.idle) or bool(self.contract.quick))
        base = {
            "rounds": 4,
            "cohort": 5,
            "data": {"clients": CLIENTS, "partition": "dirichlet", "alpha": 0.5, "public": public},
            "model": {"name": "mlp", "hidden": 8, "depth": 3},
            "tier": self.tiers,
            "method": {"name": self.name, **merge(self.contract.quick, self.own)},
            "local": {"lr": 0.1, "epochs": 1, "batch": 16},
            "score": {"every": 2, "clients": 3},
            "run": {"engine": "serial"},
        }
        return {**base, **changes}

    def make(self, changes: Mapping[str, Any], local: Mapping[str, Any]) -> Any:
        """The method object, with some settings changed."""
        own = merge(merge(self.contract.quick, self.own), changes)
        return config.parse_settings(self.kind, {**own, "local": dict(local)}, "settings")

    def run(self, folder: Path, method: Any = None, **changes: Any) -> Result:
        """Runs the federation."""
        plain = self.plain(**changes)
        return run(plain, folder, method=method or self.make({}, plain["local"]))

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for value in self.own.values())])


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The first settings, overwritten by the second."""
    return {**first, **second}


class Trial:
    """A method's runs in the contract's federation; each runs once and is shared by all promises that need it."""

    def __init__(self, case: MethodCase, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.method = case.make({}, case.plain()["local"])
        """The method object of the run without changes."""
        self.fields = copy.deepcopy(vars(self.method))
        """Its fields before that run."""
        self._runs: dict[str, Result] = {}

    def run(self, **changes: Any) -> Result:
        """The run with these settings changed."""
        key = json.dumps(changes, sort_keys=True)
        if key not in self._runs:
            method = None if changes else self.method
            self._runs[key] = self.case.run(self.folder / str(len(self._runs)), method, **changes)
        return self._runs[key]

    def new_folder(self) -> Path:
        """A folder for a run that is not used again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def rounds(self, own: Mapping[str, Any] = EMPTY, **changes: Any) -> SingleRounds:
        """The federation with these settings changed, for single rounds."""
        case = replace(self.case, own=merge(self.case.own, own)) if own else self.case
        return SingleRounds(case, changes)


class SingleRounds:
    """A federation whose rounds are run one by one, on the serial engine."""

    def __init__(self, case: MethodCase, changes: Mapping[str, Any], method: Any = None) -> None:
        plain = case.plain(**changes)
        given = method if method is not None else case.make({}, plain["local"])
        self.setup: Setup = assemble(config.experiment(plain), method=given)
        self.method, self.zoo = self.setup.context.method, self.setup.context.zoo
        self.memories: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self.engine = ListeningEngine(self.setup.context)
        self.dispatcher = Dispatcher(self.engine, self.method, self.zoo, recall=self.memories.get)

    def init(self) -> Any:
        return self.method.init(self.zoo, stream(0, "init"))

    def round(
        self, state: Any, index: int = 0, order: Callable[[list[Client]], list[Client]] = list, size: int = CLIENTS
    ) -> Any:
        """A committed round of `size` clients in this order."""
        self.session = self.dispatcher.open(index)
        population = self.setup.population

        def recruit(wanted: Callable[[Client], bool]) -> Sequence[Client]:
            return order(population.cohort(index, size, wanted))

        cohort = recruit(lambda client: True)
        now = Round(
            *(index, cohort, population.clients, self.zoo, 0, self.session.send, self.session.fold, recruit),
            everyone=lambda: iter(order(list(population.everyone(index)))),
        )
        state = self.method.round(state, now)
        self.session.close()
        self.memories |= {client: (index, memory) for client, memory in self.session.staged.items()}
        return state

    @property
    def remembered(self) -> dict[str, Mapping[str, Any]]:
        """The clients' memories."""
        return {client: memory for client, (_, memory) in self.memories.items()}

    def tensors(self, state: Any) -> dict[str, Tensor]:
        """Every tensor that the server or a client holds."""
        return {**tensors_of(state, "server"), **tensors_of(self.remembered, "clients")}


class ListeningEngine(Serial):
    """The serial engine, which records what is sent and received.

    With `blind`, even clients add random pads to their uploads and odd clients subtract the same: sums do not change.
    """

    def __init__(self, context: SimulationContext) -> None:
        super().__init__(context)
        self.blind = self.bits = False
        self.specs: set[Any] = set()
        self.bytes: list[tuple[str, int, int]] = []
        """For every task: its client, and the bytes of tensors downloaded and uploaded."""
        self.computed = self.told = 0
        """FLOPs that tasks computed, and FLOPs that they told the ledger, while `counting`."""
        self.counting = False

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for envelope in envelopes:
            result = self._run_counted(envelope)
            task, reply = envelope.task, result.reply
            self.bytes.append((task.to, wire_bytes(task), wire_bytes(reply) if reply else 0))
            if task.to == SERVER or reply is None:
                yield result
                continue
            if "model" in task.models:
                self.specs.add((task.verb, task.models["model"].spec))
            uploaded = [*reply.arrays.values(), *tensors_of(reply.models).values()]
            self.bits |= any(tensor.dtype == torch.bool for tensor in uploaded)
            yield replace(result, reply=self._hide(reply)) if self.blind else result

    def _run_counted(self, envelope: TaskEnvelope) -> TaskResult:
        with FlopCounterMode(display=False) if self.counting else nullcontext() as counter:
            (result,) = super().run([envelope])
        if counter is not None and result.reply is not None:
            self.computed += counter.get_total_flops()
            self.told += result.reply.cost.flops
        return result

    def trained_specs(self) -> set[Any]:
        """The networks that clients were asked to train."""
        return {spec for verb, spec in self.specs if verb == "train"} or {spec for _, spec in self.specs}

    def _hide(self, reply: Reply) -> Reply:
        sign = 1 - 2 * (int(reply.task.to.removeprefix("c")) % 2)

        def add_pads(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
            pads = {name: torch.rand(t.shape, generator=stream(0, "pad", name)) for name, t in arrays.items()}
            return {name: t + sign * pads[name] if t.is_floating_point() else t for name, t in arrays.items()}

        models = {key: Model(model.spec, add_pads(model.arrays)) for key, model in reply.models.items()}
        return replace(reply, models=models, arrays=add_pads(reply.arrays))


def wire_bytes(message: Task | Reply) -> int:
    """Bytes of tensors in a message, counted one by one; eight booleans make a byte."""
    found = [*message.arrays.values(), *(t for model in message.models.values() for t in model.arrays.values())]
    return sum(math.ceil(t.numel() / 8) if t.dtype == torch.bool else t.numel() * t.element_size() for t in found)


def tensors_of(value: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor in a state or a memory, by its path."""
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, Model):
        return tensors_of(value.arrays, path)
    items = value if isinstance(value, Mapping) else vars(value) if dataclasses.is_dataclass(value) else {}
    return {k: t for name, item in items.items() for k, t in tensors_of(item, f"{path}/{name}").items()}


def read_lines(result: Result, name: str) -> list[dict[str, Any]]:
    """A file of JSON lines in a run folder."""
    return [json.loads(line) for line in (result.folder / name).read_text().splitlines()]


def read_ledger(result: Result) -> list[dict[str, Any]]:
    """The ledger without measured times."""
    found = read_lines(result, "ledger.jsonl")
    for line in found:
        line.pop("seconds", None)
        line.pop("time", None)
        line.get("measured", {}).pop("seconds", None)
    return found


def is_finite(value: Any) -> bool:
    """Whether all numbers in plain values are finite."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def demand(kept: bool, broken: str) -> None:
    """Raises `BrokenPromise` with the message `broken`, unless the promise is kept."""
    if not kept:
        raise BrokenPromise(broken)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Inside this context, the global generators of torch, NumPy and Python start from a seed."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def settings_survive_json(trial: Trial) -> None:
    """Its settings survive JSON: written and read back, they give an equal method."""
    case = trial.case
    local = case.plain()["local"]
    made = case.make({}, local)
    frozen = getattr(getattr(case.kind, "__dataclass_params__", None), "frozen", False)
    demand(frozen, "it is no frozen dataclass; write @dataclass(frozen=True), and keep what changes in the state")
    again = config.parse_settings(case.kind, json.loads(json.dumps(settings(made))), "settings")
    demand(again == made and hash(again) == hash(made), "its settings, written as JSON and read back, are not equal")
    for each in fields(made):
        value = getattr(made, each.name)
        if isinstance(value, float):
            moved = replace(made, **{each.name: value + 0.25})
            arrived = config.parse_settings(case.kind, json.loads(json.dumps(settings(moved))), "settings")
            demand(arrived == moved, f"its setting '{each.name}' does not arrive when it is changed")


def wire_gives_the_same_bits(trial: Trial) -> None:
    """Messages can be bytes: the engine `wire` gives the same weights, scores and ledger as `serial`."""
    _demand_same_run(trial, trial.run(run={"engine": "wire"}), "on wire")


def pool_gives_the_same_bits(trial: Trial) -> None:
    """Worker processes change nothing: the engine `pool` gives the same weights, scores and ledger as `serial`."""
    _demand_same_run(trial, trial.run(run={"engine": "pool", "workers": 2}), "on pool")


def ray_gives_the_same_bits(trial: Trial, address: str = "") -> None:
    """Workers on a Ray cluster change nothing: the engine `ray` gives the same weights, scores and ledger as `serial`.

    Not one of `PROMISES`: it needs the extra, and Ray takes seconds to start.
    """
    _demand_same_run(trial, trial.run(run={"engine": "ray", "workers": 2, "address": address}), "on ray")


def _demand_same_run(trial: Trial, other: Result, where: str) -> None:
    reference = trial.run()
    demand(other.weights_sha256 == reference.weights_sha256, f"its weights {where} differ from those on serial")
    same = read_lines(other, "scores.jsonl") == read_lines(reference, "scores.jsonl")
    demand(same, f"its scores {where} differ from those on serial")
    demand(read_ledger(other) == read_ledger(reference), f"its ledger {where} differs from that on serial")


def captured_steps_give_the_same_bits(trial: Trial) -> None:
    """Local steps that are captured once and replayed, as on a GPU, give the same weights and the same ledger."""
    own = {**ENGINES}
    reference = trial.run()
    engines: Any = ENGINES
    engines["serial"] = Graphs
    try:
        captured = trial.case.run(trial.new_folder())
    finally:
        engines.update(own)
    demand(captured.weights_sha256 == reference.weights_sha256, "its weights differ when local steps are replayed")
    demand(read_ledger(captured) == read_ledger(reference), "its ledger differs when local steps are replayed")


def the_given_state_is_untouched(trial: Trial) -> None:
    """A round returns a new state; the old state and the clients' old memories do not change."""
    made = trial.rounds()
    state = made.round(made.init())
    given = tensors_of(state)
    kept = {path: tensor.clone() for path, tensor in given.items()}
    before = dict(made.memories)
    held = tensors_of({client: memory for client, (_, memory) in before.items()})
    remembered = {path: tensor.clone() for path, tensor in held.items()}
    plain = copy.deepcopy({name: value for name, value in vars(state).items() if not tensors_of({"": value})})
    after = made.round(state, 1)
    demand(after is not state or not given, "round() returned the very state that it was given")
    if trial.case.contract.as_fedavg is not None:
        demand(digest(tensors_of(after)) != digest(kept), "a round of training changes nothing in the state")
    same = tensors_of(state).keys() == kept.keys() and all(torch.equal(given[p], t) for p, t in kept.items())
    demand(same, "round() edits tensors of the state that it was given; make new ones, and return a new state")
    same = all(vars(state)[name] == value for name, value in plain.items())
    demand(same, "round() edits plain values of the state that it was given; return a new state")
    same = all(torch.equal(held[path], tensor) for path, tensor in remembered.items())
    demand(same, "a client edits the memory of an earlier round; put a new value under its name")


def the_method_object_stays_as_it_was(trial: Trial) -> None:
    """It keeps nothing on itself: used for a second run, the object gives the same result as a new one."""
    reference = trial.run()
    again = trial.case.run(trial.new_folder(), method=trial.method)
    same = again.weights_sha256 == reference.weights_sha256
    demand(same, "used for a second run, the same object gives another result: it keeps state on itself")
    same = vars(trial.method) == trial.fields
    demand(same, "a run changes fields of the method object: it keeps state on itself; use the state instead")


def nothing_is_drawn_from_global_generators(trial: Trial) -> None:
    """It draws only from `now.rng` and `device.rng`: the seeds of global generators change nothing."""
    found = []
    for seed in (1, 2):
        with global_seed(seed):
            made = trial.rounds()
            found.append(digest(made.tensors(made.round(made.round(made.init()), 1))))
    demand(
        found[0] == found[1],
        "its result depends on a global random generator (torch, numpy or random); draw from now.rng or device.rng",
    )


def a_resumed_run_equals_one_that_never_stopped(trial: Trial) -> None:
    """A run that is stopped after two rounds and resumed equals one that never stopped."""
    case, folder = trial.case, trial.new_folder()
    case.run(folder, rounds=2)
    plain = case.plain()
    resumed, whole = resume(folder, rounds=4, method=case.make({}, plain["local"])), trial.run()
    demand(resumed.weights_sha256 == whole.weights_sha256, "a resumed run ends with other weights: state is lost")
    same = read_lines(resumed, "scores.jsonl") == read_lines(whole, "scores.jsonl")
    demand(same, "a resumed run has other scores")
    demand(read_ledger(resumed) == read_ledger(whole), "a resumed run has another ledger")


def the_order_of_clients_does_not_matter(trial: Trial) -> None:
    """Another order of the clients changes only rounding errors."""
    found = []
    for order in (list, lambda cohort: cohort[::-1], lambda cohort: cohort[4:] + cohort[:4]):
        made = trial.rounds()
        found.append(made.tensors(made.round(made.round(made.init(), 0, order), 1, order)))
        demand(made.session.accepted > 0, "no client's reply is accepted")
    first, *others = found
    for other in others:
        same = other.keys() == first.keys()
        same = same and all(torch.allclose(other[p], t, rtol=1e-5, atol=1e-6) for p, t in first.items())
        demand(same, "another order of the same clients gives another result; look replies up by task, not by position")


def a_lost_client_is_survived(trial: Trial) -> None:
    """It works when clients drop out at random."""
    result = trial.run(fleet={"dropout": 0.4})
    tasks = [line for line in read_ledger(result) if line["event"] == "task"]
    reasons = {line["reason"] for line in tasks if line["outcome"] == "absent"}
    demand({line["outcome"] for line in tasks} == {"accepted", "absent"}, "replies are refused when clients drop out")
    demand(reasons == {"dropped out"}, f"clients fail when others drop out: {sorted(reasons - {'dropped out'})}")
    demand(result.rounds == 4 and is_finite(read_lines(result, "scores.jsonl")), "scores are not finite")


def everything_is_finite(trial: Trial) -> None:
    """All numbers in weights, memories, scores and the ledger are finite."""
    result = trial.run()
    demand(is_finite(read_ledger(result)), "the ledger holds NaN or infinity")
    demand(is_finite(read_lines(result, "scores.jsonl")) and is_finite(result.plain()), "scores are NaN or infinity")
    made = trial.rounds()
    numbers = made.tensors(made.round(made.round(made.init()), 1))
    demand(bool(numbers), "neither state nor memories hold a tensor after two rounds")
    demand(all(bool(t.isfinite().all()) for t in numbers.values()), "weights or memories hold NaN or infinity")


def bytes_are_those_of_the_tensors(trial: Trial) -> None:
    """The bytes in the ledger are those of the tensors that are sent."""
    made = trial.rounds()
    made.round(made.init())
    booked = [(entry.task.to, entry.cost.bytes_down, entry.cost.bytes_up) for entry in made.session.entries]
    demand(booked == made.engine.bytes, "the ledger's bytes are not those of the tensors sent")


def flops_are_those_of_the_tasks(trial: Trial) -> None:
    """The FLOPs in the ledger are those that tasks compute, within a tenth."""
    made = trial.rounds()
    for counting in (False, True):  # what a process counts once, it counts the first time
        made.engine.counting = counting
        made.memories.clear()
        state = made.init()
        for index in range(3):
            state = made.round(state, index)
    computed, told = made.engine.computed, made.engine.told
    demand(
        abs(computed - told) <= 0.1 * computed,
        f"its tasks compute {computed / max(told, 1):.2f} times the FLOPs in the ledger; tell device.charge what a "
        "verb computes beside fits, predictions and statistics",
    )


def without_local_steps_the_model_stays(trial: Trial) -> None:
    """Without local steps and server training, the served model stays the same bit for bit, and a run finishes."""
    local = {"lr": 0.1, "steps": 0}
    made = trial.rounds(trial.case.contract.idle, local=local)
    state = made.init()
    after = made.round(made.round(state), 1)
    demand(made.session.accepted > 0, "no client's reply is accepted when it takes no local step")
    models = [_model_arrays(made, each) for each in (state, after)]
    demand(digest(models[0]) == digest(models[1]), "the model changes although nobody takes a step")
    result = trial.run(local=local)
    finite = is_finite(read_lines(result, "scores.jsonl")) and is_finite(read_ledger(result))
    demand(result.rounds == 4 and finite, "a run without local steps does not end with finite numbers")


def _model_arrays(made: SingleRounds, state: Any) -> dict[str, Tensor]:
    """The tensors of every model in the state, and of those that the server and the tiers would use."""
    who = [made.setup.server, *(Client(f"any {tier.name}", tier) for tier in made.zoo.tiers)]
    models = {f"served to {client.id}": made.method.serve(state, client, made.zoo) for client in who}
    models |= {name: value for name, value in vars(state).items() if isinstance(value, Model)}
    return {f"{id}/{name}": t for id, m in models.items() if m is not None for name, t in m.arrays.items()}


def on_equal_devices_it_is_fedavg(trial: Trial) -> None:
    """On equal devices and with neutral settings it equals FedAvg, or it declares why there is no such case."""
    case, contract = trial.case, trial.case.contract
    if contract.as_fedavg is None:
        demand(bool(contract.why_not), "it neither says under which settings it is FedAvg nor why there are none")
        return
    changes = {"tier": EQUAL, "data": case.plain()["data"]}
    if contract.local:
        changes["local"] = contract.local
    same = SingleRounds(replace(case, own=merge(case.own, contract.as_fedavg)), changes)
    weighting = {name: value for name, value in case.own.items() if name == "weighting"}
    fedavg = SingleRounds(MethodCase(FedAvg, weighting), changes)
    ours, theirs = same.init(), fedavg.init()
    for index in range(contract.rounds):
        ours, theirs = same.round(ours, index, size=5), fedavg.round(theirs, index, size=5)
    for name, tensor in theirs.model.arrays.items():
        near = torch.allclose(ours.model.arrays[name], tensor, rtol=0, atol=contract.within)
        near = near if contract.within else digest({"": ours.model.arrays[name]}) == digest({"": tensor})
        demand(near, f"with {dict(contract.as_fedavg)} on equal devices its '{name}' is not FedAvg's")


def clients_remember_what_the_facts_say(trial: Trial) -> None:
    """Clients have a memory if and only if `facts.memory` is true."""
    made = trial.rounds()
    made.round(made.init())
    told = made.method.facts.memory
    demand(bool(made.remembered) == told, f"facts.memory is {told}, and clients remember {len(made.remembered)} things")


def devices_train_the_networks_that_the_facts_say(trial: Trial) -> None:
    """Devices train the kind of networks that `facts.networks` declares."""
    case, networks = trial.case, trial.case.facts.networks
    made = trial.rounds()
    made.round(made.init())
    specs, full = made.engine.trained_specs(), made.zoo.full
    count = 1 if networks == "one" else 3
    demand(len(specs) == count, f"facts.networks is '{networks}', and three tiers train {len(specs)} networks")
    if networks == "any":
        made = trial.rounds(tier=OWN_NETWORKS)
        made.round(made.init())
        trained, own = (
            {(spec.family, spec.depth, spec.sizes) for spec in found}  # a projection is an option
            for found in (made.engine.trained_specs(), [tier.spec for tier in made.zoo.tiers])
        )
        demand(trained == own, "tiers train others' networks")
        demand({e.verdict for e in made.session.entries} == {"accepted"}, "replies of unequal networks are refused")
    elif networks == "width":
        demand({(s.family, s.depth) for s in specs} == {(full.family, full.depth)}, "tiers differ in more than width")
    elif networks == "depth":
        try:
            SingleRounds(case, {"tier": NARROW})
        except SettingsError:
            return
        raise BrokenPromise("facts.networks is 'depth', and tiers of different width are not refused")


def public_rows_are_needed_where_the_facts_say(trial: Trial) -> None:
    """Public data, and its labels, are needed exactly as `facts.public` declares."""
    case, told = trial.case, trial.case.facts.public
    without = {**case.plain()["data"], "public": 0}
    if told == "none":
        made = trial.rounds(data=without)
        made.round(made.init())
        return
    try:
        SingleRounds(case, {"data": without})
    except SettingsError:
        pass
    else:
        raise BrokenPromise(f"facts.public is '{told}', and a federation without public rows is not refused")
    right, wrong = trial.rounds(), trial.rounds()
    datasets: Any = wrong.setup.context.datasets
    public = datasets.public
    columns = {**public.columns, "y": (public.columns["y"][:] + 1) % 10}
    datasets.public = Examples(columns, public.rows, public.prepare, public.augment)
    found = [digest(made.tensors(made.round(made.init()))) for made in (right, wrong)]
    used = found[0] != found[1]
    demand(used == (told == "labels"), f"facts.public is '{told}', and labels {'are' if used else 'are not'} used")


def a_larger_server_model_is_trained_where_the_facts_say(trial: Trial) -> None:
    """A server model larger than every client's is fully trained if and only if `facts.larger` is true."""
    made = trial.rounds(tier=trial.case.tiers[:2])
    begun = state = made.init()
    for index in range(4):
        state = made.round(state, index)
    served = [made.method.serve(each, made.setup.server, made.zoo) for each in (begun, state)]
    trained, full = made.engine.trained_specs(), made.zoo.full
    larger = served[1] is not None and served[1].spec == full and full not in trained
    if larger:
        before, after = (model.arrays for model in served)
        rows = [(after[name] != before[name]).flatten(1).any(1) for name in before if name.endswith(".weight")]
        larger = all(moved.float().mean() >= 0.75 for moved in rows)  # a few units are dead (ReLU) from the start
    demand(larger == made.method.facts.larger, f"facts.larger is {made.method.facts.larger}, and it was {larger}")


def sums_suffice_where_the_facts_say(trial: Trial) -> None:
    """The sum of the clients' uploads is enough if and only if `facts.sums` is true."""
    case = trial.case
    calm = {key: value for key, value in (case.contract.as_fedavg or {}).items() if key == "server"}
    alike = {"tier": EQUAL, "data": {"clients": 8, "samples": 100, "public": case.plain()["data"]["public"]}}
    found, engines = [], []
    for blind in (False, True):
        made = trial.rounds(calm, **alike)  # a plain server step: Adam would turn rounding errors into large steps
        made.engine.blind = blind
        found.append(made.tensors(made.round(made.init(), size=8)))
        engines.append(made.engine)
    same = all(torch.allclose(found[0][path], found[1][path], rtol=0, atol=1e-4) for path in found[0])
    sums = same and not engines[0].bits
    demand(
        sums == made.method.facts.sums,
        f"facts.sums is {made.method.facts.sums}, and sums do {'' if sums else 'not '}suffice",
    )


PROMISES: tuple[Callable[[Trial], None], ...] = (
    settings_survive_json,
    the_given_state_is_untouched,
    the_method_object_stays_as_it_was,
    nothing_is_drawn_from_global_generators,
    wire_gives_the_same_bits,
    pool_gives_the_same_bits,
    captured_steps_give_the_same_bits,
    a_resumed_run_equals_one_that_never_stopped,
    the_order_of_clients_does_not_matter,
    a_lost_client_is_survived,
    everything_is_finite,
    bytes_are_those_of_the_tensors,
    flops_are_those_of_the_tasks,
    without_local_steps_the_model_stays,
    on_equal_devices_it_is_fedavg,
    clients_remember_what_the_facts_say,
    devices_train_the_networks_that_the_facts_say,
    public_rows_are_needed_where_the_facts_say,
    a_larger_server_model_is_trained_where_the_facts_say,
    sums_suffice_where_the_facts_say,
)
"""What every method promises; the first line of each function's docstring says it in words."""


@dataclass(frozen=True)
class Verdict:
    """The result of testing one promise."""

    promise: str
    broken: str = ""
    """How the promise is broken; empty: it is kept."""


def check_method(
    method: type[Any] | str, own: Mapping[str, Any] | None = None, tell: Callable[[Verdict], None] | None = None
) -> list[Verdict]:
    """Tests every promise of the contract on a method: a class, or ``module:Class``, with some of its settings.

    `tell` is called with each verdict as it is found.
    """
    kind = config.method_class(method) if isinstance(method, str) else method
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="potluck-contract-") as folder:
        trial = Trial(MethodCase(kind, dict(own or {})), Path(folder))
        for promise in PROMISES:
            verdicts.append(Verdict(promise_in_words(promise), _fault_of(promise, trial)))
            if tell is not None:
                tell(verdicts[-1])
    return verdicts


def promise_in_words(promise: Callable[[Trial], None]) -> str:
    """A promise as a sentence."""
    return (promise.__doc__ or promise.__name__).splitlines()[0]


def _fault_of(promise: Callable[[Trial], None], trial: Trial) -> str:
    try:
        promise(trial)
    except Exception as fault:  # a user's method may raise anything
        return str(fault) if isinstance(fault, UserError) else f"{type(fault).__name__}: {fault}"
    return ""
