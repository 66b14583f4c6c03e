"""Networks of tokens: against torch's own layers, names from elsewhere, padding, the future."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from potluck.core import Newborn, stream
from potluck.models import ModelZoo, make_spec
from potluck.models.bert import tensor_name

TINY = {"hidden": 12, "heads": 3, "ffn": 10, "input": (6,), "dropout": 0}
SPECS = {
    "transformer": make_spec("transformer", depth=2, classes=11, **TINY),
    "bert": make_spec("bert", vocab=11, classes=4, **TINY),
    "tags": make_spec("bert", vocab=11, classes=4, output="tokens", **TINY),
    "first": make_spec("bert", vocab=11, classes=4, output="first", **TINY),
    "words": make_spec("bert", vocab=11, classes=4, count="words", pad=1, **TINY),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def random_net(spec):
    """A network in double precision whose weights are all random."""
    net = ModelZoo(spec).build(Newborn(spec), stream(0, "test")).double()
    rng = stream(1)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=rng) / 2)
    return net


def tokens(rows=4, length=6):
    return torch.randint(2, 11, (rows, length), generator=stream(2))


def parameters(spec):
    shapes = ModelZoo(spec).shapes(spec)
    return sum(math.prod(shape) for shape, _ in shapes.values())


def test_encoders_have_the_published_numbers_of_parameters():
    # Of the encoders with their poolers; a head for two classes has twice the width and two more.
    wanted = {"bert": 4_385_920, "minilm-l6": 22_713_216, "bert-base": 109_482_240, "roberta-base": 124_645_632}
    specs = {name: make_spec(name, input=(128,), classes=2) for name in wanted}
    assert {name: parameters(spec) - 2 * spec.sizes["stream"] - 2 for name, spec in specs.items()} == wanted


def test_the_transformer_of_the_fedrolex_paper_has_the_parameters_one_counts_by_hand():
    # 10,000 tokens and 20 positions of 128; a norm; per layer 4 x (128 x 128 + 128), 128 x 2048 twice with biases, two
    # norms; a hidden layer, a norm and 10,000 scores.
    spec = make_spec("transformer", input=(20,), classes=10_000)
    layer = 4 * 128 * 129 + 2 * 128 * 2048 + 2048 + 128 + 4 * 128
    assert parameters(spec) == 10_020 * 128 + 256 + 3 * layer + 128 * 129 + 256 + 10_000 * 129


@every_spec
def test_scores_are_head_of_body_of_stem(spec):
    net, ids = random_net(spec), tokens()
    wanted = {"transformer": (4, 6, 11), "tags": (4, 6, 4)}.get(next(k for k, v in SPECS.items() if v is spec), (4, 4))
    assert net(ids).shape == wanted
    assert torch.equal(net(ids), net.head(net.body(net.stem(ids))))
    assert net(ids[:, :3]).shape[:1] == (4,)
    assert net(ids[:0]).shape == (0, *wanted[1:])


@every_spec
@pytest.mark.parametrize("norm", ["layer", "none"])
def test_one_step_of_training_lowers_the_loss(spec, norm):
    spec = make_spec(spec.family, depth=spec.depth, **{**spec.options, "hidden": 12, "ffn": 10, "norm": norm})
    net = ModelZoo(spec).build(Newborn(spec), stream(3)).double()
    ids = tokens()

    def loss():
        found = net(ids)
        return cross_entropy(found.flatten(0, -2), torch.arange(found.flatten(0, -2).shape[0]) % 4)

    before = loss()
    before.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in net.parameters())
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.001 * weight.grad
    straight = 0.001 * sum(weight.grad.square().sum().item() for weight in net.parameters())
    assert before.item() - loss().item() == pytest.approx(straight, rel=0.2)


@pytest.mark.parametrize("name", ["transformer", "bert"])
@pytest.mark.parametrize("norm", ["layer", "none"])
def test_a_shallow_network_s_names_and_shapes_are_among_a_deep_one_s(name, norm):
    few, many = (
        ModelZoo(spec).shapes(spec)
        for spec in (make_spec(name, depth=depth, norm=norm, classes=11, **TINY) for depth in (1, 3))
    )
    assert few.items() < many.items()


@pytest.mark.parametrize("width", [1.0, 0.5, 0.3, 0.01])
@every_spec
def test_every_width_gives_finite_scores(spec, width):
    zoo = ModelZoo(spec)
    narrow = zoo.narrow(spec, width)
    net = zoo.build(Newborn(narrow), stream(4))
    assert net(tokens()).isfinite().all()
    assert net(torch.full((2, 6), spec.options.get("pad", 0))).isfinite().all()


def reference(stream, heads, ffn, activation, weights):
    """Torch's own layer with the weights of one of ours, which are given in the order of its names."""
    layer = nn.TransformerEncoderLayer(
        stream, heads, ffn, dropout=0.0, activation=activation, batch_first=True, dtype=torch.float64
    )
    query, key, value, *others = weights
    joined = [torch.cat([part[side] for part in (query, key, value)]) for side in ("weight", "bias")]
    tensors = [*joined, *(part[side] for part in others for side in ("weight", "bias"))]
    layer.load_state_dict(dict(zip(layer.state_dict(), tensors, strict=True)))
    return layer


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_causal_layer_is_torch_s(activation):
    net = random_net(make_spec("transformer", depth=1, classes=11, activation=activation, **TINY))
    ours, own = net.body[0], net.body[0].attention
    parts = (own.query, own.key, own.value, own.output, ours.first, ours.second, ours.norm1, ours.norm2)
    theirs = reference(12, 3, 10, activation, [part.state_dict() for part in parts])
    x = torch.randn(2, 6, 12, generator=stream(5), dtype=torch.float64)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, src_mask=future), rtol=1e-9, atol=1e-9)


