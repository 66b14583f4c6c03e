"""A narrow network with a part of the full one's arrays computes what the full one does with the other units zero."""

import pytest
import torch

from potluck.core import Model, stream
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.parts import part

SPECS = {
    "mlp": {"hidden": 9, "depth": 3, "input": (2, 3), "classes": 4},
    "lenet": {"input": (2, 12, 13), "classes": 4},
    "lenet-3x3": {"name": "lenet", "input": (1, 8, 8), "classes": 4},
    "cnn": {"width": 7, "input": (2, 9, 8), "classes": 4},
    "resnet": {"width": 3, "depth": (1, 2, 1, 2), "input": (2, 9, 8), "classes": 4},
    "bottleneck": {
        "name": "resnet",
        "block": "bottleneck",
        "width": 3,
        "depth": (1, 2, 1, 1),
        "input": (2, 9, 8),
        "classes": 4,
    },
    "preresnet18": {"width": 3, "input": (2, 9, 8), "classes": 4},
    "mobilenet_v2": {"input": (2, 9, 8), "classes": 4, "narrow": 0.1},
    "resnet-stride4": {"name": "resnet10", "width": 3, "stem": "stride4", "input": (1, 16, 16), "classes": 4},
}


TEXTS = {
    "transformer": {"hidden": 12, "heads": 3, "ffn": 7, "depth": 2, "input": (6,), "classes": 11},
    "transformer-gelu": {
        "name": "transformer", "hidden": 8, "heads": 2, "ffn": 5, "depth": 1, "activation": "gelu", "input": (4,),
        "classes": 5,
    },
    "bert": {"hidden": 12, "heads": 3, "ffn": 7, "depth": 2, "vocab": 6, "input": (6,), "classes": 4},
    "bert-tags": {
        "name": "bert", "hidden": 8, "heads": 4, "ffn": 7, "depth": 1, "vocab": 9, "pad": 3, "count": "words",
        "output": "tokens", "input": (5,), "classes": 4,
    },
}  # fmt: skip


def chosen(way, size, rng):
    """Some units of a group of this size, in the order in which the narrow network holds them."""
    count = int(torch.randint(1, size + 1, (), generator=rng))
    if way == "prefix":
        return list(range(count))
    if way == "random":
        return torch.randperm(size, generator=rng)[:count].tolist()
    start = size - (count + 1) // 2
    return [(start + step) % size for step in range(count)]


def random_arrays(arrays, rng):
    """Random numbers in every tensor, norms and their statistics included; spreads are positive."""

    def drawn(name, tensor):
        if not tensor.is_floating_point():
            return tensor
        values = torch.randn(tensor.shape, generator=rng)
        return 0.5 + values.abs() if name.endswith("running_var") else values / tensor[0].numel() ** 0.5

    return {name: drawn(name, tensor) for name, tensor in arrays.items()}


def zeroed(arrays, axes, units, trained):
    """The full network's arrays, with zero for the outputs of the units that were not chosen."""
    zeros = {name: tensor.clone() for name, tensor in arrays.items()}
    for name in trained:
        axis = axes[name][0]
        if axis is not None:
            others = [unit for unit in range(axis.size) if unit not in units[axis.group]]
            zeros[name].view(axis.outer, axis.size, axis.inner, -1)[:, others] = 0
        elif name.startswith("stem."):  # an embedding: its units are columns
            axis = axes[name][1]
            zeros[name][:, [unit for unit in range(axis.size) if unit not in units[axis.group]]] = 0
    return zeros


def compared(spec, way, seed, x, training):
    """Scores of a part, of the full network with the other units set to zero, and of the full network."""
    zoo, rng = ModelZoo(spec), stream(seed, spec.key, way)
    axes, whole = zoo.axes(spec), random_arrays(zoo.fresh(spec, rng).arrays, rng)
    units = {group: chosen(way, size, rng) for group, size in spec.sizes.items()}
    narrow = zoo.narrow(spec, {group: len(units[group]) / size for group, size in spec.sizes.items()})
    assert narrow.sizes == {group: len(kept) for group, kept in units.items()}
    small = part(axes, lambda axis: units[axis.group]).take(whole)
    zeros = zeroed(whole, axes, units, axes.keys() - zoo.buffers(spec))
    # A narrow head divides by the root of its own width: so the full one's queries are scaled up.
    queries = {name: axes[name][0] for name in axes if ".query." in name}
    factors = {name: (axis.size / len(units[axis.group])) ** 0.5 for name, axis in queries.items()}
    return (
        scores(zoo, narrow, small, x, training),
        scores(zoo, spec, zeros, x, training, factors),
        scores(zoo, spec, whole, x, training),
    )


