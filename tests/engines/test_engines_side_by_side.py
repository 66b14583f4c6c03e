"""Clients side by side: the same answers as one after the other."""

import gc
import weakref
from dataclasses import dataclass, replace

import pytest
import torch
from made_context import FULL, ZOO, Echo, Odd, federation, made_context, rows

from potluck.core import FitRequest, Local, Model, Reply, Skip, Task, digest, on_client, stream
from potluck.engines import TaskEnvelope, Worker
from potluck.learn import run_fit, run_stacked
from potluck.methods import FedAvg, FedProx

LOCAL = Local(lr=0.3, epochs=2, batch=4)


EQUAL = {f"c{n}": rows(9 if n < 8 else 7, f"c{n}") for n in range(12)}
"""Eight clients with nine rows and four with seven: two kinds of stacks."""


def after(method, stack, count=12):
    with federation(method, "serial", 1, count, special=EQUAL, stack=stack) as made:
        state = made.init()
        for index in range(2):
            state = made.round(state, index)
        return state.model.arrays, made.outcomes()


def close(one, other):
    return all(torch.allclose(tensor, other[name], rtol=1e-5, atol=1e-6) for name, tensor in one.items())


# Stacks


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), FedProx(local=LOCAL, mu=0.5)], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize("stack", [2, 5, 20])
def test_a_stack_ends_where_one_after_the_other_does(method, stack):
    alone, _ = after(method, 0)
    stacked, outcomes = after(method, stack)
    assert close(alone, stacked)
    assert {verdict for verdict, _ in outcomes.values()} == {"accepted"}


def test_one_clients_broken_reply_is_its_own():
    alone, expected = after(Odd(local=LOCAL, odd="nan", who=("c1", "c3")), 0)
    stacked, outcomes = after(Odd(local=LOCAL, odd="nan", who=("c1", "c3")), 4)
    assert outcomes == expected
    assert close(alone, stacked)


@pytest.mark.parametrize("stack", [0, 1, 2, 5, 20])
def test_every_envelope_of_a_list_is_answered_once_whatever_the_stack(stack):
    for verb in ("echo", "train"):
        method = Echo() if verb == "echo" else FedAvg(local=LOCAL)
        with federation(method, "serial", stack=stack) as made:
            results = list(made.dispatcher.engine.run([envelope(f"c{n}", verb) for n in range(5)]))
        assert [result.task.to for result in results] == [f"c{n}" for n in range(5)]
        assert [result.fault for result in results] == [""] * 5


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stack_has_the_same_bits_on_any_number_of_workers(workers):
    expected, _ = after(FedAvg(local=LOCAL), 3)
    with federation(FedAvg(local=LOCAL), "pool", workers, 12, special=EQUAL, stack=3) as made:
        state = made.init()
        for index in range(2):
            state = made.round(state, index)
    assert digest(state.model.arrays) == digest(expected)


# A worker that runs several halves


def envelope(client, verb="train", memory=None):
    model = ZOO.fresh(FULL, stream(0, "model"))
    return TaskEnvelope(Task(verb, client, models={"model": model}), memory or {})


class Calls:
    """Runs fits one by one, and remembers how many were asked for at a time; `faults` fail, counted over all calls."""

    def __init__(self, faults=()):
        self.sizes, self.faults, self.count = [], faults, 0

    def __call__(self, jobs):
        self.sizes.append(len(jobs))
        return [self.one(job) for job in jobs]

    def one(self, job):
        self.count += 1
        return RuntimeError("no room") if self.count - 1 in self.faults else run_fit(job)


def side_by_side(method, verbs, run_fits=None, worker=None):
    """The results of clients c0, c1, ... that are asked for these verbs."""
    worker = worker or Worker(made_context(method))
    return worker.run_side_by_side([envelope(f"c{n}", verb) for n, verb in enumerate(verbs)], run_fits or Calls())


