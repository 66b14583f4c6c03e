"""Modules written for these tests only are traced without any declaration, and cut in every way."""

# ruff: noqa: RUF012 (layers are copied by each module that is made of them)

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from potluck.core import Axis, SettingsError, stream
from potluck.models import make_spec
from potluck.models.families import FAMILIES
from potluck.models.trace.equivalence import compare_networks
from potluck.models.trace.traced_module import TracedModule, axes_from_plain, trace
from potluck.parts import part

pytest.importorskip("torch_pruning")

MAPS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


class Module(nn.Module):
    """Layers by name, and a forward that subclasses write."""

    layers: dict = {}

    def __init__(self):
        super().__init__()
        for name, layer in copy.deepcopy(self.layers).items():
            setattr(self, name, layer)


class DenselyConnected(Module):
    layers = {
        "a": nn.Conv2d(3, 6, 3, padding=1),
        "b": nn.Conv2d(6, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(10),
        "c": nn.Conv2d(10, 5, 3, padding=1),
        "head": nn.Linear(15, 7),
    }

    def forward(self, x):
        x = F.relu(self.a(x))
        x = torch.cat([x, F.relu(self.b(x))], 1)
        x = torch.cat([F.relu(self.c(self.norm(x))), x], 1)
        return self.head(x.mean((2, 3)))


class Grouped(Module):
    layers = {
        "a": nn.Conv2d(3, 12, 3),
        "grouped": nn.Conv2d(12, 8, 3, groups=2, padding=1),
        "depthwise": nn.Conv2d(8, 8, 3, groups=8, padding=1),
        "thrice": nn.Conv2d(8, 24, 3, groups=8),
        "c": nn.Conv2d(24, 5, 1),
        "head": nn.Linear(5 * 16, 7),
    }

    def forward(self, x):
        x = torch.sigmoid(self.grouped(torch.tanh(self.a(x))))
        return self.head(F.relu(self.c(self.thrice(self.depthwise(x)))).flatten(1))


class SqueezeExcite(Module):
    layers = {
        "a": nn.Conv2d(3, 8, 3),
        "down": nn.Linear(8, 3),
        "up": nn.Linear(3, 8),
        "c": nn.Conv2d(8, 6, 3),
        "head": nn.Linear(6, 4),
    }

    def forward(self, x):
        x = F.relu(self.a(x))
        gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        return self.head(F.relu(self.c(x * gate[:, :, None, None])).mean((2, 3)))


class Branches(Module):
    layers = {
        "stem": nn.Conv2d(3, 6, 3, padding=1),
        "long": nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1)),
        "wide": nn.Conv2d(6, 6, 5, padding=2),
        "norm": nn.GroupNorm(2, 6),
        "head": nn.Linear(6, 4),
    }

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.relu(self.norm(x + self.long(x) + self.wide(x))).mean((2, 3)))


class UShaped(Module):
    """The input itself is concatenated, too: entries that are never cut beside some that are."""

    layers = {
        "a": nn.Conv2d(3, 6, 3, padding=1),
        "b": nn.Conv2d(6, 9, 3, padding=1, stride=2),
        "up": nn.ConvTranspose2d(9, 5, 2, stride=2),
        "c": nn.Conv2d(14, 4, 3, padding=1),
        "head": nn.Conv2d(4, 2, 1),
    }

    def forward(self, x):
        a = F.relu(self.a(x))
        return self.head(F.relu(self.c(torch.cat([x, self.up(F.relu(self.b(a))), a], 1))))


class Tokens(Module):
    """Embedding, a table of positions without a layer, layer norm, residual."""

    layers = {
        "embed": nn.Embedding(11, 8),
        "place": nn.Parameter(torch.ones(1, 5, 8)),
        "norm": nn.LayerNorm(8),
        "up": nn.Linear(8, 12),
        "down": nn.Linear(12, 8),
        "head": nn.Linear(8, 11),
    }

    def forward(self, x):
        x = self.embed(x) + self.place
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


class Gated(Module):
    layers = {"a": nn.Linear(5, 8), "b": nn.Linear(4, 6), "head": nn.Linear(6, 3)}

    def forward(self, x):
        left, right = self.a(x).chunk(2, 1)
        return self.head(F.relu(self.b(left * torch.sigmoid(right))))


class Halves(Module):
    """Pieces of one layer go separate ways and meet again in another order."""

    layers = {
        "a": nn.Conv2d(3, 12, 3),
        "b": nn.Conv2d(4, 4, 1),
        "c": nn.Conv2d(4, 4, 1),
        "d": nn.Conv2d(12, 5, 1),
        "head": nn.Linear(5, 3),
    }

    def forward(self, x):
        one, two, three = self.a(x).chunk(3, 1)
        return self.head(F.relu(self.d(torch.cat([self.c(three), two, self.b(one)], 1))).mean((2, 3)))