def scores(zoo, spec, arrays, x, training, factors=None):
    """In double precision, so that the order of sums does not show; some weights times a factor."""
    net = zoo.build(Model(spec, arrays)).double().train(training)
    with torch.no_grad():
        for name, factor in (factors or {}).items():
            net.get_parameter(name).mul_(factor)
        return net(x)


@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize(
    ("norm", "training"), [("none", True), ("static", True), ("static", False), ("running", False)]
)
@pytest.mark.parametrize("way", ["prefix", "rolling", "random"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_part_computes_what_the_whole_does_with_the_other_units_set_to_zero(family, norm, training, way, seed):
    options = {"name": family, "narrow": 1.0, **SPECS[family]}
    width = options.pop("narrow")
    spec = tier_spec(make_spec(options.pop("name"), norm=norm, **options), width)
    x = torch.randn(5, *spec.options["input"], generator=stream(seed, "x"), dtype=torch.float64)
    mine, reference, whole = compared(spec, way, seed, x, training)
    torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(reference, whole)


def text(name, **more):
    """A small network of tokens, and tokens for it, padding among them."""
    options = {"name": name, "dropout": 0, **TEXTS[name], **more}
    spec = make_spec(options.pop("name"), **options)
    tokens = spec.options.get("vocab", spec.options["classes"])
    return spec, torch.randint(tokens, (5, *spec.options["input"]), generator=stream(0, name))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("way", ["prefix", "rolling", "random"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_part_of_a_text_network_computes_what_the_whole_does_with_the_other_units_set_to_zero(name, way, seed):
    # Layer norms are left out: they normalise across units, silent ones included.
    spec, ids = text(name, norm="none")
    mine, reference, whole = compared(spec, way, seed, ids, True)
    torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(reference, whole)


@pytest.mark.parametrize("name", TEXTS)
def test_all_units_in_another_order_compute_the_same_layer_norms_included(name):
    spec, ids = text(name)
    zoo, rng = ModelZoo(spec), stream(0, name)
    whole = random_arrays(zoo.fresh(spec, rng).arrays, rng)
    units = {group: torch.randperm(size, generator=rng).tolist() for group, size in spec.sizes.items()}
    turned = part(zoo.axes(spec), lambda axis: units[axis.group]).take(whole)
    torch.testing.assert_close(
        scores(zoo, spec, turned, ids, True), scores(zoo, spec, whole, ids, True), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("units", "rows"),
    [
        pytest.param([0, 1], [0, 1, 4, 5], id="the first half of each head"),
        pytest.param([1, 2], [1, 2, 5, 6], id="half of each head, rolled by one"),
        pytest.param([3, 0], [3, 0, 7, 4], id="rolled around the end of each head"),
    ],
)
def test_the_rows_of_a_head_are_chosen_head_by_head(units, rows):
    spec = make_spec("transformer", hidden=8, heads=2, ffn=4, depth=1, input=(3,), classes=5)
    zoo = ModelZoo(spec)
    some = part(zoo.axes(spec), lambda axis: units if axis.group.startswith("layer0.") else range(axis.size))
    for name in ("query", "key", "value"):
        assert some.place(f"body.0.attention.{name}.bias").take(torch.arange(8)).tolist() == rows
        entries = some.place(f"body.0.attention.{name}.weight").take(torch.arange(64).view(8, 8))
        assert entries[:, 0].tolist() == [8 * row for row in rows]
    assert some.place("body.0.attention.output.weight").take(torch.arange(64).view(8, 8))[0].tolist() == rows


@pytest.mark.parametrize("norm", ["none", "static"])
def test_a_shallow_resnet_computes_what_the_deep_one_does_with_the_other_blocks_set_to_zero(norm):
    deep = make_spec("resnet", depth=(2, 2, 3, 2), width=3, norm=norm, input=(1, 8, 8), classes=4)
    zoo, rng = ModelZoo(deep), stream(0, norm)
    shallow = zoo.shallow(deep, (1, 2, 1, 1))
    whole = random_arrays(zoo.fresh(deep, rng).arrays, rng)
    names = zoo.shapes(shallow)
    small = part(zoo.axes(deep), lambda axis: range(axis.size), names).take(whole)
    zeros = {
        name: tensor if name in names or ".second." not in name else torch.zeros_like(tensor)
        for name, tensor in whole.items()
    }
    x = torch.randn(5, 1, 8, 8, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(
        scores(zoo, shallow, small, x, True), scores(zoo, deep, zeros, x, True), rtol=1e-9, atol=1e-9
    )
    assert small.keys() == names.keys() < whole.keys()
