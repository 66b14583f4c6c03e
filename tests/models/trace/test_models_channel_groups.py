"""Which channels belong together: axes of modules for which nothing is declared, and of those that declare theirs."""

import pytest
import torch
from traced_examples import MAPS, DenselyConnected, Grouped, UShaped

from potluck.core import Axis
from potluck.models import make_spec
from potluck.models.families import FAMILIES
from potluck.models.trace import trace

pytest.importorskip("torch_pruning")


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
