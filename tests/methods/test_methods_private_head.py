"""Private heads: what stays in a client's memory, what crosses the wire, and whose labels a head knows."""

import json
import random

import pytest
import torch
from made_round import Play, data, zoo
from tiny_runs import scores, tiny

from potluck.core import Client, InputError, Local, SettingsError, Task, payload, size, unpack
from potluck.ledger import RunFolder
from potluck.methods import AllLarge, InclusiveFL
from potluck.methods.bases.private_head import NEVER
from potluck.models import load
from potluck.parts import Replace
from potluck.run import assemble, experiment, export, resume, run

LOCAL = Local(lr=0.5, epochs=2, batch=2)


def playing(method):
    """Two shallow clients and a deep one with data of their own."""
    clients = {"a": ("d2", data(4, (1.0, 2.0))), "b": ("d2", data(4, (-3.0, 1.0))), "c": ("d3", data(4, (0.5, 0.5)))}
    return Play(method, zoo(2, 3), clients)


def inclusive(**settings):
    return InclusiveFL(local=LOCAL, server=Replace(), private="head", **settings)


def test_heads_of_two_clients_of_a_tier_differ_and_neither_is_sent():
    play = playing(inclusive())
    state = play.round(play.init())
    heads = {id: memory["head"] for id, (_, memory) in play.memories.items()}
    assert heads.keys() == {"a", "b", "c"}
    assert heads["a"].keys() == heads["b"].keys() == {"head.weight", "head.bias"}
    assert not heads["a"]["head.weight"].equal(heads["b"]["head.weight"])
    assert state.model.arrays
    assert not [name for name in state.model.arrays if name.startswith("head.")]
    costs = {entry.task.to: entry.cost for entry in play.session.entries}
    for client in play.everyone:
        shapes = play.zoo.shapes(client.tier.spec)
        body = sum(4 * torch.Size(shape).numel() for name, (shape, _) in shapes.items() if name[:5] != "head.")
        assert costs[client.id].bytes_up == costs[client.id].bytes_down == body
        assert body + size(heads[client.id]) == sum(4 * torch.Size(shape).numel() for shape, _ in shapes.values())


def test_a_client_goes_on_from_the_head_it_has():
    method = inclusive()
    play = playing(method)
    state = play.round(play.init())
    before = play.memories["a"][1]["head"]["head.bias"]
    still = Play(
        InclusiveFL(local=Local(lr=0.0, epochs=1, batch=2), server=Replace(), private="head"), play.zoo, play.clients
    )
    still.memories |= play.memories
    still.round(state, 1)
    assert still.memories["a"][1]["head"]["head.bias"].equal(before)
    play.round(state, 1)
    assert not play.memories["a"][1]["head"]["head.bias"].equal(before)


def test_a_client_is_scored_with_its_own_head_and_the_server_with_none():
    play = playing(inclusive())
    state = play.round(play.init())
    model = play.served(state, "a")
    assert payload(Task("score", "a", models={"model": model})) == size(model.arrays)
    assert not [name for name in model.arrays if name.startswith("head.")]
    whole = play.method.complete(model, play.memories["a"][1], (0, 1), play.zoo)
    assert whole.arrays["head.weight"].equal(play.memories["a"][1]["head"]["head.weight"])
    assert whole.arrays.keys() == play.zoo.shapes(model.spec).keys()


def test_a_head_has_rows_for_its_client_s_labels_and_never_predicts_another():
    method, stage = inclusive(), zoo(2)
    spec = stage.tiers[0].spec
    head = {"head.weight": torch.tensor([[2.0]]), "head.bias": torch.tensor([0.5])}
    model = method.serve(method.init(stage, torch.Generator()), Client("a", stage.tiers[0]), stage)
    whole = method.complete(model, {"head": head}, (1,), stage)
    assert whole.arrays["head.weight"].tolist() == [[0.0], [2.0]]
    assert whole.arrays["head.bias"].tolist() == [NEVER, 0.5]
    net = stage.build(whole)
    logits = net(torch.ones(1, 2))
    assert logits.softmax(1).tolist() == [[0.0, 1.0]]
    torch.nn.functional.cross_entropy(logits, torch.tensor([1])).backward()
    assert all(not bool(weight.grad[0].any()) for weight in net.head.parameters())
    assert spec.options["classes"] == 2


