"""Specs: names, options, widths and depths, and the mistakes that are turned away at the config."""

import pytest

from potluck.core import SettingsError, Spec
from potluck.models import ModelZoo, complete, families, make_spec, portion, tier_spec
from potluck.models.trace.user_family import REGISTERED

DIGITS = {"input": (1, 8, 8), "classes": 10}
WORDS = {"input": (8,), "classes": 10}
TOKENS = ("transformer", "bert", "bert-base", "minilm-l6", "roberta-base")


def test_an_alias_is_the_family_at_a_certain_depth():
    assert make_spec("resnet14", **DIGITS) == make_spec("resnet", depth=[1, 1, 2, 2], **DIGITS)
    assert make_spec("resnet", **DIGITS) == make_spec("resnet18", depth=[2, 2, 2, 2], **DIGITS)


def test_an_alias_may_stand_for_more_than_a_depth():
    assert make_spec("resnet50", **DIGITS) == make_spec("resnet", depth=[3, 4, 6, 3], block="bottleneck", **DIGITS)
    small = make_spec("minilm-l6", **WORDS)
    assert (small.depth, small.sizes["stream"], small.sizes["layer5.ffn"], small.sizes["layer0.qk"]) == (
        6,
        384,
        1536,
        32,
    )
    assert make_spec("bert-base", vocab=50, **WORDS).options["vocab"] == 50


def test_bottlenecks_have_a_stem_of_their_own_and_two_insides():
    spec = make_spec("resnet", block="bottleneck", depth=[1, 1, 1, 1], width=2, **DIGITS)
    assert spec.sizes == {
        "stem": 2, "stage0": 8, "stage0.0.first": 2, "stage0.0.second": 2, "stage1": 16, "stage1.0.first": 4,
        "stage1.0.second": 4, "stage2": 32, "stage2.0.first": 8, "stage2.0.second": 8, "stage3": 64,
        "stage3.0.first": 16, "stage3.0.second": 16,
    }  # fmt: skip


def test_heads_share_the_units_and_a_narrow_spec_keeps_some_of_each():
    spec = make_spec("transformer", hidden=24, heads=3, depth=1, ffn=10, **WORDS)
    assert spec.sizes == {"stream": 24, "layer0.qk": 8, "layer0.v": 8, "layer0.ffn": 10, "decoder": 24}
    assert complete(spec) == spec
    narrow = ModelZoo(spec).narrow(spec, 0.3)
    assert narrow.sizes == {"stream": 8, "layer0.qk": 3, "layer0.v": 3, "layer0.ffn": 3, "decoder": 8}


def test_a_shallow_transformer_keeps_the_bottom_layers():
    spec = make_spec("bert", hidden=12, heads=3, depth=3, ffn=10, **WORDS)
    assert ModelZoo(spec).shallow(spec, 1) == make_spec("bert", hidden=12, heads=3, depth=1, ffn=10, **WORDS)


def test_a_scaled_spec_has_the_ratio_as_its_scaler():
    spec = make_spec("preresnet18", **DIGITS)
    zoo = ModelZoo(spec)
    narrow = zoo.narrow(spec, 0.5)
    assert zoo.scaled(narrow, 0.5) == tier_spec(make_spec("preresnet18", scaler=0.5, **DIGITS), 0.5)
    assert zoo.scaled(spec, 1) == spec
    assert zoo.shapes(zoo.scaled(narrow, 0.5)) == zoo.shapes(narrow)
    with pytest.raises(SettingsError, match="preresnet: scaler = 0 must be a number"):
        zoo.scaled(spec, 0)


def test_the_counting_spec_of_a_static_one_has_counted_norms_and_any_other_spec_stays():
    static = make_spec("cnn", norm="static", **DIGITS)
    zoo = ModelZoo(static)
    assert zoo.counting(static) == make_spec("cnn", norm="counted", **DIGITS)
    for norm in ("running", "counted", "group", "none"):
        spec = make_spec("cnn", norm=norm, **DIGITS)
        assert zoo.counting(spec) == spec
    words = make_spec("transformer", **WORDS)
    assert zoo.counting(words) == words


