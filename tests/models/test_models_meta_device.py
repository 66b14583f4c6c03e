"""What is known of a network without its numbers: shapes, axes, blocks, cost."""

import pytest
import torch
from model_specs import DIGITS, SPECS, every_spec

from potluck.core import Axis, Newborn, stream
from potluck.models import ModelZoo, make_spec


def segments(dimension):
    return dimension if isinstance(dimension, tuple) else (dimension,)


@every_spec
def test_axes_are_as_long_as_the_dimensions_they_describe(spec):
    zoo = ModelZoo(spec)
    axes, shapes = zoo.axes(spec), zoo.shapes(spec)
    assert list(axes) == list(shapes)
    for name, dimensions in axes.items():
        shape, _ = shapes[name]
        assert len(dimensions) <= len(shape)
        for dimension, length in zip(dimensions, shape, strict=False):
            assert dimension is None or sum(axis.length for axis in segments(dimension)) == length


@every_spec
def test_axes_name_exactly_the_groups_of_the_spec_with_their_sizes(spec):
    found = {
        (axis.group, axis.size)
        for dimensions in ModelZoo(spec).axes(spec).values()
        for dimension in dimensions
        if dimension is not None
        for axis in segments(dimension)
    }
    assert found == set(spec.sizes.items())


@every_spec
@pytest.mark.parametrize("width", [0.5, 0.3, 0.01])
def test_a_narrow_network_has_the_shapes_that_its_sizes_say(spec, width):
    zoo = ModelZoo(spec)
    narrow = zoo.narrow(spec, width)
    whole, small = zoo.shapes(spec), zoo.shapes(narrow)
    for name, dimensions in zoo.axes(spec).items():
        lengths = list(whole[name][0])
        for place, axis in enumerate(dimensions):
            if axis is not None:
                lengths[place] = axis.outer * narrow.sizes[axis.group] * axis.inner
        assert small[name] == (tuple(lengths), whole[name][1])
    zoo.build(zoo.fresh(narrow, stream(0)))


@every_spec
def test_shapes_and_buffers_are_those_of_the_live_network(spec):
    zoo = ModelZoo(spec)
    net = zoo.build(Newborn(spec), stream(0))
    assert zoo.shapes(spec) == {name: (tuple(each.shape), each.dtype) for name, each in net.state_dict().items()}
    assert zoo.buffers(spec) == {name for name, _ in net.named_buffers()}


@every_spec
def test_the_probe_is_the_network_and_a_batch_of_its_inputs_without_numbers(spec):
    zoo = ModelZoo(spec)
    net, x = zoo.probe(spec, 3)
    tokens = spec.family in ("transformer", "bert")
    assert (x.shape, x.dtype, x.device.type) == (
        (3, *spec.options["input"]),
        torch.long if tokens else torch.float,
        "meta",
    )
    assert {name: (tuple(each.shape), each.dtype) for name, each in net.state_dict().items()} == zoo.shapes(spec)
    scores = net.eval()(x)
    assert scores.device.type == "meta"
    assert (scores.shape[0], scores.shape[-1]) == (3, spec.options["classes"])


def test_input_channels_and_classes_are_never_cut():
    axes = ModelZoo(SPECS["resnet"]).axes(SPECS["resnet"])
    assert axes["stem.conv.weight"] == (Axis("stage0", 4), None)
    assert axes["head.weight"] == (None, Axis("stage3", 32))
    assert axes["head.bias"] == (None,)


def test_both_sides_of_a_residual_sum_share_a_group():
    axes = ModelZoo(SPECS["resnet"]).axes(SPECS["resnet"])
    first, stream1, stream2 = Axis("stage2.0", 16), Axis("stage1", 8), Axis("stage2", 16)
    assert axes["body.2.0.first.conv.weight"] == (first, stream1)
    assert axes["body.2.0.second.conv.weight"] == (stream2, first)
    assert axes["body.2.0.shortcut.conv.weight"] == (stream2, stream1)
    assert axes["body.2.1.first.conv.weight"] == (Axis("stage2.1", 16), stream2)
    assert axes["body.2.1.second.norm.bias"] == (stream2,)


def test_a_flattened_map_has_height_times_width_entries_per_channel():
    axes = ModelZoo(SPECS["lenet-28"]).axes(SPECS["lenet-28"])
    assert axes["body.1.linear.weight"] == (Axis("dense0", 120), Axis("conv1", 16, inner=25))
    assert axes["body.0.norm.running_var"] == (Axis("conv1", 16),)
    assert axes["body.0.norm.num_batches_tracked"] == ()


def test_blocks_are_counted_in_forward_order_within_the_network():
    spec = make_spec("resnet", depth=(1, 2, 1, 1), width=4, **DIGITS)
    zoo = ModelZoo(spec)
    assert zoo.block(spec, "stem.conv.weight") is None
    assert zoo.block(spec, "head.bias") is None
    names = [f"body.{place}.first.conv.weight" for place in ("0.0", "1.0", "1.1", "2.0", "3.0")]
    assert [zoo.block(spec, name) for name in names] == [0, 1, 2, 3, 4]
    deep = SPECS["mlp-running"]
    assert (zoo.block(deep, "body.1.norm.running_mean"), zoo.block(deep, "body.11.linear.weight")) == (1, 11)
    with pytest.raises(KeyError):
        zoo.block(spec, "body.0.1.first.conv.weight")


