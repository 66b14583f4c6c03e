"""FedSkel: skeletons, gradients that stay inside them, and what is exchanged, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data
from masked_rounds import OFF, ON, TRAINING, bits, memory, people, played, zoo

from potluck.core import Local, Model, Newborn, Reply, Task, on_client, stream
from potluck.learn import Classify, CrossEntropy
from potluck.methods import FedSkel
from potluck.methods.bases.unit_importance import top_units
from potluck.methods.fedskel import SkeletonLoss
from potluck.models import ModelZoo, make_spec


def test_the_skeleton_is_the_most_active_half():
    assert top_units(torch.tensor([0.1, 0.9, 0.5, 0.3]), 2).tolist() == [OFF, ON, ON, OFF]


def test_only_skeletons_are_averaged():
    """Filters, old [9,9,9,9]; {1,2} send [1,3], {2,3} send [5,7]. In a round, through the skeletons of a network."""
    networks = zoo(hidden=4, depth=1)

    @dataclass(frozen=True)
    class Told(FedSkel):
        @on_client
        def train(self, task, device):
            sent = task.models["model"]
            values = device.data.column("x")[0]
            arrays = {n: values.clone() if n == "stem.linear.bias" else t for n, t in sent.arrays.items()}
            return Reply({"model": Model(sent.spec, arrays)})

    clients = {"c0": ("all", data(4, (1.0, 3.0))), "c1": ("all", data(4, (5.0, 7.0)))}
    play = Play(Told(), networks, clients)
    state = play.init()
    nines = {n: torch.full_like(t, 9.0) for n, t in state.model.arrays.items()}
    for client, units in (("c0", bits(0, 1, 1, 0)), ("c1", bits(0, 0, 1, 1))):
        play.memories[client] = (
            0,
            {"held": {"hidden0": units, "hidden1": units}, "model": Model(networks.full, nines)},
        )
    new = play.round(replace(state, model=Model(networks.full, nines)), 1)
    assert new.model.arrays["stem.linear.bias"].tolist() == [9, 1, 4, 7]


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_outside_the_skeleton_the_forward_pass_is_whole_and_no_gradient_enters(family):
    networks = zoo(hidden=4, depth=1, family=family)
    net = networks.build(Newborn(networks.full), stream(0, "net"))
    layer = "linear" if family == "mlp" else "conv"
    live = bits(0, 1, 1, 0)
    shape = (4,) if family == "mlp" else (4, 1, 1)
    loss = SkeletonLoss(CrossEntropy(), {f"body.0.{layer}": live.reshape(shape)})
    x = torch.randn(6, *((2,) if family == "mlp" else (1, 4, 4)), generator=stream(0, "x"))
    batch = {"x": x, "y": torch.arange(6) % 2}
    assert torch.equal(loss(net, batch), CrossEntropy()(net, batch))
    whole = dict(
        zip(
            dict(net.named_parameters()), torch.autograd.grad(CrossEntropy()(net, batch), net.parameters()), strict=True
        )
    )
    ours = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss(net, batch), net.parameters()), strict=True))
    name = f"body.0.{layer}.weight"
    assert (ours[name][~live] == 0).all()
    assert torch.equal(ours[name][live], whole[name][live])
    assert torch.equal(ours["head.weight"], whole["head.weight"])
    assert not torch.equal(ours[f"stem.{layer}.weight"], whole[f"stem.{layer}.weight"])
    assert not net.body[0]._modules[layer]._forward_hooks


def test_in_a_skeletons_round_gradients_reach_neither_layers_nor_norms_outside_it():
    networks = ModelZoo(make_spec("cnn", input=(1, 4, 4), classes=2, width=2, depth=1), ())
    device = Skeletons(networks, {"held": {"stem": bits(1, 0), "block0": bits(0, 1)}}, Classify(2))
    task = Task("train", "c0", models={"model": Newborn(networks.full)}, config={"whole": False})
    loss, (edit,) = FedSkel().loss(task, device), FedSkel().edits(task, device)
    assert {path: live.tolist() for path, live in loss.live.items()} == {
        "stem.conv": [[[True]], [[False]]],
        "body.0.conv": [[[False]], [[True]]],
    }
    assert edit.masks["stem.norm.weight"].tolist() == edit.masks["stem.norm.bias"].tolist() == [True, False]
    assert edit.masks["body.0.conv.weight"].flatten().tolist() == [False, True]
    assert not [name for name in edit.masks if name.startswith("head")]
    whole = replace(task, config={"whole": True})
    assert (FedSkel().loss(whole, device), FedSkel().edits(whole, device)) == (CrossEntropy(), ())


@dataclass
class Skeletons:
    zoo: ModelZoo
    memory: dict
    problem: Classify


def test_activity_is_the_sum_of_a_layers_absolute_outputs():
    networks = zoo(hidden=3, depth=1)
    play, state, _ = played(FedSkel(Local(steps=0), cut=0.6), 1, networks, people(1))
    activity = networks.build(state.model).stem.linear(play.clients["c0"][1].all()["x"]).abs().sum(0)
    assert memory(play, "c0")["held"]["hidden0"].tolist() == top_units(activity, 2).tolist()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_between_whole_exchanges_a_client_sends_its_skeleton_and_keeps_the_rest(decay):
    networks = zoo(hidden=8, depth=1)
    method = FedSkel(replace(TRAINING, weight_decay=decay), period=3)
    play = Play(method, networks, people(2))
    state, costs, models = play.init(), [], []
    for index in range(4):
        state = play.round(state, index)
        assert all(entry.verdict == "accepted" for entry in play.session.entries)
        costs.append({(e.task.verb, e.task.to): (e.cost.bytes_down, e.cost.bytes_up) for e in play.session.entries})
        models.append(memory(play, "c0"))
    whole, skeleton = 4 * (24 + 72 + 18), 4 * (12 + 36 + 18)
    assert [cost["train", "c0"] for cost in costs] == [
        (whole, whole),
        (skeleton, skeleton),
        (skeleton, skeleton),
        (whole, whole),
    ]
    held = models[0]["held"]["hidden1"]
    before, after = (mine["model"].arrays["body.0.linear.weight"] for mine in models[:2])
    assert int(held.sum()) == 4
    assert torch.equal(after[~held], before[~held])
    assert (after[held] != before[held]).any()


def test_a_newcomer_exchanges_everything():
    play = Play(FedSkel(TRAINING), zoo(hidden=8), people(2))
    state = play.round(play.init(), 0, only={"c0"})
    play.round(state, 1)
    costs = {e.task.to: e.cost.bytes_up for e in play.session.entries if e.task.verb == "train"}
    assert costs["c0"] < costs["c1"] == 4 * (24 + 72 + 18)