def one_by_one(method, verbs):
    worker = Worker(made_context(method))
    return [worker.run(envelope(f"c{n}", verb)) for n, verb in enumerate(verbs)]


def facts(result):
    """All of a result but the seconds it took, in values that compare."""
    reply = result.reply
    told = (result.task.address, result.fault, result.skipped, result.memory)
    if reply is None:
        return told
    models = {key: (model.spec, digest(model.arrays)) for key, model in reply.models.items()}
    cost = replace(reply.cost, seconds=0.0)
    return (*told, models, digest(reply.arrays), reply.weight, dict(reply.metrics), reply.task.address, cost)


@dataclass(frozen=True)
class Repeated(FedAvg):
    """Its clients fit twice, those with an even number once more, and then a copy of what came out."""

    @on_client
    def train(self, task, device):
        net = device.build(task.models["model"])
        losses = []
        for _ in range(2 + (int(task.to[1:]) % 2 == 0)):
            fit = yield FitRequest(net, device.data, self.local)
            assert fit.net is net
            losses.append(fit.loss)
        spec = task.models["model"].spec
        fit = yield FitRequest(Model(spec, device.snapshot(net)), device.data, self.local)
        assert fit.net is not net
        device.memory["losses"] = losses
        model = Model(spec, device.snapshot(fit.net))
        return Reply(models={"model": model}, weight=1.0, metrics={"loss": losses[-1]})


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), Repeated(local=LOCAL)], ids=["one fit", "several fits"])
def test_halves_side_by_side_give_the_bits_of_one_after_the_other(method):
    """All networks have one shape; what a client trains, draws, remembers and costs is its own."""
    expected = [facts(result) for result in one_by_one(method, ["train"] * 4)]
    worker = Worker(made_context(method))
    for _ in range(2):  # the second time on networks that others have used
        found = [facts(result) for result in side_by_side(method, ["train"] * 4, worker=worker)]
        assert found == expected
    assert len({str(found) for found in expected}) == 4
    assert not any(result[1] for result in expected)


def test_a_verb_may_fit_as_often_as_it_likes():
    alone, _ = after(Repeated(local=LOCAL), 0)
    stacked, outcomes = after(Repeated(local=LOCAL), 6)
    assert close(alone, stacked)
    assert {verdict for verdict, _ in outcomes.values()} == {"accepted"}


def test_fits_that_wait_run_in_one_go():
    """Clients 0 and 2 fit four times, client 1 three times."""
    calls = Calls()
    side_by_side(Repeated(local=LOCAL), ["train"] * 3, calls)
    assert calls.sizes == [3, 3, 3, 2]
    once = Calls()
    side_by_side(FedAvg(local=LOCAL), ["train"] * 3, once)
    assert once.sizes == [3]


@dataclass(frozen=True)
class Fragile(FedAvg):
    """Verbs that raise before, between and after their fits, or catch what a fit raises."""

    @on_client
    def early(self, task, device):
        raise ValueError("early")
        yield

    @on_client
    def idle(self, task, device):
        raise Skip("nothing to do")
        yield

    @on_client
    def between(self, task, device):
        yield self.request(task, device)
        device.memory["half"] = "done"
        raise ValueError("between")

    @on_client
    def late(self, task, device):
        yield self.request(task, device)
        yield self.request(task, device)
        raise ValueError("late")

    @on_client
    def catching(self, task, device):
        try:
            fit = yield self.request(task, device)
        except RuntimeError:
            fit = yield self.request(task, device)
        return self.report(task, device, fit)

    @on_client
    def careless(self, task, device):
        yield self.request(task, device)
        return {"said": "nothing"}


