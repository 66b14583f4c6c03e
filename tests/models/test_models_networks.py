"""The networks: their counts, their names, their norms."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from potluck.core import Newborn, SettingsError, stream
from potluck.models import ModelZoo, make_spec

NAMES = ("mlp", "lenet", "cnn", "resnet10", "resnet50", "preresnet18", "mobilenet_v2")
NORMS = ("static", "running", "counted", "group", "none")
DIGITS = {"input": (1, 8, 8), "classes": 10}


def small(name, norm="none", **options):
    """A little network of each family."""
    if "resnet" in name:
        options = {"width": 4, **options}
    if name == "resnet50":
        options = {"name": "resnet", "block": "bottleneck", "depth": (1, 1, 1, 1), **options}
    spec = make_spec(options.pop("name", name), norm=norm, **{**DIGITS, **options})
    return ModelZoo(spec).narrow(spec, 0.2) if name == "mobilenet_v2" else spec


def random_net(spec):
    return ModelZoo(spec).build(Newborn(spec), stream(0, "test"))


def count(spec):
    return sum(weight.numel() for weight in random_net(spec).parameters())


def trained(spec):
    """Shapes of the weights."""
    zoo = ModelZoo(spec)
    return {name: entry for name, entry in zoo.shapes(spec).items() if name not in zoo.buffers(spec)}


def test_a_tiny_mlp_has_the_parameters_one_counts_by_hand():
    # 3x4+4 in the stem, 4x4+4 in the one block, 4x2+2 in the head.
    assert count(make_spec("mlp", input=(3,), classes=2, hidden=4, depth=1)) == 16 + 20 + 10


def test_a_tiny_cnn_has_the_parameters_one_counts_by_hand():
    # 2x1x9 and a norm of 2+2 in the stem, 2x2x9 and a norm in each of two blocks, 2x3+3 in the head.
    assert count(make_spec("cnn", input=(1, 8, 8), classes=3, width=2, depth=2)) == 22 + 2 * 40 + 9


def test_lenet_has_its_classic_61706_parameters_on_28x28_and_on_32x32():
    assert count(make_spec("lenet", input=(1, 28, 28), classes=10)) == 61706
    assert count(make_spec("lenet", input=(1, 32, 32), classes=10)) == 61706


def test_resnets_have_the_parameters_of_the_fedin_paper():
    specs = [make_spec(f"resnet{layers}", input=(3, 32, 32), classes=10) for layers in (10, 14, 18, 22, 26)]
    counts = [ModelZoo(spec).cost(spec, 1).parameters for spec in specs]
    assert [round(count / 1e6, 3) for count in counts] == [4.903, 10.805, 11.174, 17.075, 17.445]
    assert round(sum(counts) / 5e6, 3) == 12.280


def test_bottleneck_resnets_have_the_parameters_one_counts_by_hand():
    # A stem of 27 x 64 and its norm; in each stage of inner width w and stream 4w, after a stream of b:
    # 1x1 b -> w, 3x3 w -> w, 1x1 w -> 4w with norms, a shortcut b -> 4w with a norm; further blocks from 4w; a head.
    def by_hand(*depth):
        total, before = 27 * 64 + 2 * 64, 64
        for stage, blocks in enumerate(depth):
            width = 64 * 2**stage
            rest = 9 * width**2 + 4 * width**2 + 2 * (width + width + 4 * width)
            total += before * width + rest + before * 4 * width + 2 * 4 * width
            total += (blocks - 1) * (4 * width * width + rest)
            before = 4 * width
        return total + 2048 * 10 + 10

    specs = [make_spec(f"resnet{layers}", input=(3, 32, 32), classes=10) for layers in (50, 101, 152)]
    counts = [sum(math.prod(shape) for shape, _ in trained(spec).values()) for spec in specs]
    assert counts == [by_hand(3, 4, 6, 3), by_hand(3, 4, 23, 3), by_hand(3, 8, 36, 3)]
    assert [round(count / 1e6, 2) for count in counts] == [23.52, 42.51, 58.16]


def test_convolutions_of_a_preresnet_with_batch_norm_start_as_torch_starts_them():
    # Uniform within 1 / sqrt(fan in): a variance of 1 / (3 fan in), a sixth of He's, which networks without norms want.
    for norm, factor in (("static", 1 / 3), ("none", 2.0)):
        net = random_net(make_spec("preresnet18", input=(3, 32, 32), classes=10, norm=norm))
        for layer in (net.stem, net.body[0][0].first, net.body[3][1].first):
            fan_in = layer.weight[0].numel()
            assert layer.weight.var().item() * fan_in == pytest.approx(factor, rel=0.1)


def test_preresnet18_has_the_parameters_one_counts_by_hand():
    # Against resnet18 (11,173,962): the norms of the stem (128) and of the three shortcuts (2 x 896) are gone, each
    # stage's first norm is as wide as the stage before (2 x 448 fewer), and there is a last norm (1024).
    spec = make_spec("preresnet18", input=(3, 32, 32), classes=10)
    assert ModelZoo(spec).cost(spec, 1).parameters == 11_173_962 - 128 - 2 * 896 - 2 * 448 + 1024


def test_a_device_cnn_counts_as_the_cnn_and_has_strides_where_that_pools():
    spec = small("device_cnn", norm="group", depth=3, input=(1, 9, 16))
    assert count(spec) == count(small("cnn", norm="group", depth=3, input=(1, 9, 16)))
    net = random_net(spec)
    kinds = {type(module).__name__ for module in net.modules()}
    assert kinds == {"Net", "Sequential", "PooledBody", "Conv", "GroupNorm", "ReLU", "Linear"}
    x, sides = net.stem(torch.zeros(2, 1, 9, 16)), []
    for block in net.body:
        x = block(x)
        sides.append(tuple(x.shape[2:]))
    assert sides == [(5, 8), (3, 4), (2, 2)]
    assert random_net(small("device_cnn", depth=4)).body[-1].conv.stride == (1, 1)  # its map is 2x2 already


@pytest.mark.parametrize("norm", ["group", "none"])
def test_a_shallow_device_cnn_is_the_beginning_of_a_deep_one(norm):
    few, many = (ModelZoo(spec).shapes(spec) for spec in (small("device_cnn", norm, depth=depth) for depth in (1, 4)))
    assert few.keys() < many.keys()
    assert all(many[tensor] == few[tensor] for tensor in few)


def test_a_device_mobilenet_is_the_mobilenet_with_group_norm():
    given = {"input": (3, 32, 32), "classes": 10}
    assert make_spec("device_mobilenet", **given) == make_spec("mobilenet_v2", norm="group", **given)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("device_cnn", "device_cnn: norm = 'running' is not a choice"),
        ("device_mobilenet", "device_mobilenet has the norm group; for norm = 'running' ask for 'mobilenet_v2'"),
    ],
)
def test_device_networks_refuse_batch_norm(name, line):
    with pytest.raises(SettingsError, match=re.escape(line)):
        make_spec(name, norm="running", **DIGITS)


def test_mobilenet_has_the_parameters_of_the_paper_s_network_with_ten_classes():
    # The paper's network has 3,504,872 with a head of 1280 x 1000 + 1000; strides do not count.
    spec = make_spec("mobilenet_v2", input=(3, 32, 32), classes=10)
    assert ModelZoo(spec).cost(spec, 1).parameters == 3_504_872 - 1281 * 1000 + 1281 * 10


def test_mobilenet_halves_a_32x32_map_three_times():
    net = random_net(small("mobilenet_v2", input=(3, 32, 32)))
    x, sides = net.stem(torch.zeros(1, 3, 32, 32)), []
    for stage in net.body[:-1]:
        x = stage(x)
        sides.append(x.shape[-1])
    assert sides == [32, 32, 16, 8, 8, 4, 4]


def test_mobilenet_blocks_add_their_input_where_the_shape_stays_and_expand_from_the_second_stage_on():
    net = random_net(small("mobilenet_v2"))
    assert [[block.residual for block in stage] for stage in net.body[:-1]] == [
        [False], [False, True], [False, True, True], [False, True, True, True], [False, True, True],
        [False, True, True], [False],
    ]  # fmt: skip
    silent, x = net.body[1][1], torch.randn(2, 5, 4, 4, generator=stream(6))
    for weight in silent.project.parameters():
        nn.init.zeros_(weight)
    assert torch.equal(silent(x), x)
    assert net.body[0][0].expand is None
    assert net.body[1][0].expand is not None


def test_a_bottleneck_is_added_to_its_input_and_only_its_second_convolution_has_a_stride():
    net = random_net(small("resnet50"))
    block, x = net.body[1][0], torch.randn(2, 16, 6, 6, generator=stream(6))
    assert block.first(x).shape == (2, 8, 6, 6)
    assert block.second(block.first(x)).shape == (2, 8, 3, 3)
    inside = block.third(block.second(block.first(x)))
    torch.testing.assert_close(block(x), torch.relu(inside + block.shortcut(x)))


def test_the_shortcut_of_a_preactivated_block_reads_the_activated_tensor_and_the_straight_way_the_raw_one():
    net = random_net(small("preresnet18"))
    x = torch.randn(2, 4, 6, 6, generator=stream(6))
    straight, changing = net.body[0][0], net.body[1][0]
    inside = straight.second(torch.relu(straight.first(torch.relu(x))))
    torch.testing.assert_close(straight(x), x + inside)
    inside = changing.second(torch.relu(changing.first(torch.relu(x))))
    torch.testing.assert_close(changing(x), changing.shortcut(torch.relu(x)) + inside)


def test_the_scaler_of_a_preactivated_network_stands_before_each_norm():
    net = random_net(small("preresnet18", scaler=0.25))
    scaled = [name for name, module in net.named_modules() if type(module).__name__ == "Scaler"]
    blocks = [f"body.{stage}.{place}" for stage in range(4) for place in range(2)]
    wanted = [f"{block}.{part}.scaler" for block in blocks for part in ("enter", "between")]
    assert scaled == [*wanted, "body.last.scaler"]
    x = torch.tensor([[1.0, -2.0, 0.0, 3.0]])[..., None, None]
    assert net.body[0][0].enter(x).flatten().tolist() == [4.0, 0.0, 0.0, 12.0]
    assert net.eval().body[0][0].enter(x).flatten().tolist() == [1.0, 0.0, 0.0, 3.0]
    static = random_net(small("preresnet18", "static", scaler=0.25)).body[0][0].enter
    assert [type(step).__name__ for step in static] == ["Scaler", "BatchNorm", "ReLU"]


def test_a_stride4_resnet_enters_its_body_as_64x8x8_and_leaves_it_as_a_vector_of_512():
    net = random_net(make_spec("resnet10", input=(3, 32, 32), classes=10, stem="stride4"))
    features = net.stem(torch.zeros(2, 3, 32, 32))
    assert features.shape == (2, 64, 8, 8)
    assert net.body(features).shape == (2, 512)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 13, 17), (2, 32, 28)])
def test_scores_are_head_of_body_of_stem_for_any_input(name, shape):
    net = random_net(small(name, input=shape, classes=7)).eval()
    x = torch.randn(3, *shape, generator=stream(1))
    assert net(x).shape == (3, 7)
    assert torch.equal(net(x), net.head(net.body(net.stem(x))))


@pytest.mark.parametrize(("name", "least"), [(name, 4 if name == "lenet" else 1) for name in NAMES])
@pytest.mark.parametrize("stem", ["cifar", "stride4"])
def test_the_smallest_inputs_are_read(name, least, stem):
    options = {"stem": stem} if name == "resnet10" else {}
    assert random_net(small(name, input=(1, least, least), **options))(torch.zeros(2, 1, least, least)).shape == (2, 10)


@pytest.mark.parametrize("norm", ["static", "running"])
@pytest.mark.parametrize(
    ("name", "shallow", "deep"),
    [
        ("mlp", 1, 4),
        ("cnn", 1, 4),
        ("resnet", (1, 1, 1, 1), (1, 1, 2, 2)),
        ("resnet", (1, 1, 2, 2), (3, 3, 3, 3)),
        ("resnet50", (1, 1, 2, 1), (2, 1, 2, 3)),
        ("preresnet", (1, 1, 2, 2), (3, 3, 3, 3)),
        ("mobilenet_v2", (1, 1, 1, 1, 1, 1, 1), (2, 2, 3, 4, 3, 3, 2)),
    ],
)
def test_a_shallow_network_s_names_and_shapes_are_among_a_deep_one_s(name, shallow, deep, norm):
    few, many = (ModelZoo(spec).shapes(spec) for spec in (small(name, norm, depth=depth) for depth in (shallow, deep)))
    assert few.keys() < many.keys()
    assert all(many[tensor] == few[tensor] for tensor in few)


def test_resnet_blocks_are_named_by_stage_and_position():
    shapes = ModelZoo(small("resnet10")).shapes(small("resnet", depth=(1, 1, 2, 1)))
    blocks = {".".join(name.split(".")[:3]) for name in shapes if name.startswith("body")}
    assert blocks == {"body.0.0", "body.1.0", "body.2.0", "body.2.1", "body.3.0"}
    assert "body.0.0.shortcut.conv.weight" not in shapes
    assert shapes["body.1.0.shortcut.conv.weight"][0] == (8, 4, 1, 1)


def test_pooling_does_not_depend_on_the_number_of_blocks_kept():
    x = torch.randn(2, 1, 16, 16, generator=stream(2))
    deep = random_net(small("cnn", depth=5, input=(1, 16, 16)))
    outputs = []
    for block in deep.body:
        outputs.append((outputs[-1] if outputs else deep.stem(x)).detach())
        outputs[-1] = block(outputs[-1])
    assert [output.shape[-1] for output in outputs] == [8, 4, 2, 2, 2]
    shallow = random_net(small("cnn", depth=2, input=(1, 16, 16)))
    shallow.load_state_dict({name: deep.state_dict()[name] for name in shallow.state_dict()})
    assert torch.equal(shallow.body(shallow.stem(x)), outputs[1].mean((2, 3)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", NORMS)
def test_one_step_of_training_lowers_the_loss_under_every_norm(name, norm):
    net = random_net(small(name, norm))
    x, y = torch.randn(8, 1, 8, 8, generator=stream(3)), torch.arange(8)
    before = cross_entropy(net(x), y)
    before.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in net.parameters())
    steep = sum(weight.grad.square().sum() for weight in net.parameters())
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.01 / steep * weight.grad  # so short that the loss falls by 0.01 if it falls straight
    assert before.item() - cross_entropy(net(x), y).item() == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_a_single_example_is_survived(name, norm, training):
    net = random_net(small(name, norm)).train(training)
    scores = net(torch.randn(1, 1, 8, 8, generator=stream(4)))
    cross_entropy(scores, torch.tensor([3])).backward()
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", NORMS)
def test_no_examples_give_no_scores(name, norm):
    assert random_net(small(name, norm)).eval()(torch.zeros(0, 1, 8, 8)).shape == (0, 10)


def test_a_static_norm_that_sees_one_value_applies_its_affine_weights_alone():
    norm = random_net(make_spec("mlp", input=(1,), classes=1, hidden=2, norm="static")).stem.norm
    norm.load_state_dict({"weight": torch.tensor([2.0, 3.0]), "bias": torch.tensor([1.0, -1.0])})
    assert norm(torch.tensor([[5.0, 7.0]])).tolist() == [[11.0, 20.0]]
    assert norm(torch.tensor([[5.0, 7.0], [3.0, 7.0]]))[:, 0].tolist() == pytest.approx([3.0, -1.0], abs=1e-4)


def test_a_running_norm_that_sees_one_value_uses_its_statistics_and_leaves_them():
    norm = random_net(make_spec("mlp", input=(1,), classes=1, hidden=1, norm="running")).stem.norm
    norm.running_mean.fill_(3.0)
    norm.running_var.fill_(4.0)
    assert norm(torch.tensor([[7.0]])).item() == pytest.approx(2.0, abs=1e-4)
    assert (norm.running_mean.item(), norm.running_var.item(), norm.num_batches_tracked.item()) == (3.0, 4.0, 0)


def test_a_static_norm_uses_the_batch_in_evaluation_too():
    net = random_net(small("cnn", "static"))
    x = torch.randn(4, 1, 8, 8, generator=stream(5))
    assert torch.equal(net.train()(x), net.eval()(x))


@pytest.mark.parametrize("name", NAMES)
def test_a_static_network_s_counting_spec_adds_the_running_statistics_and_nothing_else(name):
    static = small(name, "static")
    zoo = ModelZoo(static)
    counted = zoo.counting(static)
    assert zoo.shapes(static).items() < zoo.shapes(counted).items()
    added = zoo.shapes(counted).keys() - zoo.shapes(static)
    assert added == zoo.buffers(counted)
    assert {each.rpartition(".")[2] for each in added} == {"running_mean", "running_var", "num_batches_tracked"}


def test_counted_statistics_are_the_mean_over_batches():
    # One feature, batches [1, 3] and [4, 8]: means 2 and 6, variances 2 and 8.
    norm = random_net(make_spec("mlp", input=(1,), classes=1, hidden=1, norm="counted")).stem.norm
    for batch in ([[1.0], [3.0]], [[4.0], [8.0]]):
        norm(torch.tensor(batch))
    assert (norm.running_mean.item(), norm.running_var.item()) == (4.0, 5.0)
    assert norm.eval()(torch.tensor([[4.0], [9.0]])).flatten().tolist() == pytest.approx([0.0, 5**0.5], abs=1e-4)


def test_group_norm_divides_the_channels_of_every_width():
    zoo = ModelZoo(small("cnn", "group"))
    for width, groups in ((0.03, 1), (0.2, 1), (0.375, 6), (0.5, 8), (1.0, 8)):  # 1, 7, 12, 16, 32 channels
        spec = zoo.narrow(zoo.full, width)
        assert random_net(spec).stem.norm.num_groups == groups


def test_the_scaler_divides_by_the_ratio_in_training_alone():
    net = random_net(make_spec("mlp", input=(2,), classes=2, hidden=2, scaler=0.25))
    x = torch.tensor([[1.0, -2.0]])
    assert net.stem.scaler(x).tolist() == [[4.0, -8.0]]
    assert net.eval().stem.scaler(x).tolist() == [[1.0, -2.0]]
    assert not any("scaler" in name for name in net.state_dict())
