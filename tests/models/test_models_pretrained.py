"""Encoders from a folder in Hugging Face's layout: sizes, weights, checksums, and what is refused."""

import json

import pytest
import safetensors.torch
import torch
from torch.nn import functional

from potluck.core import Client, Examples, InputError, Model, Newborn, SettingsError, Spec, Tier, pack, stream, unpack
from potluck.data import Source
from potluck.methods import AllSmall, InclusiveFL
from potluck.models import ModelZoo, load, make_spec, save, tier_spec
from potluck.run import experiment, resume, run

CONFIG = {
    "model_type": "bert", "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 10,
    "vocab_size": 11, "max_position_embeddings": 9, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "position_embedding_type": "absolute",
}  # fmt: skip
ROBERTA = {**CONFIG, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def theirs(config):
    """Weights under Hugging Face's names."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        **normed("embeddings.LayerNorm", hidden),
        **linear("pooler.dense", hidden, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{place}.attention.{name}", hidden, hidden)
        shapes |= linear(f"{place}.intermediate.dense", hidden, inner) | linear(f"{place}.output.dense", inner, hidden)
        shapes |= normed(f"{place}.attention.output.LayerNorm", hidden) | normed(f"{place}.output.LayerNorm", hidden)
    rng = stream(7)
    found = {name: torch.randn(shape, generator=rng) / 2 for name, shape in shapes.items()}
    return found | {"embeddings.position_ids": torch.arange(9)[None]}


def linear(name, inside, outside):
    return {f"{name}.weight": (outside, inside), f"{name}.bias": (outside,)}


def normed(name, units):
    return {f"{name}.weight": (units,), f"{name}.bias": (units,)}


def written(folder, config=CONFIG, weights=None, prefix=""):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = theirs(config) if weights is None else weights
    safetensors.torch.save_file(
        {prefix + name: tensor for name, tensor in arrays.items()}, folder / "model.safetensors"
    )
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "encoder")


def made(folder, **options):
    return make_spec("bert", input=(6,), classes=2, pretrained=folder, **options)


def fresh(spec, seed=0):
    return ModelZoo(spec).fresh(spec, stream(seed, "init")).arrays


def test_sizes_come_from_the_folder(folder, tmp_path):
    spec = made(folder)
    assert spec.depth == 3
    assert (spec.sizes["stream"], spec.sizes["layer2.ffn"], spec.sizes["layer2.qk"]) == (12, 10, 4)
    plain = make_spec(
        "bert", input=(6,), classes=2, depth=3, hidden=12, heads=3, ffn=10, vocab=11, positions=9, dropout=0.0
    )
    assert {**plain.options, "pretrained": spec.options["pretrained"]} == spec.options
    assert "pretrained" not in plain.options
    words = made(written(tmp_path / "roberta", ROBERTA))
    assert {name: words.options[name] for name in ("pad", "types", "eps", "count")} == {
        "pad": 1, "types": 1, "eps": 1e-5, "count": "words",
    }  # fmt: skip
    assert made(folder, dropout=0.3).options["dropout"] == 0.3


def test_weights_are_the_folder_s_and_the_head_is_new(folder):
    arrays, given = fresh(made(folder)), theirs(CONFIG)
    assert arrays["stem.word_embeddings.weight"].equal(given["embeddings.word_embeddings.weight"])
    assert arrays["body.2.attention.self.key.bias"].equal(given["encoder.layer.2.attention.self.key.bias"])
    same = [name for name in given if name.startswith(("embeddings", "encoder")) and "position_ids" not in name]
    assert len(same) == sum(not name.startswith("head.") for name in arrays) == 5 + 3 * 16
    assert not arrays["head.pooler.dense.weight"].equal(given["pooler.dense.weight"])
    other = fresh(made(folder), seed=1)
    assert all(
        tensor.equal(other[name]) != name.startswith("head.") for name, tensor in arrays.items() if "bias" not in name
    )


@pytest.mark.parametrize("prefix", ["bert.", "roberta."])
def test_a_fine_tuned_model_s_names_are_known_too(folder, tmp_path, prefix):
    more = {**theirs(CONFIG), "classifier.weight": torch.ones(2, 12)}
    other = written(tmp_path / "tuned", weights=more, prefix=prefix)
    one, two = fresh(made(folder)), fresh(made(other))
    assert all(tensor.equal(two[name]) for name, tensor in one.items())


def test_halves_become_floats(tmp_path):
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in theirs(CONFIG).items()}
    arrays = fresh(made(written(tmp_path / "half", weights=half)))
    assert {tensor.dtype for tensor in arrays.values()} == {torch.float32}
    assert arrays["body.0.output.dense.bias"].equal(half["encoder.layer.0.output.dense.bias"].float())


def test_a_shallow_network_takes_the_bottom_layers(folder):
    full = made(folder)
    shallow = tier_spec(full, depth=2)
    assert shallow == made(folder, depth=2)
    few, many = fresh(shallow), fresh(full)
    assert {name for name in many if name not in few} == {name for name in many if name.startswith("body.2.")}
    assert all(tensor.equal(many[name]) for name, tensor in few.items() if not name.startswith("head."))


def by_hand(ids, config, weights):
    """BERT's hidden states of one sentence without padding, written out."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    hidden, heads, eps = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]

    def norm(x, name):
        return functional.layer_norm(x, (hidden,), w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    first = config["pad_token_id"] + 1 if config["model_type"] == "roberta" else 0
    places = w["embeddings.position_embeddings.weight"][first : first + len(ids)]
    x = w["embeddings.word_embeddings.weight"][ids] + places + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            dense(x, f"{at}.attention.self.{name}").view(len(ids), heads, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        seen = (q @ k.transpose(1, 2) / (hidden / heads) ** 0.5).softmax(-1) @ v
        seen = dense(seen.transpose(0, 1).flatten(1), f"{at}.attention.output.dense")
        x = norm(x + seen, f"{at}.attention.output.LayerNorm")
        inner = dense(functional.gelu(dense(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + inner, f"{at}.output.LayerNorm")
    return x


@pytest.mark.parametrize("config", [CONFIG, ROBERTA], ids=lambda config: config["model_type"])
def test_a_padded_batch_gives_what_bert_gives_for_each_sentence_alone(config, tmp_path):
    spec = made(written(tmp_path / "encoder", config))
    net = ModelZoo(spec).build(Model(spec, fresh(spec))).double().eval()
    sentences = [[5, 3, 2, 9, 8, 7], [4, 10, 6], [2]]
    pad = config["pad_token_id"]
    ids = torch.tensor([sentence + [pad] * (6 - len(sentence)) for sentence in sentences])
    found = net.body(net.stem(ids))
    for row, sentence in enumerate(sentences):
        expected = by_hand(sentence, config, theirs(config))
        torch.testing.assert_close(found[row, : len(sentence)], expected, rtol=1e-9, atol=1e-9)


def test_a_spec_knows_which_weights_it_was_made_with(folder, tmp_path):
    changed = {**theirs(CONFIG), "embeddings.LayerNorm.bias": torch.zeros(12)}
    one = made(folder)
    assert one == made(folder)
    assert Spec.of(json.loads(json.dumps(one.plain()))) == one
    assert unpack(pack(Newborn(one))).spec == one
    written(tmp_path / "encoder", weights=changed)
    assert made(folder) != one
    with pytest.raises(InputError, match=r"model\.safetensors is not the file that this experiment was made with"):
        fresh(one, seed=2)


def test_a_network_that_is_sent_its_weights_needs_no_folder(folder, tmp_path):
    spec = made(folder)
    arrays = fresh(spec)
    save(tmp_path / "exported", Model(spec, arrays))
    (tmp_path / "encoder" / "model.safetensors").unlink()
    ids = torch.tensor([[5, 3, 0, 0, 0, 0]])
    net = ModelZoo(spec).build(Model(spec, arrays)).eval()
    assert net(ids).equal(load(tmp_path / "exported")(ids))
    assert ModelZoo(spec).build(Newborn(spec), stream(0, "blank")) is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2' is not one of those that can be read: bert, roberta"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'; only 'gelu' can be built here"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' can be built here"),
        ({"num_hidden_layers": 4}, "model.safetensors holds no tensor for 'body.3.attention.self.query.weight'"),
    ],
)
def test_other_encoders_are_refused(changes, said, tmp_path):
    place = written(tmp_path / "odd", {**CONFIG, **changes}, theirs(CONFIG))
    with pytest.raises(InputError) as refused:
        fresh(made(place))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hidden": 24}, "hidden = 24, but pretrained = '{folder}' has 12. Leave it out."),
        ({"count": "words"}, "count = 'words', but pretrained = '{folder}' has 'all'. Leave it out."),
        ({"depth": 4}, "depth = 4 is deeper than the 3 layers of pretrained = '{folder}'."),
    ],
)
def test_settings_at_odds_with_the_folder_are_refused(options, said, folder):
    with pytest.raises(SettingsError) as refused:
        made(folder, **options)
    assert str(refused.value) == said.format(folder=folder)


