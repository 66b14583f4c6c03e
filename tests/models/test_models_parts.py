"""The heart: a narrow network filled with a part of the whole computes what the whole does with the rest silenced."""

import pytest
import torch

from potluck.core import Model, stream
from potluck.models import Menagerie, make_spec
from potluck.parts import part

SPECS = {
    "mlp": {"hidden": 9, "depth": 3, "input": (2, 3), "classes": 4},
    "lenet": {"input": (2, 12, 13), "classes": 4},
    "lenet-3x3": {"name": "lenet", "input": (1, 8, 8), "classes": 4},
    "cnn": {"width": 7, "input": (2, 9, 8), "classes": 4},
    "resnet": {"width": 3, "depth": (1, 2, 1, 2), "input": (2, 9, 8), "classes": 4},
    "resnet-stride4": {"name": "resnet10", "width": 3, "stem": "stride4", "input": (1, 16, 16), "classes": 4},
}


def chosen(way, size, rng):
    """Some units of a group of this size, in the order in which the narrow network holds them."""
    count = int(torch.randint(1, size + 1, (), generator=rng))
    if way == "prefix":
        return list(range(count))
    if way == "random":
        return torch.randperm(size, generator=rng)[:count].tolist()
    start = size - (count + 1) // 2
    return [(start + step) % size for step in range(count)]


def lively(arrays, rng):
    """Random numbers in every tensor, norms and their statistics included; spreads are positive."""

    def drawn(name, tensor):
        if not tensor.is_floating_point():
            return tensor
        values = torch.randn(tensor.shape, generator=rng)
        return 0.5 + values.abs() if name.endswith("running_var") else values / tensor[0].numel() ** 0.5

    return {name: drawn(name, tensor) for name, tensor in arrays.items()}


def silenced(arrays, axes, units, trained):
    """The whole with nothing coming out of the units that were not chosen."""
    quiet = {name: tensor.clone() for name, tensor in arrays.items()}
    for name in trained:
        axis = axes[name][0]
        if axis is not None:
            others = [unit for unit in range(axis.size) if unit not in units[axis.group]]
            quiet[name].view(axis.size, axis.inner, -1)[others] = 0
    return quiet


def scores(zoo, spec, arrays, x, training):
    """In double precision, so that the order of sums does not show."""
    with torch.no_grad():
        return zoo.build(Model(spec, arrays)).double().train(training)(x)


@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize(
    ("norm", "training"), [("none", True), ("static", True), ("static", False), ("running", False)]
)
@pytest.mark.parametrize("way", ["prefix", "rolling", "random"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_part_computes_what_the_whole_does_with_the_other_units_silenced(family, norm, training, way, seed):
    options = {"name": family, **SPECS[family]}
    spec = make_spec(options.pop("name"), norm=norm, **options)
    zoo, rng = Menagerie(spec), stream(seed, family, norm, way)
    axes, whole = zoo.axes(spec), lively(zoo.fresh(spec, rng).arrays, rng)
    units = {group: chosen(way, size, rng) for group, size in spec.sizes.items()}
    narrow = zoo.narrow(spec, {group: len(units[group]) / size for group, size in spec.sizes.items()})
    assert narrow.sizes == {group: len(kept) for group, kept in units.items()}

    x = torch.randn(5, *spec.options["input"], generator=rng, dtype=torch.float64)
    small = part(axes, lambda axis: units[axis.group]).take(whole)
    quiet = silenced(whole, axes, units, axes.keys() - zoo.buffers(spec))
    mine, reference = scores(zoo, narrow, small, x, training), scores(zoo, spec, quiet, x, training)
    torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(reference, scores(zoo, spec, whole, x, training))


@pytest.mark.parametrize("norm", ["none", "static"])
def test_a_shallow_resnet_computes_what_the_deep_one_does_with_the_other_blocks_silenced(norm):
    deep = make_spec("resnet", depth=(2, 2, 3, 2), width=3, norm=norm, input=(1, 8, 8), classes=4)
    zoo, rng = Menagerie(deep), stream(0, norm)
    shallow = zoo.shallow(deep, (1, 2, 1, 1))
    whole = lively(zoo.fresh(deep, rng).arrays, rng)
    names = zoo.shapes(shallow)
    small = part(zoo.axes(deep), lambda axis: range(axis.size), names).take(whole)
    quiet = {
        name: tensor if name in names or ".second." not in name else torch.zeros_like(tensor)
        for name, tensor in whole.items()
    }
    x = torch.randn(5, 1, 8, 8, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(
        scores(zoo, shallow, small, x, True), scores(zoo, deep, quiet, x, True), rtol=1e-9, atol=1e-9
    )
    assert small.keys() == names.keys() < whole.keys()