@pytest.mark.parametrize(
    ("verb", "fault"),
    [
        ("early", "ValueError: early"),
        ("idle", "nothing to do"),
        ("between", "ValueError: between"),
        ("late", "ValueError: late"),
        ("careless", "TypeError: Fragile.careless returned dict, not a Reply"),
    ],
)
@pytest.mark.parametrize("run_fits", [Calls, lambda: run_stacked], ids=["one by one", "stacked"])
def test_a_verb_that_raises_before_between_or_after_its_fits_costs_nobody_else(verb, fault, run_fits):
    verbs = ["train", verb, "train", verb]
    found = side_by_side(Fragile(local=LOCAL), verbs, run_fits())
    expected = one_by_one(Fragile(local=LOCAL), verbs)
    assert [result.fault for result in found] == ["", fault, "", fault]
    assert [result.skipped for result in found] == [False, verb == "idle"] * 2
    assert [result.reply is None for result in found] == [False, True] * 2
    assert found[1].memory is found[3].memory is None
    for mine, other in zip(found, expected, strict=True):
        assert (mine.fault, mine.skipped, mine.task.address) == (other.fault, other.skipped, other.task.address)
        if mine.reply is not None:
            assert close(mine.reply.models["model"].arrays, other.reply.models["model"].arrays)


def test_what_a_fit_raises_is_thrown_into_the_verb_that_asked_for_it_alone():
    found = side_by_side(FedAvg(local=LOCAL), ["train"] * 3, Calls(faults=[1]))
    expected = one_by_one(FedAvg(local=LOCAL), ["train"] * 3)
    assert [result.fault for result in found] == ["", "RuntimeError: no room", ""]
    assert [facts(found[at]) for at in (0, 2)] == [facts(expected[at]) for at in (0, 2)]


def test_a_verb_may_catch_what_a_fit_raises_and_ask_for_another():
    calls = Calls(faults=[1])
    found = side_by_side(Fragile(local=LOCAL), ["catching"] * 3, calls)
    assert [result.fault for result in found] == [""] * 3
    assert calls.sizes == [3, 1]


@dataclass(frozen=True)
class Explosive:
    """A loss that cannot be computed on one client."""

    client: str

    def __call__(self, net, batch):
        raise RuntimeError(f"{self.client} has no room")


@dataclass(frozen=True)
class ExplodingOnOne(FedAvg):
    def loss(self, task, device):
        return Explosive("c1") if device.client == "c1" else super().loss(task, device)


@pytest.mark.parametrize(("engine", "stack"), [("serial", 0), ("serial", 3), ("pool", 3), ("graphs", 0)])
def test_a_fit_that_cannot_be_computed_is_the_failure_of_its_client(engine, stack):
    with federation(ExplodingOnOne(local=LOCAL), engine, 1, 3, stack=stack) as made:
        made.round(made.init())
        assert made.outcomes()["c1"] == ("absent", "failed: RuntimeError: c1 has no room")
        assert made.outcomes()["c0"][0] == made.outcomes()["c2"][0] == "accepted"


@pytest.mark.parametrize(
    "verbs", [["score"] * 4, ["train", "score", "train"], ["nope", "train"]], ids=["none", "some", "unknown"]
)
def test_unless_all_verbs_train_they_run_one_by_one_on_one_network(verbs):
    method, calls = FedAvg(local=LOCAL), Calls()
    worker = Worker(made_context(method))
    found = side_by_side(method, verbs, calls, worker)
    assert [facts(result) for result in found] == [facts(result) for result in one_by_one(method, verbs)]
    assert calls.sizes == []
    assert len(worker._slots) == 1


def test_a_closed_engine_keeps_no_network_and_nothing_ready():
    """On a GPU the next run of a comparison needs their room."""
    with federation(FedAvg(local=LOCAL), "graphs", 1, 4) as made:
        made.round(made.init())
        worker = made.dispatcher.engine.worker
        nets = [weakref.ref(slot.net) for slot in worker._slots.values()]
        assert len(nets) == 4
        worker.cache["captured"] = nets
        made.dispatcher.engine.close()
        assert not worker.cache
        gc.collect()
        assert not any(net() for net in nets)