def test_what_cannot_go_with_private_heads_is_refused():
    with pytest.raises(ValueError, match='private = "head" needs profile = "paper"'):
        InclusiveFL(private="head", profile="code")
    with pytest.raises(SettingsError, match=r"excludes method\.label_mask = true.* Set method\.label_mask = false"):
        AllLarge(private="head", label_mask=True).check(zoo(2))
    with pytest.raises(SettingsError, match=r"with static batch norm .*; set method\.bn_eval = "):
        AllLarge(private="head").check(zoo(2, norm="static"))
    AllLarge(private="head", bn_eval="batch").check(zoo(2, norm="static"))


OTHER = ["the", "day", "is", "quite", "so"]


def corpus(path, kinds, count):
    """Sentences with an entity each, of these kinds, each known by its first word."""
    dice, lines = random.Random(count), []
    for place in range(count):
        kind = kinds[place % len(kinds)]
        before = dice.choices(OTHER, k=2)
        lines.append({"tokens": [*before, f"a{kind}", "pill"], "tags": ["O", "O", f"B-{kind}", f"I-{kind}"]})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.fixture
def hospitals(tmp_path):
    """Three corpora with one, two and three kinds of entity."""
    home = tmp_path / "hospitals"
    home.mkdir()
    for name, kinds in (("one", "x"), ("two", "xy"), ("three", "xyz")):
        corpus(home / f"{name}.jsonl", kinds, 60)
    return home


def settings(home, rounds=2, **method):
    tiers = [{"name": name, "depth": depth} for name, depth in (("s", 1), ("m", 2), ("l", 3))]
    return tiny(
        rounds=rounds,
        cohort=3,
        data={"name": "tags", "path": str(home), "partition": "user", "length": 8, "test": 0.2, "client_test": 50},
        model={
            "name": "bert", "depth": 3, "hidden": 16, "ffn": 16, "heads": 2, "dropout": 0.0, "output": "tokens",
        },
        tier=tiers,
        method={"name": "inclusivefl", "server": {"name": "replace"}, "private": "head", **method},
        local={"optimiser": "adam", "lr": 0.01, "batch": 16, "epochs": 2},
        score={"clients": 3},
    )  # fmt: skip


def remembered(folder):
    with RunFolder.open(folder) as opened:
        return {id: unpack(opened.memories.read(id)[1])["head"] for id in opened.memories.clients()}


def test_hospitals_have_heads_with_as_many_rows_as_they_have_labels(hospitals, tmp_path):
    found = run(settings(hospitals, rounds=12), tmp_path / "run")
    rows = sorted(len(head["head.classifier.bias"]) for head in remembered(tmp_path / "run").values())
    assert rows == [3, 5, 7]  # O, and B and I of each kind
    first, *_, last = scores(tmp_path / "run")
    assert first["clients"] is None  # nobody has a head before it has trained
    assert (last["global"], last["clients"]["count"]) == (None, 3)
    assert found.score == last["clients"]["mean"] > 0.9
    kinds = sorted(sorted(last["tiers"][tier]["own"]["per_entity"]) for tier in "sml")
    assert kinds == [["x"], ["x", "y"], ["x", "y", "z"]]


def test_heads_survive_a_stop_and_go_on_bit_for_bit(hospitals, tmp_path):
    whole = run(settings(hospitals, rounds=3), tmp_path / "whole")
    run(settings(hospitals, rounds=1), tmp_path / "run")
    early = remembered(tmp_path / "run")
    again = resume(tmp_path / "run", rounds=3)
    assert again.weights_sha256 == whole.weights_sha256
    late = remembered(tmp_path / "run")
    assert early.keys() == late.keys() == {"c0", "c1", "c2"}
    assert not early["c0"]["head.classifier.bias"].equal(late["c0"]["head.classifier.bias"])


def test_a_client_s_whole_model_can_be_exported_and_a_tier_s_cannot(hospitals, tmp_path):
    run(settings(hospitals), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model", client="c1")
    net = load(tmp_path / "model")
    labels = assemble(settings(hospitals)).context.datasets.shard("c1").labels
    silent = [label for label in range(7) if label not in labels]
    assert net.head.classifier.bias[silent].tolist() == [NEVER] * len(silent)
    with pytest.raises(InputError, match="no model for tier 's' on the server; try --client c0"):
        export(tmp_path / "run", tmp_path / "other", tier="s")


@pytest.mark.parametrize("name", ["alllarge", "allsmall", "exclusivefl"])
def test_the_bounds_may_have_private_heads_too(hospitals, tmp_path, name):
    plain = settings(hospitals).plain()
    found = run(experiment({**plain, "method": {"name": name, "private": "head"}}), tmp_path / "run")
    assert found.score is not None
    assert len(remembered(tmp_path / "run")) == (1 if name == "exclusivefl" else 3)