def test_an_encoder_s_layer_is_torch_s_with_the_padding_masked():
    net = random_net(make_spec("bert", depth=1, vocab=11, classes=4, eps=1e-5, **TINY))
    ours, own = net.body[0], net.body[0].attention
    inner = (own.self.query, own.self.key, own.self.value, own.output.dense)
    parts = (*inner, ours.intermediate.dense, ours.output.dense, own.output.LayerNorm, ours.output.LayerNorm)
    theirs = reference(12, 3, 10, "gelu", [part.state_dict() for part in parts])
    ids = torch.tensor([[5, 3, 0, 0, 2, 0], [1, 2, 3, 4, 5, 6]])
    x = net.stem(ids)
    expected = theirs(x, src_key_padding_mask=ids == 0)
    torch.testing.assert_close(net.body(x), expected, rtol=1e-9, atol=1e-9)


def test_the_decoder_and_the_stem_are_what_their_parts_compute():
    net, ids = random_net(SPECS["transformer"]), tokens()
    x = net.stem(ids)
    vectors = net.stem.token.weight[ids] + net.stem.position.weight[:6]
    torch.testing.assert_close(x, net.stem.norm(vectors))
    torch.testing.assert_close(net.head(x), net.head.output(net.head.norm(torch.relu(net.head.hidden(x)))))


def test_the_future_does_not_change_the_scores():
    net, ids = random_net(SPECS["transformer"]), tokens()
    other = ids.clone()
    other[:, 4:] = 0
    torch.testing.assert_close(net(ids)[:, :4], net(other)[:, :4])
    assert not torch.allclose(net(ids)[:, 4:], net(other)[:, 4:])


@pytest.mark.parametrize("name", ["bert", "tags", "first"])
def test_padding_does_not_change_the_scores_of_what_stands_before_it(name):
    net, ids = random_net(SPECS[name]), tokens(length=4)
    padded = torch.cat([ids, torch.zeros(4, 2, dtype=torch.long)], 1)
    short, long = net(ids), net(padded)
    torch.testing.assert_close(short, long[:, :4] if name == "tags" else long)
    assert not torch.allclose(short, net(torch.cat([ids, torch.ones(4, 2, dtype=torch.long)], 1))[:, :4])


def test_words_are_counted_from_behind_the_padding_s_position():
    net = random_net(SPECS["words"])
    seen = net.stem(torch.tensor([[1, 5, 1, 7, 8, 1]]))
    table = net.stem.position_embeddings.weight + net.stem.token_type_embeddings.weight[0]
    words = net.stem.word_embeddings.weight
    assert seen[0, [0, 2, 5]].count_nonzero() == 0
    torch.testing.assert_close(seen[0, [1, 3, 4]], net.stem.LayerNorm(words[[5, 7, 8]] + table[[2, 3, 4]]))


