"""A traced and pruned network computes what the full one does with the other units set to zero."""

# ruff: noqa: RUF012 (layers are copied by each module that is made of them)

import pytest
import torch
from torch import nn
from traced_examples import MAPS, MODULES, ROWS, DenselyConnected, Gated, Module

from potluck.core import Axis, SettingsError, stream
from potluck.models.trace import TracedModule, trace
from potluck.models.trace.equivalence import compare_networks

pytest.importorskip("torch_pruning")


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
