"""Live networks: their floats in one buffer, which changes nothing but the speed."""

import torch
from potluck.engines.network_slot import NetworkSlot
from torch import nn

from potluck.core import FlatArrays, Model, Spec, digest, pack, size, stream, unpack
from potluck.engines.gate import _misfits, _wild
from potluck.models import ModelZoo, make_spec
from potluck.parts import WHOLE, OverlapMean

SPEC = make_spec("cnn", input=(1, 8, 8), classes=3, norm="running")
ZOO = ModelZoo(SPEC)


def live(seed=0):
    return NetworkSlot(SPEC, ZOO.build(Model(SPEC), stream(seed, "net")))


def loose(arrays):
    """The same numbers in tensors of their own."""
    return {name: tensor.clone() for name, tensor in arrays.items()}


def test_a_network_at_rest_has_the_numbers_of_the_live_one():
    one = live()
    found = one.rest()
    assert isinstance(found, FlatArrays)
    assert digest(found) == digest(dict(one.net.state_dict()))
    assert found.keys() == ZOO.shapes(SPEC).keys()
    assert any(not tensor.is_floating_point() for tensor in found.others.values())


def test_a_tensor_of_it_is_always_the_same_one():
    found = live().rest()
    assert all(found[name] is tensor for name, tensor in found.items())


def test_what_is_at_rest_stays_when_the_network_goes_on():
    one = live()
    found, before = one.rest(), digest(one.rest())
    one.fill(live(1).rest())
    assert digest(found) == before
    assert digest(one.rest()) == digest(live(1).rest())


def test_it_travels_counts_and_weighs_like_any_other_arrays():
    found = live().rest()
    assert digest(unpack(pack(found))) == digest(found)
    assert size(found) == size(loose(found))


def test_sums_of_buffers_are_the_sums_of_their_tensors_to_the_last_bit():
    start = ZOO.fresh(SPEC, stream(9, "start")).arrays
    together, apart, mixed = OverlapMean(start), OverlapMean(start), OverlapMean(start)
    for number in range(20):  # more than one block
        rest, weight = live(number).rest(), 1 / (number + 3)
        together.add(rest, WHOLE, weight)
        apart.add(loose(rest), WHOLE, weight)
        mixed.add(rest if number % 3 else loose(rest), WHOLE, weight)
    assert digest(together.value()) == digest(apart.value()) == digest(mixed.value())
    assert together.coverage() == 1.0


def test_the_gate_sees_into_buffers():
    found, shapes = live().rest(), ZOO.shapes(SPEC)
    assert not [*_misfits(found, shapes), *_wild(found)]
    name = next(name for name, _, _ in found.layout.entries)
    assert [*_misfits(found, {**shapes, name: ((1,), torch.float32)})]
    found[name].view(-1)[0] = float("nan")
    assert list(_wild(found)) == [f"'{name}' is not finite"]


def test_tied_weights_stay_tied():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    one = NetworkSlot(Spec("tied"), net)
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    assert (one.rest()["1.weight"] == 2).all()
    assert one.rest().keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_kernels_with_their_channels_innermost_are_the_same_numbers():
    plain, last = live(), NetworkSlot(SPEC, ZOO.build(Model(SPEC), stream(0, "net")), channels_last=True)
    kernels = [tensor for tensor in last.net.parameters() if tensor.dim() == 4]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert digest(last.rest()) == digest(plain.rest())
    last.fill(live(1).rest())
    assert digest(unpack(pack(last.rest()))) == digest(live(1).rest())
    mean, other = OverlapMean(plain.rest()), OverlapMean(plain.rest())
    for rest in (plain.rest(), last.rest()):
        mean.add(rest, WHOLE, 0.3)
        other.add(loose(rest), WHOLE, 0.3)
    assert digest(mean.value()) == digest(other.value())
