"""A projection in front of the classifier: networks of unequal width get classifiers of one shape."""

import json

import pytest
import torch

from potluck.core import Axis, Model, SettingsError, Spec
from potluck.models import ModelZoo, load, make_spec, save
from potluck.models.specs import complete, narrow

SMALL = make_spec("mlp", input=(2,), classes=2, hidden=3, depth=1)
ZOO = ModelZoo(SMALL)
WIDE = ZOO.projected(SMALL, 5)


def test_the_classifier_reads_the_projected_features():
    shapes = {name: shape for name, (shape, _) in ZOO.shapes(WIDE).items() if name.startswith("head.")}
    assert shapes == {
        "head.weight": (2, 5),
        "head.bias": (2,),
        "head.projection.weight": (5, 3),
        "head.projection.bias": (5,),
    }
    model = ZOO.fresh(WIDE, torch.Generator().manual_seed(0))
    net, arrays = ZOO.build(model), model.arrays
    x = torch.tensor([[1.0, -2.0]])
    features = net.body(net.stem(x)) @ arrays["head.projection.weight"].T + arrays["head.projection.bias"]
    assert torch.allclose(net(x), features @ arrays["head.weight"].T + arrays["head.bias"])


def test_a_network_with_as_many_features_needs_no_projection():
    assert ZOO.projected(SMALL, 3) == SMALL
    assert ZOO.projected(WIDE, 3) == SMALL
    assert ZOO.projected(WIDE, 4) == ZOO.projected(SMALL, 4)


def test_a_spec_with_a_projection_survives_json_and_a_folder(tmp_path):
    assert complete(Spec.of(json.loads(json.dumps(WIDE.plain())))) == WIDE
    assert WIDE.key != SMALL.key
    model = ZOO.fresh(WIDE, torch.Generator().manual_seed(0))
    save(tmp_path, model)
    x = torch.ones(1, 2)
    assert torch.equal(load(tmp_path)(x), ZOO.build(model)(x))


def test_the_projection_reads_the_units_that_may_be_cut():
    axes = ZOO.axes(WIDE)
    assert axes["head.projection.weight"] == (None, Axis("hidden1", 3))
    assert axes["head.weight"] == (None, None)
    assert axes.keys() == ZOO.shapes(WIDE).keys()
    assert ZOO.shapes(narrow(WIDE, 0.5))["head.projection.weight"][0] == (5, 2)


@pytest.mark.parametrize(
    ("name", "shape", "options", "layer"),
    [
        ("bert", (8,), {"vocab": 20}, "head.classifier"),
        ("transformer", (8,), {}, "head.output"),
        ("preresnet18", (1, 8, 8), {}, "head"),
    ],
)
def test_every_family_can_have_one(name, shape, options, layer):
    spec = make_spec(name, input=shape, classes=4, **options)
    zoo = ModelZoo(spec)
    assert zoo.classifier(spec) == zoo.classifier(zoo.projected(spec, 6)) == layer
    projected = zoo.projected(spec, 6)
    net, batch = zoo.probe(projected, 2)
    assert net(batch).shape[-1] == 4
    assert zoo.shapes(zoo.counting(projected))[f"{layer}.weight"][0] == (4, 6)


def test_a_classifier_of_as_many_features_as_classes_is_still_the_classifier():
    square = ZOO.projected(SMALL, 2)
    assert ZOO.classifier(square) == "head"
    assert ZOO.shapes(ZOO.projected(square, 4))["head.projection.weight"][0] == (4, 3)


@pytest.mark.parametrize("features", [0, -1, 1 << 40, "many", True])
def test_a_forged_spec_is_refused_in_one_line(features):
    with pytest.raises(SettingsError, match=r"mlp: head\.projection = .* must be a whole number") as refused:
        complete(Spec("mlp", SMALL.depth, SMALL.sizes, {**SMALL.options, "head.projection": features}))
    assert "\n" not in str(refused.value)


def test_a_projection_does_not_change_the_numbers_of_networks_without_one():
    plain = ZOO.fresh(SMALL, torch.Generator().manual_seed(0))
    other = ZOO.fresh(WIDE, torch.Generator().manual_seed(0))
    assert isinstance(other, Model)
    assert all(torch.equal(plain.arrays[name], other.arrays[name]) for name in plain.arrays if name[:4] != "head")