def test_a_spec_names_every_group_and_answers_every_option():
    spec = make_spec("mlp", input=[64], classes=10, hidden=5, depth=1)
    assert spec.sizes == {"hidden0": 5, "hidden1": 5}
    assert spec.options == {"input": (64,), "classes": 10, "norm": "none", "scaler": 1.0}


def test_a_spec_survives_json():
    for name in families().keys() - REGISTERED.keys():
        spec = make_spec(name, **(WORDS if name in TOKENS else DIGITS))
        assert Spec.of(spec.plain()) == spec
        assert complete(Spec.of(spec.plain())) == spec


def test_an_incomplete_spec_is_completed_with_the_family_s_sizes():
    assert complete(Spec("mlp", None, {"hidden1": 3}, DIGITS)).sizes == {"hidden0": 64, "hidden1": 3, "hidden2": 64}


def test_equal_networks_have_equal_specs_however_they_were_asked_for():
    wide = make_spec("cnn", width=32, **DIGITS)
    assert ModelZoo(wide).narrow(wide, 0.5) == make_spec("cnn", width=16, **DIGITS)


def test_widths_are_rounded_up_and_leave_at_least_one_unit():
    assert [portion(5, 0.5), portion(30, 0.1), portion(10, 0.7), portion(64, 1 / 16), portion(3, 0.001)] == [
        3, 3, 7, 4, 1,
    ]  # fmt: skip


def test_a_mapping_narrows_the_groups_that_it_names():
    spec = make_spec("lenet", **DIGITS)
    narrow = ModelZoo(spec).narrow(spec, {"conv1": 0.5, "dense0": 0.25})
    assert narrow.sizes == {"conv0": 6, "conv1": 8, "dense0": 30, "dense1": 84}


def test_narrow_is_relative_to_the_given_spec():
    spec = make_spec("mlp", hidden=40, **DIGITS)
    zoo = ModelZoo(spec)
    assert set(zoo.narrow(zoo.narrow(spec, 0.5), 0.5).sizes.values()) == {10}


def test_a_shallow_spec_drops_the_groups_of_the_dropped_blocks():
    spec = tier_spec(make_spec("resnet18", width=8, **DIGITS), width=0.5, depth=(1, 1, 2, 1))
    assert spec.depth == (1, 1, 2, 1)
    assert spec.sizes == {
        "stage0": 4, "stage0.0": 4, "stage1": 8, "stage1.0": 8,
        "stage2": 16, "stage2.0": 16, "stage2.1": 16, "stage3": 32, "stage3.0": 32,
    }  # fmt: skip


def test_a_tier_without_width_and_depth_has_the_full_network():
    spec = make_spec("cnn", **DIGITS)
    assert tier_spec(spec) == spec


