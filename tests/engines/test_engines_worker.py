"""A worker: what it does with a client's half; and its live networks, whose floats lie in one buffer."""

from dataclasses import dataclass

import pytest
import torch
from made_context import FULL, made_context
from made_context import ZOO as TIERS
from torch import nn

from potluck.core import (
    FitRequest,
    FlatArrays,
    Local,
    Newborn,
    Reply,
    Skip,
    Spec,
    Task,
    digest,
    on_client,
    pack,
    size,
    stream,
    unpack,
)
from potluck.engines import TaskEnvelope, Worker
from potluck.engines.gate import _not_finite, _wrong_shapes
from potluck.engines.worker import NetworkSlot
from potluck.models import ModelZoo, make_spec
from potluck.parts import WHOLE, OverlapMean

# A client's half


@dataclass(frozen=True)
class Boom:
    """A loss that cannot be computed."""

    def __call__(self, net, batch):
        raise RuntimeError("no room")


@dataclass(frozen=True)
class Halves:
    """Verbs of every kind."""

    thing: object = None

    def request(self, task, device, loss=None):
        return FitRequest(task.models["model"], device.data, Local(lr=0.1, steps=2, batch=2), loss)

    @on_client
    def fits(self, task, device):
        fit = yield self.request(task, device)
        return Reply(metrics={"steps": fit.steps})

    @on_client
    def returns(self, task, device):
        yield self.request(task, device)
        return self.thing

    @on_client
    def returns_at_once(self, task, device):
        return self.thing
        yield

    @on_client
    def yields(self, task, device):
        yield self.thing

    @on_client
    def plain(self, task, device):
        return self.thing

    @on_client
    def skips(self, task, device):
        yield self.request(task, device)
        raise Skip("enough")

    @on_client
    def fails(self, task, device):
        yield self.request(task, device, Boom())

    @on_client
    def mends(self, task, device):
        try:
            yield self.request(task, device, Boom())
        except RuntimeError as fault:
            fit = yield self.request(task, device)
            return Reply(metrics={"caught": str(fault), "steps": fit.steps})


def outcome(verb, thing=None):
    task = Task(verb, "c1", models={"model": TIERS.fresh(FULL, stream(0, "model"))})
    return Worker(made_context(Halves(thing))).run(TaskEnvelope(task))


@pytest.mark.parametrize("thing", [{"said": "nothing"}, None, [Reply()], 3])
@pytest.mark.parametrize("verb", ["returns", "returns_at_once", "yields", "plain"])
def test_the_worker_says_so_when_a_verb_ends_in_something_else_than_a_reply(verb, thing):
    result = outcome(verb, thing)
    assert result.reply is None
    assert result.fault == f"TypeError: Halves.{verb} returned {type(thing).__name__}, not a Reply"
    assert not result.skipped


def test_a_fit_is_sent_back_into_the_verb_that_asked_for_it():
    result = outcome("fits")
    assert (result.fault, result.reply.metrics) == ("", {"steps": 2})
    assert result.reply.cost.flops > 0


def test_what_a_fit_raises_is_thrown_into_the_verb_which_may_go_on():
    failed, mended = outcome("fails"), outcome("mends")
    assert (failed.reply, failed.fault, failed.skipped) == (None, "RuntimeError: no room", False)
    assert (mended.fault, mended.reply.metrics) == ("", {"caught": "no room", "steps": 2})
    assert mended.reply.cost.flops == outcome("fits").reply.cost.flops


def test_a_verb_may_skip_after_a_fit():
    result = outcome("skips")
    assert (result.reply, result.fault, result.skipped) == (None, "enough", True)


# Live networks


SPEC = make_spec("cnn", input=(1, 8, 8), classes=3, norm="running")
ZOO = ModelZoo(SPEC)


def slot(seed=0):
    return NetworkSlot(SPEC, ZOO.build(Newborn(SPEC), stream(seed, "net")))


def loose(arrays):
    """The same numbers in tensors of their own."""
    return {name: tensor.clone() for name, tensor in arrays.items()}


def test_a_snapshot_has_the_numbers_of_the_live_network():
    one = slot()
    found = one.snapshot()
    assert isinstance(found, FlatArrays)
    assert digest(found) == digest(dict(one.net.state_dict()))
    assert found.keys() == ZOO.shapes(SPEC).keys()
    assert any(not tensor.is_floating_point() for tensor in found.others.values())


def test_a_tensor_of_a_snapshot_is_always_the_same_one():
    found = slot().snapshot()
    assert all(found[name] is tensor for name, tensor in found.items())


def test_a_snapshot_stays_when_the_network_goes_on():
    one = slot()
    found, before = one.snapshot(), digest(one.snapshot())
    one.fill(slot(1).snapshot())
    assert digest(found) == before
    assert digest(one.snapshot()) == digest(slot(1).snapshot())


def test_a_snapshot_travels_counts_and_weighs_like_any_other_arrays():
    found = slot().snapshot()
    assert digest(unpack(pack(found))) == digest(found)
    assert size(found) == size(loose(found))


def test_sums_of_buffers_are_the_sums_of_their_tensors_to_the_last_bit():
    start = ZOO.fresh(SPEC, stream(9, "start")).arrays
    together, apart, mixed = OverlapMean(start), OverlapMean(start), OverlapMean(start)
    for number in range(20):  # more than one block
        arrays, weight = slot(number).snapshot(), 1 / (number + 3)
        together.add(arrays, WHOLE, weight)
        apart.add(loose(arrays), WHOLE, weight)
        mixed.add(arrays if number % 3 else loose(arrays), WHOLE, weight)
    assert digest(together.value()) == digest(apart.value()) == digest(mixed.value())
    assert together.coverage() == 1.0


def test_the_gate_sees_into_buffers():
    found, shapes = slot().snapshot(), ZOO.shapes(SPEC)
    assert not [*_wrong_shapes(found, shapes), *_not_finite(found)]
    name = next(name for name, _, _ in found.layout.entries)
    assert [*_wrong_shapes(found, {**shapes, name: ((1,), torch.float32)})]
    found[name].view(-1)[0] = float("nan")
    assert list(_not_finite(found)) == [f"'{name}' is not finite"]


def test_tied_weights_stay_tied():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    one = NetworkSlot(Spec("tied"), net)
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    assert (one.snapshot()["1.weight"] == 2).all()
    assert one.snapshot().keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_kernels_with_their_channels_innermost_are_the_same_numbers():
    plain, last = slot(), NetworkSlot(SPEC, ZOO.build(Newborn(SPEC), stream(0, "net")), channels_last=True)
    kernels = [tensor for tensor in last.net.parameters() if tensor.dim() == 4]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert digest(last.snapshot()) == digest(plain.snapshot())
    last.fill(slot(1).snapshot())
    assert digest(unpack(pack(last.snapshot()))) == digest(slot(1).snapshot())
    mean, other = OverlapMean(plain.snapshot()), OverlapMean(plain.snapshot())
    for arrays in (plain.snapshot(), last.snapshot()):
        mean.add(arrays, WHOLE, 0.3)
        other.add(loose(arrays), WHOLE, 0.3)
    assert digest(mean.value()) == digest(other.value())