def test_the_classifier_reads_the_pooler_or_the_first_token():
    net, x = random_net(SPECS["bert"]), torch.randn(2, 6, 12, generator=stream(6), dtype=torch.float64)
    pooled = torch.tanh(net.head.pooler.dense(x[:, 0]))
    torch.testing.assert_close(net.head(x), net.head.classifier(pooled))
    net = random_net(SPECS["first"])
    torch.testing.assert_close(net.head(x), net.head.classifier(x[:, 0]))


HEARD = {
    "transformer": ("stem.token", "stem.position", ".attention.", ".first.", ".second.", ".hidden."),
    "bert": ("embeddings.", "query.", "key.", "value.", "dense."),
}


@pytest.mark.parametrize("name", HEARD)
def test_the_scaler_divides_embeddings_projections_and_hidden_layers_but_not_the_last(name):
    zoo = ModelZoo(SPECS[name])
    plain, scaled = random_net(SPECS[name]), random_net(zoo.scaled(SPECS[name], 0.5))
    ids = tokens()
    assert torch.equal(plain(ids), scaled.eval()(ids))
    with torch.no_grad():
        for tensor, weight in plain.named_parameters():
            if any(part in tensor for part in HEARD[name]):
                weight *= 2
    torch.testing.assert_close(plain(ids), scaled.train()(ids))


BY_GROUP = {
    "stream": ("embeddings.", "output.dense."),
    "layer0.qk": ("body.0.attention.self.query.", "body.0.attention.self.key."),
    "layer1.v": ("body.1.attention.self.value.",),
    "layer1.ffn": ("body.1.intermediate.dense.",),
    "pooled": ("pooler.",),
}


@pytest.mark.parametrize("group", BY_GROUP)
def test_a_scaler_of_one_group_divides_the_layers_with_these_outputs(group):
    spec = SPECS["bert"]
    plain, scaled = random_net(spec), random_net(ModelZoo(spec).scaled(spec, {group: 0.5}))
    ids = tokens()
    with torch.no_grad():
        for tensor, weight in plain.named_parameters():
            if any(part in tensor for part in BY_GROUP[group]):
                weight *= 2
    torch.testing.assert_close(plain.train()(ids), scaled.train()(ids))


def test_dropout_is_active_in_training_alone():
    spec = make_spec("transformer", classes=11, **{**TINY, "dropout": 0.5})
    net, ids = random_net(spec), tokens()
    assert torch.equal(net.eval()(ids), net(ids))
    assert not torch.equal(net.train()(ids), net(ids))


def test_names_are_hugging_face_s_but_for_their_beginnings():
    layer = [
        f"{place}.{kind}"
        for place in (
            "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
            "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
        )
        for kind in ("weight", "bias")
    ]  # fmt: skip
    tables = [f"embeddings.{table}_embeddings.weight" for table in ("word", "position", "token_type")]
    theirs = [
        *tables, "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias",
        *(f"encoder.layer.{index}.{name}" for index in range(2) for name in layer),
        "pooler.dense.weight", "pooler.dense.bias",
    ]  # fmt: skip
    heads = ["classifier.weight", "classifier.bias"]
    shapes = ModelZoo(SPECS["bert"]).shapes(SPECS["bert"])
    assert [tensor_name(f"bert.{name}") for name in theirs] + [tensor_name(name) for name in heads] == list(shapes)
    assert [tensor_name(name) for name in theirs + heads] == list(shapes)
    assert tensor_name("roberta.encoder.layer.11.output.dense.bias") == "body.11.output.dense.bias"
    assert tensor_name("classifier.out_proj.weight") == "head.classifier.weight"
    assert tensor_name("classifier.dense.weight") == "head.pooler.dense.weight"
    assert tensor_name("cls.predictions.bias") == "cls.predictions.bias"


def test_a_roberta_can_be_narrow_in_its_stream_and_heads_and_keep_its_feed_forward_units():
    spec = make_spec("roberta-base", input=(128,), classes=2)
    zoo = ModelZoo(spec)
    narrow = zoo.narrow(spec, {group: 456 / 768 for group in spec.sizes if not group.endswith(".ffn")})
    assert (narrow.sizes["stream"], narrow.sizes["layer3.qk"], narrow.sizes["layer3.ffn"]) == (456, 38, 3072)
    shapes = {name: shape for name, (shape, _) in zoo.shapes(narrow).items()}
    assert shapes["stem.word_embeddings.weight"] == (50265, 456)
    assert shapes["body.0.attention.self.value.weight"] == (456, 456)
    assert shapes["body.11.intermediate.dense.weight"] == (3072, 456)