class Again(Module):
    """One layer is used twice, so what goes in and what comes out are the same units."""

    layers = {"a": nn.Linear(5, 8), "again": nn.Linear(8, 8), "head": nn.Linear(8, 3)}

    def forward(self, x):
        return self.head(self.again(F.relu(self.again(self.a(x)))))


class AroundTheInput(Module):
    layers = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 3, 3, padding=1), "head": nn.Linear(3, 3)}

    def forward(self, x):
        return self.head((x + self.b(self.a(x))).mean((2, 3)))


MODULES = {
    DenselyConnected: (MAPS, {"a": 6, "b": 4, "c": 5}),
    Grouped: (MAPS, {"a": 6, "grouped": 4, "c": 5}),
    SqueezeExcite: (MAPS, {"a": 8, "down": 3, "c": 6}),
    Branches: (MAPS, {"stem": 6, "long.0": 4}),
    UShaped: (MAPS, {"a": 6, "b": 9, "up": 5, "c": 4, ":fixed": 1}),
    Tokens: (TOKENS, {"embed": 8, "up": 12}),
    Gated: (ROWS, {"a": 4, "b": 6}),
    Halves: (MAPS, {"a": 4, "a:1": 4, "a:2": 4, "b": 4, "c": 4, "d": 5}),
    Again: (ROWS, {"a": 8}),
    AroundTheInput: (MAPS, {"a": 8}),
}


