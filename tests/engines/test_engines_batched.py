"""Clients side by side: the same answers as one after the other."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from made_context import Odd, federation, rows
from potluck.engines.batched import BatchedFits

from potluck.core import Local, Model, Reply, digest, on_client
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


@dataclass(frozen=True)
class DoubleBackward(FedAvg):
    """Its clients fit twice, and those with an even number once more, all between other work."""

    @on_client
    def train(self, task, device):
        net = device.build(task.models["model"])
        losses = [device.fit(net, device.data, self.local).loss for _ in range(2 + (int(task.to[1:]) % 2 == 0))]
        again = device.build(Model(task.models["model"].spec, device.rest(net)))
        device.fit(again, device.data, self.local)
        model = Model(task.models["model"].spec, device.rest(again))
        return Reply(models={"model": model}, weight=1.0, metrics={"loss": losses[-1]})


def test_a_half_may_fit_as_often_as_it_likes():
    alone, _ = after(DoubleBackward(local=LOCAL), 0)
    stacked, _ = after(DoubleBackward(local=LOCAL), 6)
    assert close(alone, stacked)


def test_fits_that_wait_are_done_in_one_go():
    """Three letters whose halves fit twice: two calls with three wishes each, all while nobody else runs."""
    asked = []

    def grant(jobs):
        asked.append([job.kind for job in jobs])
        return [job.granted() for job in jobs]

    with federation(FedAvg(local=LOCAL), "serial", 1, 3) as made:
        together = BatchedFits(made.dispatcher.engine.site, grant)
        made.dispatcher.engine = Batch(together, 3)
        made.round(made.init())
        together.close()
    assert [len(jobs) for jobs in asked] == [3]


class Batch:
    """An engine over a rendezvous."""

    def __init__(self, together, size):
        self.together, self.size = together, size

    def carry(self, envelopes):
        yield from self.together.answer(list(envelopes))


def test_what_a_fit_raises_reaches_the_half_that_asked():
    def grant(jobs):
        return [RuntimeError("no room") if at == 1 else job.granted() for at, job in enumerate(jobs)]

    with federation(FedAvg(local=LOCAL), "serial", 1, 3) as made:
        together = BatchedFits(made.dispatcher.engine.site, grant)
        made.dispatcher.engine = Batch(together, 3)
        made.round(made.init())
        together.close()
        assert made.outcomes()["c1"] == ("absent", "failed: RuntimeError: no room")
        assert made.outcomes()["c0"][0] == made.outcomes()["c2"][0] == "accepted"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stack_has_the_same_bits_on_any_number_of_workers(workers):
    expected, _ = after(FedAvg(local=LOCAL), 3)
    with federation(FedAvg(local=LOCAL), "pool", workers, 12, special=EQUAL, stack=3) as made:
        state = made.init()
        for index in range(2):
            state = made.round(state, index)
    assert digest(state.model.arrays) == digest(expected)


def test_a_closed_engine_keeps_no_network_and_nothing_ready():
    """On a GPU the next run of a comparison needs their room."""
    with federation(FedAvg(local=LOCAL), "graphs", 1, 4) as made:
        made.round(made.init())
        nets = [weakref.ref(live.net) for live in made.dispatcher.engine.site._nets.values()]
        assert nets
        made.dispatcher.engine.site.ready["recorded"] = nets
        made.dispatcher.engine.close()
        assert not made.dispatcher.engine.site.ready
        gc.collect()
        assert not any(net() for net in nets)