def test_every_name_has_a_line_of_description():
    found = families()
    assert {"mlp", "lenet", "cnn", "resnet", "resnet10", "resnet26"} <= set(found)
    assert all(line and "\n" not in line for line in found.values())


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("resent18", {}, "no model family 'resent18'. Did you mean 'resnet18'?"),
        ("perceiver", {}, "There are: mlp, lenet"),
        ("cnn", {"nrom": "none"}, "cnn has no option 'nrom'. Did you mean 'norm'?"),
        ("cnn", {"norm": "batch"}, "cnn: norm = 'batch' is not a choice"),
        ("mlp", {"width": 32}, "mlp has no option 'width'. There are: input, classes, norm, scaler, hidden."),
        ("mlp", {"hidden": 0}, "mlp: hidden = 0 must be a whole number from 1"),
        ("mlp", {"hidden": True}, "mlp: hidden = True must be a whole number"),
        ("mlp", {"depth": 0}, "mlp: depth = 0 must be a whole number from 1 to 200"),
        ("mlp", {"depth": 201}, "mlp: depth = 201 must"),
        ("mlp", {"depth": [1, 1]}, "mlp: depth = (1, 1) must"),
        ("mlp", {"classes": 0}, "mlp: classes = 0 must"),
        ("mlp", {"input": []}, "must be the shape of one example"),
        ("mlp", {"scaler": 0}, "mlp: scaler = 0 must be a number"),
        ("cnn", {"input": (64,)}, "cnn reads maps: input = [64] must be [channels, height, width]"),
        ("cnn", {"input": (1, 0, 8)}, "cnn: a length in input = [1, 0, 8], = 0 must be a whole number"),
        ("resnet", {"depth": 4}, "resnet: depth = 4 must be 4 numbers, one per stage, such as [2, 2, 2, 2]."),
        ("resnet", {"depth": [1, 1, 1]}, "must be 4 numbers"),
        ("resnet", {"depth": [1, 0, 1, 1]}, "resnet: depth of stage 1 = 0 must"),
        ("resnet18", {"depth": [1, 1, 1, 1]}, "resnet18 has the depth [2, 2, 2, 2]"),
        ("resnet18", {"width": 0.5}, "resnet: width = 0.5 must be a whole number"),
        ("resnet18", {"stem": "imagenet"}, "resnet: stem = 'imagenet' is not a choice. There are: cifar, stride4."),
        ("lenet", {"depth": 2}, "lenet has one depth: leave depth = 2 out."),
        ("lenet", {"kernel": 5}, "needs maps of 12x12 or more; input = [1, 8, 8]. Use kernel = 3."),
        ("lenet", {"input": (1, 3, 8)}, "lenet with 3x3 kernels needs maps of 4x4 or more"),
        ("lenet", {"kernel": 4}, "lenet: kernel = 4 is not a choice"),
        ("resnet50", {"block": "basic"}, "resnet50 has the block bottleneck; for block = 'basic' ask for 'resnet'."),
        ("preresnet18", {"stem": "cifar"}, "preresnet has no option 'stem'"),
        ("mobilenet_v2", {"width": 32}, "mobilenet_v2 has no option 'width'"),
        ("mobilenet_v2", {"depth": [1, 1]}, "must be 7 numbers, one per stage, such as [1, 2, 3, 4, 3, 3, 1]."),
        ("transformer", {}, "transformer reads tokens: input = [1, 8, 8] must be [length]."),
        ("transformer", {**WORDS, "heads": 5}, "transformer: hidden = 128 cannot be divided among heads = 5."),
        ("transformer", {**WORDS, "norm": "static"}, "transformer: norm = 'static' is not a choice. There are: layer"),
        ("transformer", {**WORDS, "dropout": 1}, "transformer: dropout = 1 must be a number from 0 to 0.9."),
        ("bert", {**WORDS, "hidden": 30, "heads": 4}, "bert: hidden = 30 cannot be divided among heads = 4."),
        ("bert", {**WORDS, "positions": 7}, "bert: input = [8] needs positions = 8; there are 7."),
        ("roberta-base", {"input": (513,)}, "bert: input = [513] needs positions = 515; there are 514."),
        ("bert", {**WORDS, "pad": 40000}, "bert: pad = 40000 is not a token of vocab = 30522."),
    ],
)  # fmt: skip
def test_a_mistaken_model_is_refused_in_one_line_that_names_the_setting(name, given, says):
    with pytest.raises(SettingsError) as caught:
        make_spec(name, **{**DIGITS, **given})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width", [0, -1, 1.5, float("nan"), True, "half", {"dense": 0.5}, {"dense0": 2}])
def test_a_mistaken_width_is_refused(width):
    spec = make_spec("lenet", **DIGITS)
    with pytest.raises(SettingsError, match=r"width|Did you mean"):
        ModelZoo(spec).narrow(spec, width)


@pytest.mark.parametrize("depth", [0, 4, (1, 1), 1.5])
def test_a_depth_that_the_network_does_not_have_is_refused(depth):
    spec = make_spec("cnn", depth=3, **DIGITS)
    with pytest.raises(SettingsError, match="depth"):
        ModelZoo(spec).shallow(spec, depth)


def test_a_size_for_a_group_that_is_not_there_is_refused():
    with pytest.raises(SettingsError, match=r"no axis group 'hiden0'\. Did you mean 'hidden0'"):
        complete(Spec("mlp", 1, {"hiden0": 3}, DIGITS))


def test_a_spec_without_an_input_shape_is_refused():
    with pytest.raises(SettingsError, match="mlp needs to know 'input'"):
        complete(Spec("mlp", 1, {}, {"classes": 2}))