@pytest.mark.parametrize("odd", ["", "nowhere", 3, {"folder": "x"}])
def test_what_is_no_folder_is_refused(odd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, SettingsError), match="pretrained = "):
        made(odd)


def test_broken_folders_are_refused_with_one_line(folder, tmp_path):
    place = tmp_path / "encoder"
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    with pytest.raises(InputError) as refused:
        made(folder)
    assert str(refused.value) == (
        f"{place} holds no model.safetensors. pytorch_model.bin refused: pickle. Save the model again as safetensors."
    )
    (place / "model.safetensors").write_bytes(b"\x80\x04K\x00.")
    with pytest.raises(InputError, match="is not a safetensors file"):
        fresh(made(folder))
    (place / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not JSON\.$"):
        made(folder)
    (place / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="does not say hidden_size"):
        made(folder)
    (place / "config.json").unlink()
    with pytest.raises(InputError, match=r"holds no config\.json"):
        made(folder)


def test_a_narrow_network_cannot_start_from_wide_weights(folder):
    with pytest.raises(SettingsError, match="pretrained weights fit no layer of so narrow a network"):
        fresh(tier_spec(made(folder), width=0.5))


def test_every_tier_of_inclusivefl_starts_from_the_same_encoder(folder):
    full = made(folder)
    tiers = [Tier(str(depth), spec=tier_spec(full, depth=depth)) for depth in (1, 2, 3)]
    zoo, method = ModelZoo(full, tiers), InclusiveFL()
    method.check(zoo)
    state = method.init(zoo, stream(0, "init"))
    given = theirs(CONFIG)["encoder.layer.0.output.dense.weight"]
    served = [method.serve(state, Client("c", tier), zoo).arrays for tier in zoo.tiers]
    assert all(arrays["body.0.output.dense.weight"].equal(given) for arrays in served)
    assert len({arrays["head.classifier.weight"].sum().item() for arrays in served}) == 3
    small = AllSmall().init(zoo, stream(0, "init")).model
    assert small.spec.depth == 1
    assert small.arrays["body.0.output.dense.weight"].equal(given)


def sentences(rows=48):
    """Sentences whose first word says their class, half of them padded."""
    ids = torch.randint(1, 11, (rows, 6), generator=stream(3))
    ids[::2, 3:] = 0
    examples = Examples({"x": ids, "y": (ids[:, 0] > 5).long()})
    return Source("sentences", examples, examples, 2, (6,))


def learning(folder, rounds):
    return experiment(
        {
            "rounds": rounds, "cohort": 4, "data": {"clients": 6}, "model": {"name": "bert", "pretrained": folder},
            "tier": [{"name": "s", "depth": 1}, {"name": "m", "depth": 2}, {"name": "l"}],
            "method": {"name": "inclusivefl"}, "local": {"lr": 0.1, "batch": 4}, "run": {"engine": "wire"},
        }
    )  # fmt: skip


def test_a_run_resumes_from_the_same_weights_and_notices_others(folder, tmp_path):
    whole = run(learning(folder, 2), tmp_path / "whole", source=sentences())
    run(learning(folder, 1), tmp_path / "run", source=sentences())
    resumed = resume(tmp_path / "run", rounds=2, source=sentences())
    assert resumed.weights_sha256 == whole.weights_sha256
    written(tmp_path / "encoder", weights={**theirs(CONFIG), "embeddings.LayerNorm.bias": torch.zeros(12)})
    with pytest.raises(SettingsError, match="start a new run instead"):
        resume(tmp_path / "run", rounds=3, source=sentences())
