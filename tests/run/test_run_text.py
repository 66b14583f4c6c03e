"""Runs on text by user: every method by width trains a small transformer to predict the next word."""

import json

import pytest
import torch
from tiny_runs import scores, tiny

from potluck.core import Model, Newborn, Reply, SettingsError, Tier, stream
from potluck.methods import FedRolex
from potluck.models import ModelZoo, make_spec
from potluck.parts import WHOLE, OverlapMean
from potluck.report import write_report
from potluck.run import assemble, run

METHODS = [
    {"name": "fedrolex"},
    {"name": "heterofl"},
    {"name": "feddropout"},
    {"name": "fjord", "widths": [0.25, 0.5, 1.0]},
    {"name": "alllarge", "label_mask": True, "weighting": "uniform"},
    {"name": "allsmall", "label_mask": True, "weighting": "uniform"},
]


@pytest.fixture
def spoken(tmp_path):
    """Six users who say the same rhyme, some more often, and one who says a single word."""
    rhyme = ["one two three four five", "once I caught a fish alive"]
    users = [{"user": f"u{number}", "lines": rhyme * (number + 2)} for number in range(6)]
    path = tmp_path / "rhyme.jsonl"
    path.write_text("".join(f"{json.dumps(user)}\n" for user in [*users, {"user": "brief", "text": "fish"}]))
    return path


def rhyming(path, method, **changes):
    base = {
        "data": {"name": "text", "path": str(path), "partition": "user", "length": 6, "test": 0.2, "clients": 7},
        "model": {"name": "transformer", "depth": 1, "hidden": 16, "ffn": 16, "heads": 2, "dropout": 0.1},
        # So few clients are small that the large ones' engines score with a small network before they train with it.
        "tier": [{"name": "s", "width": 0.25, "share": 0.3}, {"name": "m", "width": 0.5, "share": 0.3}, {"name": "l"}],
        "local": {"lr": 0.1, "momentum": 0.9, "batch": 4, "clip": 1.0},
        "score": {"every": 1, "clients": 3, "local": True},
    }
    return tiny(method=method, **{**base, **changes})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_pool_and_serial_give_the_same_bits_and_scores_of_tokens(method, spoken, tmp_path):
    one = run(rhyming(spoken, method), tmp_path / "serial")
    other = run(rhyming(spoken, method, run={"engine": "pool", "workers": 2}), tmp_path / "pool")
    assert one.weights_sha256 == other.weights_sha256
    assert scores(tmp_path / "serial") == scores(tmp_path / "pool")
    last = scores(tmp_path / "serial")[-1]["global"]["test"]
    assert set(last) == {"accuracy", "loss", "perplexity", "count"}
    assert 0 < last["loss"] < 10
    assert one.accuracy == last["accuracy"]


def test_a_rhyme_is_learned_reported_and_stopped_at(spoken, tmp_path):
    wanted = {"engine": "serial", "stop_at": {"accuracy": 0.6}}
    found = run(rhyming(spoken, {"name": "fedrolex"}, rounds=60, run=wanted), tmp_path / "run")
    assert 0 < found.rounds < 60
    last = scores(tmp_path / "run")[-1]
    assert last["global"]["validation"]["accuracy"] >= 0.6
    assert last["local"]["count"] > 0  # clients with words of their own in the test set
    assert "Test accuracy" in write_report([tmp_path / "run"], tmp_path / "report.html").read_text("utf-8")


def test_text_is_learned_from_users_mixed_up_too(spoken, tmp_path):
    mixed = {"name": "text", "path": str(spoken), "length": 6, "clients": 5}
    run(rhyming(spoken, {"name": "fedrolex"}, data=mixed), tmp_path / "run")
    assert scores(tmp_path / "run")[-1]["global"]["test"]["count"] > 0


@pytest.mark.parametrize(
    ("model", "partition", "said"),
    [
        ("mlp", "user", "has a label for each token, and the model 'mlp' gives no scores for each"),
        ("bert", "user", "the model 'bert' gives no scores for each"),
        ("transformer", "labels", "data.partition = 'labels' needs one class per row"),
    ],
)
def test_what_text_cannot_go_with_is_refused_before_round_0(model, partition, said, spoken):
    own = {} if model == "mlp" else {"heads": 2}
    text = {"name": "text", "path": str(spoken), "partition": partition, "length": 6}
    wanted = tiny(data=text, model={"name": model, **own}, tier=[{"name": "all"}], method={"name": "fedavg"})
    with pytest.raises(SettingsError) as caught:
        assemble(wanted)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lm2_a_clients_tokens_alone_count_in_the_embedding_and_the_output_layer():
    """Five tokens: one client owns 2 and 3 and sends ones, the other owns 3 and 4 and sends threes."""
    full = make_spec("transformer", input=(4,), classes=5, depth=1, hidden=2, ffn=2, heads=1)
    zoo = ModelZoo(full, [Tier("all", spec=full)])
    assert set(zoo.class_rows(full)) == {"stem.token.weight", "head.output.weight", "head.output.bias"}
    start = {name: torch.full(shape, 9.0) for name, (shape, _) in zoo.shapes(full).items()}
    mean = OverlapMean(start)
    for value, labels in ((1.0, [2, 3]), (3.0, [3, 4])):
        arrays = {name: torch.full_like(tensor, value) for name, tensor in start.items()}
        reply = Reply(models={"model": Model(full, arrays)}, metrics={"labels": labels})
        mean.add(arrays, WHOLE, FedRolex().weigh(reply, zoo))
    found = mean.value()
    assert found["stem.token.weight"].tolist() == [[9, 9], [9, 9], [1, 1], [2, 2], [3, 3]]
    assert found["head.output.weight"].tolist() == [[9, 9], [9, 9], [1, 1], [2, 2], [3, 3]]
    assert found["head.output.bias"].tolist() == [9, 9, 1, 2, 3]
    others = found.keys() - set(zoo.class_rows(full))
    assert "stem.position.weight" in others
    assert all(bool((found[name] == 2).all()) for name in others)


def test_padding_changes_nothing_at_the_tokens_before_it():
    spec = make_spec("transformer", input=(4,), classes=5, depth=1, hidden=4, ffn=4, heads=2)
    net = ModelZoo(spec).build(Newborn(spec), stream(0)).eval()
    with torch.inference_mode():
        alone, padded = net(torch.tensor([[2, 3]])), net(torch.tensor([[2, 3, 0, 0]]))
    assert torch.allclose(alone, padded[:, :2], atol=1e-6)