def chosen(way, size, count, rng):
    if way == "prefix":
        return list(range(count))
    if way == "random":
        return torch.randperm(size, generator=rng)[:count].tolist()
    return [(size - (count + 1) // 2 + step) % size for step in range(count)]


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", ["prefix", "rolling", "random"])
def test_a_traced_part_computes_what_the_whole_does_with_the_other_units_set_to_zero(kind, way):
    example, sizes = MODULES[kind]
    traced, rng = trace(kind(), example), stream(0, kind.__name__, way)
    assert traced.sizes == sizes
    for width in (0.1, 0.4, 0.75):
        units = {group: chosen(way, size, -int(-size * width // 1), rng) for group, size in sizes.items()}
        compare_networks(traced, units, rng, way)


def test_groups_may_be_cut_to_different_widths():
    traced, rng = trace(DenselyConnected(), MAPS), stream(1)
    compare_networks(traced, {"a": [5, 1], "b": [3], "c": [4, 0, 2, 1]}, rng, "apart")
    traced.check([{"a": 0.5}, {"b": 0.2, "c": 0.9}])


def test_concatenation_gives_a_dimension_of_segments():
    axes = trace(DenselyConnected(), MAPS).axes
    a, b, c = Axis("a", 6), Axis("b", 4), Axis("c", 5)
    assert axes["a.weight"] == (a, None)
    assert axes["norm.running_var"] == ((a, b),)
    assert axes["c.weight"] == (c, (a, b))
    assert axes["head.weight"] == (None, (c, a, b))
    assert axes["head.bias"] == (None,)


def test_groups_of_a_convolution_stay_intact_and_flattening_repeats_units():
    axes = trace(Grouped(), MAPS).axes
    assert axes["a.weight"] == (Axis("a", 6, outer=2), None)
    assert axes["grouped.weight"] == (Axis("grouped", 4, outer=2), Axis("a", 6))
    assert axes["depthwise.weight"] == (Axis("grouped", 4, outer=2), None)
    assert axes["thrice.weight"] == (Axis("grouped", 4, outer=2, inner=3), None)
    assert axes["head.weight"] == (None, Axis("c", 5, inner=16))


def test_the_input_beside_other_channels_is_kept_whole():
    axes = trace(UShaped(), MAPS).axes
    assert axes["c.weight"][1] == (Axis(":fixed", 1, inner=3), Axis("up", 5), Axis("a", 6))
    assert axes["up.weight"] == (Axis("b", 9), Axis("up", 5))


def test_a_narrow_network_knows_its_own_numbers_and_the_full_one_is_untouched():
    net = Grouped()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    narrow = trace(net, MAPS).build({"a": 2, "grouped": 3})
    assert (narrow.grouped.in_channels, narrow.grouped.out_channels, narrow.grouped.groups) == (4, 6, 2)
    assert (narrow.thrice.in_channels, narrow.thrice.out_channels, narrow.thrice.groups) == (6, 18, 6)
    assert narrow.head.in_features == 80
    assert torch.equal(narrow.a.weight, net.a.weight[[0, 1, 6, 7]])
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_norms_over_units_follow_the_width():
    branches, tokens = trace(Branches(), MAPS).build({"stem": 3}), trace(Tokens(), TOKENS).build({"embed": 5})
    assert (branches.norm.num_groups, branches.norm.num_channels) == (1, 3)
    assert (tokens.norm.normalized_shape, tokens.embed.embedding_dim, tokens.place.shape) == ((5,), 5, (1, 5, 5))
    assert tokens(TOKENS).shape == (2, 5, 11)


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


class Attention(Module):
    layers = {"a": nn.Linear(5, 8), "attend": nn.MultiheadAttention(8, 2), "head": nn.Linear(8, 3)}

    def forward(self, x):
        x = self.a(x)
        return self.head(self.attend(x, x, x)[0])


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
        (Attention, ROWS, "'attend'", "MultiheadAttention"),
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


class OddAtThree(Module):
    """Computes something else when it has three units."""

    layers = {"a": nn.Linear(5, 4), "b": nn.Linear(4, 4), "head": nn.Linear(4, 3)}

    def forward(self, x):
        x = self.a(x)
        return self.head(self.b(x if x.shape[1] != 3 else x * 2))


def test_the_check_names_the_width_that_fails():
    traced = trace(OddAtThree(), ROWS)
    traced.check([0.25, 0.5, 1.0])
    with pytest.raises(SettingsError, match=r"width 0\.75: .* first in layer 'b'"):
        traced.check([0.25, 0.75])


def test_a_wrong_axis_would_be_noticed():
    traced = trace(Gated(), ROWS)
    assert traced.axes["a.weight"] == (Axis("a", 4, outer=2), None)
    pairs = Axis("a", 4, inner=2)
    wrong = {**traced.axes, "a.weight": (pairs, None), "a.bias": (pairs,)}
    with pytest.raises(SettingsError, match="does not compute what the full one computes"):
        TracedModule(traced.net, traced.example, wrong, traced.layers).check([0.5])


def test_sizes_that_there_are_not_are_refused():
    traced = trace(Gated(), ROWS)
    with pytest.raises(SettingsError, match="no axis group 'c'"):
        traced.build({"c": 1})
    with pytest.raises(SettingsError, match="from 1 to 4"):
        traced.build({"a": 5})


DECLARED = {
    "mlp": {"hidden": 9, "depth": 3, "input": (2, 3), "classes": 4},
    "lenet": {"input": (2, 12, 13), "classes": 4},
    "cnn": {"width": 7, "input": (2, 9, 8), "classes": 4},
    "resnet18": {"width": 4, "input": (2, 16, 16), "classes": 4},
    "preresnet18": {"width": 4, "input": (2, 16, 16), "classes": 4},
    "mobilenet_v2": {"input": (2, 32, 32), "classes": 4},
}


def renamed(dimension, names):
    if isinstance(dimension, tuple):
        return tuple(renamed(axis, names) for axis in dimension)
    if dimension is None:
        return None
    return Axis(names.setdefault(dimension.group, f"{len(names)}"), dimension.size, dimension.outer, dimension.inner)


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("norm", ["running", "static"])
def test_tracing_a_declared_family_gives_the_axes_that_it_declares(name, norm):
    spec = make_spec(name, norm=norm, **DECLARED[name])
    family = FAMILIES[spec.family]
    net = family.net(spec)
    example = torch.randn(2, *spec.options["input"], generator=torch.Generator().manual_seed(0))
    declared, traced = family.axes(spec, net), trace(net, example).axes
    assert list(declared) == list(traced)
    ours: dict = {}
    theirs: dict = {}
    for tensor in declared:
        mine = tuple(renamed(each, ours) for each in declared[tensor])
        found = tuple(renamed(each, theirs) for each in traced[tensor])
        length = max(len(mine), len(found))
        assert mine + (None,) * (length - len(mine)) == found + (None,) * (length - len(found)), tensor
    assert len(ours) == len(spec.sizes)


def test_units_are_taken_in_the_order_in_which_they_are_chosen():
    traced = trace(UShaped(), MAPS)
    kept = part(traced.axes, lambda axis: [0] if axis.size == 1 else [2, 0]).take(traced.net.state_dict())
    whole = traced.net.c.weight[[2, 0]]
    assert torch.equal(kept["c.weight"], whole[:, [0, 1, 2, 5, 3, 10, 8]])
