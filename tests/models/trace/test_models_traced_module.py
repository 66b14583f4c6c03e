"""Modules that cannot be traced are refused with a reason; traced axes survive JSON."""

# ruff: noqa: RUF012 (layers are copied by each module that is made of them)

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traced_examples import MAPS, ROWS, Again, AroundTheInput, Module, UShaped

from potluck.core import SettingsError
from potluck.models.trace import trace
from potluck.models.trace.traced_module import axes_from_plain

pytest.importorskip("torch_pruning")


def test_axes_survive_json_and_the_checksum_tells_networks_apart():
    traced = trace(UShaped(), MAPS)
    plain = json.loads(json.dumps(traced.plain()))
    assert axes_from_plain(plain) == dict(traced.axes)
    assert trace(UShaped(), MAPS).checksum == traced.checksum
    assert trace(AroundTheInput(), MAPS).checksum != traced.checksum


class HardView(Module):
    layers = {"a": nn.Conv2d(3, 8, 3), "head": nn.Linear(8 * 36, 3)}

    def forward(self, x):
        return self.head(self.a(x).view(-1, 8 * 36))


class Shuffled(Module):
    layers = {"a": nn.Conv2d(3, 8, 3), "b": nn.Conv2d(8, 8, 3, groups=2), "head": nn.Linear(8, 3)}

    def forward(self, x):
        x = self.a(x).unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return self.head(self.b(x).mean((2, 3)))


class Softmax(Again):
    def forward(self, x):
        return self.head(self.again(self.a(x).softmax(1)))


class Flipped(Again):
    def forward(self, x):
        return self.head(self.again(self.a(x).flip(1)))


class Transposed(Again):
    """The same numbers are used in two senses: units that come out are the units that go in."""

    def forward(self, x):
        return self.head(F.linear(self.again(self.a(x)), self.again.weight.t()) + self.a(x).cumsum(1))


class RawMatrix(Module):
    layers = {"a": nn.Linear(5, 8), "mix": nn.Parameter(torch.ones(8, 8)), "head": nn.Linear(8, 3)}

    def forward(self, x):
        return self.head(F.linear(F.relu(self.a(x)), self.mix))


class RawNarrowing(Module):
    layers = {"a": nn.Linear(5, 8), "mix": nn.Parameter(torch.ones(6, 8)), "head": nn.Linear(6, 3)}

    def forward(self, x):
        return self.head(F.linear(F.relu(self.a(x)), self.mix))


class Tied(Again):
    def __init__(self):
        super().__init__()
        self.twin = nn.Linear(8, 8)
        self.twin.weight = self.again.weight

    def forward(self, x):
        return self.head(self.twin(F.relu(self.again(self.a(x)))))


class Unused(Again):
    def forward(self, x):
        return self.head(self.a(x))


class Hidden(Again):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(8)


@pytest.mark.parametrize(
    ("kind", "example", "named", "why"),
    [
        (HardView, MAPS, "'head'", "a size written into forward"),
        (Shuffled, MAPS, "'b'", "channel shuffle"),
        (Softmax, ROWS, "'again'", "softmax"),
        (Flipped, ROWS, "'again'", "an order that forward makes itself"),
        (Transposed, ROWS, "'head'", "does not compute what the full one computes"),
        (RawMatrix, ROWS, "'mix'", "uses by itself instead of through a layer"),
        (RawNarrowing, ROWS, "'mix'", "used without a layer"),
        (Tied, ROWS, "'again.weight' and 'twin.weight'", "one parameter under two names"),
        (Unused, ROWS, "'again'", "has no part in the output"),
        (Hidden, ROWS, "'scale'", "register_buffer"),
        (Again, MAPS, "Again", "cannot run on the example"),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_what_cannot_be_covered_is_refused_by_name_and_reason(kind, example, named, why):
    with pytest.raises(SettingsError) as refusal:
        trace(kind(), example)
    assert named in str(refusal.value)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)