def test_what_closes_a_body_belongs_to_no_block():
    for name, last in (("preresnet", "body.last.norm.weight"), ("mobilenet", "body.last.conv.weight")):
        zoo = ModelZoo(SPECS[name])
        assert zoo.block(zoo.full, last) is None
    zoo = ModelZoo(SPECS["mobilenet"])
    assert zoo.block(zoo.full, "body.3.3.each.conv.weight") == 1 + 2 + 3 + 3


def test_a_depthwise_convolution_has_its_channels_once():
    axes = ModelZoo(SPECS["mobilenet"]).axes(SPECS["mobilenet"])
    hidden, stem = Axis("stage1.1", 15), Axis("stem", 4)  # tenths of 144 and 32
    assert axes["body.1.1.expand.conv.weight"] == (hidden, Axis("stage1", 3))
    assert axes["body.1.1.each.conv.weight"] == (hidden, None)
    assert axes["body.1.1.project.conv.weight"] == (Axis("stage1", 3), hidden)
    assert axes["body.0.0.each.conv.weight"] == (stem, None)


def test_query_and_key_share_units_of_each_head_and_value_and_output_share_others():
    axes = ModelZoo(SPECS["transformer"]).axes(SPECS["transformer"])
    residual, compared, carried = Axis("stream", 12), Axis("layer1.qk", 4, outer=3), Axis("layer1.v", 4, outer=3)
    place = "body.1.attention."
    assert axes[place + "query.weight"] == axes[place + "key.weight"] == (compared, residual)
    assert (axes[place + "key.bias"], axes[place + "value.bias"]) == ((compared,), (carried,))
    assert axes[place + "value.weight"] == (carried, residual)
    assert axes[place + "output.weight"] == (residual, carried)
    assert axes["stem.token.weight"] == axes["stem.position.weight"] == (None, residual)
    assert axes["head.output.weight"] == (None, Axis("decoder", 12))


def test_the_work_of_a_network_of_tokens_is_what_one_counts_by_hand():
    # 2 tokens of 4 units, one layer of one head, no dropout. Weights: query, key, value, output 4 x 16, feed-forward
    # 2 x 12, decoder 16 and 4 x 5. Twice that per token forward, and twice again backward, for the weights and for
    # the inputs (all have some: embeddings). Attention: two products of 2 x 2 x 4 forward, four backward.
    options = {"hidden": 4, "heads": 1, "ffn": 3, "depth": 1, "dropout": 0}
    spec = make_spec("transformer", input=(2,), classes=5, **options)
    work = ModelZoo(spec).cost(spec, 7)
    assert work.flops == 7 * 3 * 2 * (2 * (64 + 24 + 16 + 20) + 2 * 16)
    # Tables 5 x 4 and 2 x 4, biases 16 + 7 + 4 + 5, four norms of 4 + 4.
    assert work.parameters == 124 + 28 + 32 + 32


@every_spec
def test_work_is_a_straight_line_in_the_batch(spec):
    zoo = ModelZoo(spec)
    one, two, three = (zoo.cost(spec, batch) for batch in (1, 2, 3))
    assert two.flops - one.flops == three.flops - two.flops == one.flops > 0
    assert two.activation_bytes - one.activation_bytes == three.activation_bytes - two.activation_bytes > 0


def test_the_work_of_linear_layers_is_what_one_counts_by_hand():
    # Layers 3 -> 4 -> 4 -> 2: 36 weights. Forward 2 x 36 per example, as much again for the weights' gradients, and
    # 2 x 24 for the inputs' (the first layer's input needs none). Kept: the input and two hidden layers, 11 floats.
    spec = make_spec("mlp", input=(3,), classes=2, hidden=4, depth=1)
    work = ModelZoo(spec).cost(spec, 5)
    assert work.flops == 5 * (72 + 72 + 48)
    assert work.activation_bytes == 5 * 11 * 4
    assert (work.parameters, work.parameter_bytes) == (46, 184)


def test_the_work_of_convolutions_is_what_one_counts_by_hand():
    # On 4x4 maps: 1 -> 2 channels costs 2x16x9x2 = 576, 2 -> 2 costs 1152, the head 8; backward once more for the
    # weights, and for the inputs of all but the first. Kept: 16 floats of input, two maps of 32, 8 long indices of
    # the pooling, 2 averages.
    spec = make_spec("cnn", input=(1, 4, 4), classes=2, width=2, depth=1, norm="none")
    work = ModelZoo(spec).cost(spec, 3)
    assert work.flops == 3 * (2 * (576 + 1152 + 8) + 1152 + 8)
    assert work.activation_bytes == 3 * (4 * (16 + 32 + 32 + 2) + 8 * 8)


def test_a_norm_s_statistics_do_not_grow_with_the_batch():
    spec = make_spec("cnn", **DIGITS)
    zoo = ModelZoo(spec)
    held = [zoo.cost(spec, batch).activation_bytes for batch in (8, 16, 24)]
    assert held[2] - held[1] == held[1] - held[0]
    # Four layers keep mean and spread of 32 channels, once per batch.
    assert held[0] - (held[1] - held[0]) == 4 * 2 * 32 * 4


def test_a_narrower_and_a_shallower_network_ask_for_less():
    full = make_spec("resnet18", width=8, **DIGITS)
    zoo = ModelZoo(full)
    whole, narrow, shallow = (
        zoo.cost(spec, 16) for spec in (full, zoo.narrow(full, 0.5), zoo.shallow(full, (1, 1, 1, 1)))
    )
    for field in ("flops", "activation_bytes", "parameter_bytes", "parameters"):
        assert getattr(narrow, field) < getattr(whole, field) > getattr(shallow, field)
