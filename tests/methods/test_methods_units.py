"""Hermes, TailorFL and FedSkel, which keep units, with the conformance numbers of METHODS.md."""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data
from masked_rounds import OFF, ON, TRAINING, bits, learning, memory, people, played, zoo
from torch import nn

from potluck.core import Local, Model, Reply, SettingsError, Task, Tier, digest, on_client, stream
from potluck.learn import Classify, CrossEntropy, fit
from potluck.methods import FedSkel, Hermes, TailorFL
from potluck.methods.frames.merits import jaccard, popular, swapped, taylor, top
from potluck.methods.frames.through import Shrink, Skeletal
from potluck.methods.tailorfl import inputs
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.parts import OverlapMean, Part, Place

# Hermes


def meeting(*held):
    """Clients that hold these entries of a tensor of three, with these values: what each has after they met."""
    mean = OverlapMean({"w": torch.zeros(3)})
    parts = [Part({"w": Place("w", (torch.tensor(at),))}) for at, _ in held]
    for (_, values), part in zip(held, parts, strict=True):
        mean.add({"w": torch.tensor(values)}, part)
    return [part.take(mean.value())["w"].tolist() for part in parts]


def test_he1_what_two_hold_is_averaged_and_what_one_holds_stays_its_own():
    assert meeting(([0, 1], [2.0, 4.0]), ([0, 2], [6.0, 8.0])) == [[4, 4], [4, 8]]


def test_he2_the_third_is_not_concerned():
    assert meeting(([0], [2.0]), ([1], [7.0]), ([0], [8.0])) == [[5], [7], [5]]


def test_he1_in_a_round_clients_with_different_units_meet_where_they_overlap():
    """Three hidden units; c0 holds 0 and 1 of the second layer, c1 holds 0 and 2. No training."""
    networks = zoo(hidden=3, depth=1)
    play = Play(Hermes(Local(steps=0), threshold=2.0), networks, people(2))
    play.round(play.init())
    for client, units, value in (("c0", bits(1, 1, 0), 2.0), ("c1", bits(1, 0, 1), 6.0)):
        spec = replace(networks.full, sizes={"hidden0": 3, "hidden1": 2})
        arrays = {name: torch.full(shape, value) for name, (shape, _) in networks.shapes(spec).items()}
        model = Model(spec, arrays)
        held = {"hidden0": bits(1, 1, 1), "hidden1": units}
        play.memories[client] = (0, {"model": model, "met": model, "held": held})
    play.round(play.init(), 1)
    one, two = (memory(play, client)["met"].arrays["body.0.linear.bias"].tolist() for client in ("c0", "c1"))
    assert (one, two) == ([4, 2], [4, 6])
    assert memory(play, "c0")["met"].arrays["stem.linear.bias"].tolist() == [4, 4, 4]


def test_hermes_shrinks_to_its_target_and_its_bytes_with_it():
    networks = zoo(hidden=10, depth=2)
    play, _, costs = played(Hermes(TRAINING, threshold=0.0), 6, networks)
    mine = memory(play, "c0")
    assert {group: int(units.sum()) for group, units in mine["held"].items()} == {
        "hidden0": 10,
        "hidden1": 5,
        "hidden2": 5,
    }
    assert dict(mine["model"].spec.sizes) == {"hidden0": 10, "hidden1": 5, "hidden2": 5}
    whole, narrow = 30 + 110 + 110 + 22, 30 + 55 + 30 + 12
    assert (costs[0]["train", "c0"], costs[0]["merge", "c0"]) == ((4 * whole, 4 * whole), (4 * whole, 0))
    assert (costs[-1]["train", "c0"], costs[-1]["merge", "c0"]) == ((0, 4 * narrow), (4 * narrow, 0))
    assert costs[-1]["show", "c0"] == (0, 6)


def test_hermes_removes_the_units_with_the_smallest_weights():
    networks = zoo(hidden=2, depth=1)
    play, state, _ = played(Hermes(Local(steps=0), threshold=0.0, keep=0.5), 1, networks)
    model = memory(play, "c0")["met"]
    body = model.arrays["body.0.linear.weight"]
    play.round(state, 1)
    kept = memory(play, "c0")["held"]["hidden1"]
    assert kept.tolist() == top(body.abs().sum(1), 1).tolist()
    assert torch.equal(memory(play, "c0")["model"].arrays["body.0.linear.weight"], body[kept])
    assert torch.equal(memory(play, "c0")["model"].arrays["head.weight"], model.arrays["head.weight"][:, kept])


def test_a_tiers_width_is_hermes_target():
    clients = {"c0": ("half", learning(24, 0)), "c1": ("whole", learning(24, 1))}
    play, _, _ = played(Hermes(TRAINING, threshold=0.0, prune=0.9), 2, zoo(hidden=4, half=0.5, whole=1.0), clients)
    held = [int(memory(play, client)["held"]["hidden1"].sum()) for client in ("c0", "c1")]
    assert held == [2, 4]


def test_the_penalty_pulls_whole_rows_and_leaves_zeros_alone():
    weights = {"w": torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "b": torch.ones(2)}
    pulled = Shrink(("w",), 0.5)({name: torch.zeros_like(w) for name, w in weights.items()}, weights)
    assert pulled["w"].tolist() == [[pytest.approx(0.3), pytest.approx(0.4)], [0, 0]]
    assert pulled["b"].tolist() == [0, 0]


# TailorFL


@dataclass(frozen=True)
class Up(TailorFL):
    """Training adds two to every weight of the head's, whatever the data."""

    @on_client
    def train(self, task, device):
        net = device.build(self.start(task, device))
        with torch.no_grad():
            net.head.weight += float(device.data.column("x")[0, 0])
        return self.report(task, device, net, device.fit(net, device.data, Local(steps=0)))


def test_ta1_weights_are_louder_while_their_inputs_are_fewer():
    """Half of the head's input is there: 2 comes as 4, trained to 6, sent as 3; with another client's 5 it is 4."""
    networks = zoo(hidden=2, depth=1, half=0.5, whole=1.0)
    clients = {"c0": ("half", data(4, (2.0, 1.0))), "c1": ("whole", data(4, (3.0, 1.0)))}
    play = Play(Up(), networks, clients)
    state = play.init()
    state = replace(
        state, model=Model(state.model.spec, {n: torch.full_like(t, 2.0) for n, t in state.model.arrays.items()})
    )
    new = play.round(state)
    kept = memory(play, "c0")["held"]["hidden0"]
    assert memory(play, "c0")["model"].arrays["head.weight"].tolist() == [[6.0], [6.0]]
    assert new.model.arrays["head.weight"][:, kept].tolist() == [[4.0], [4.0]]
    assert new.model.arrays["head.weight"][:, ~kept].tolist() == [[5.0], [5.0]]


def test_ta2_without_training_nothing_changes_in_any_bit():
    networks = zoo(hidden=7, depth=2, third=0.3, most=0.7, whole=1.0)
    clients = {f"c{n}": (tier, learning(20, n)) for n, tier in enumerate(["third", "most", "whole", "most"])}
    play, state, _ = played(TailorFL(Local(steps=0)), 2, networks, clients)
    assert digest(state.model.arrays) == digest(play.init().model.arrays)


def test_a_tailored_network_has_the_units_its_data_needs_and_pays_for_no_more():
    networks = zoo(hidden=8, depth=1, quarter=0.25)
    play, _, costs = played(TailorFL(TRAINING), 2, networks, people(2, "quarter"))
    scores = memory(play, "c0")["importance"]
    assert all(torch.equal(memory(play, "c0")["held"][group], top(scores[group], 2)) for group in scores)
    whole, narrow = 4 * (24 + 72 + 18), 4 * (6 + 6 + 6)
    assert costs[0]["tailor", "c0"] == (whole, 2)
    assert ("tailor", "c0") not in costs[1]
    assert costs[1]["train", "c0"] == (narrow, narrow)
    assert costs[1]["show", "c0"] == (0, 2)


def test_who_can_carry_all_has_nothing_to_choose():
    _, _, costs = played(TailorFL(TRAINING), 1, zoo(whole=1.0), people(2, "whole"))
    assert {verb for verb, _ in costs[0]} == {"show", "train"}


def test_a_units_worth_is_weight_times_gradient_summed_over_its_rows():
    networks = zoo(hidden=2, depth=1)
    play = Play(TailorFL(), networks, people(1))
    device = Scoring(play)
    model = play.init().model
    found = taylor(model, device)["hidden0"]
    net = networks.build(model)
    CrossEntropy()(net, device.data.all()).backward()
    weight, bias = net.stem.linear.weight, net.stem.linear.bias
    by_hand = (weight * weight.grad).sum(1).abs() + (bias * bias.grad).abs()
    assert torch.allclose(found, by_hand, atol=1e-6)


class Scoring:
    """A device that trains one network, alone."""

    def __init__(self, play):
        self.zoo, self.data = play.zoo, play.clients["c0"][1]

    def build(self, model):
        return self.zoo.build(model)

    def fit(self, net, examples, local, want_gradient):
        return fit(net, examples, local, 0.0, CrossEntropy(), rng=stream(0, "t"), want_gradient=want_gradient)


def test_the_least_important_tenth_is_swapped_for_what_similar_devices_hold():
    units, importance = bits(1, 1, 1, 0, 0, 0), torch.tensor([0.5, 0.1, 0.9, 0.0, 0.0, 0.0])
    wanted = torch.tensor([3, 0, 0, 1, 3, 0], dtype=torch.uint8)
    assert swapped(units, importance, wanted, 0.1).tolist() == [ON, OFF, ON, OFF, ON, OFF]
    assert swapped(units, importance, wanted, 1.0).tolist() == [OFF, OFF, ON, ON, ON, OFF]
    assert swapped(units, importance, torch.zeros(6, dtype=torch.uint8), 0.5).tolist() == units.tolist()


def test_similar_devices_are_those_that_share_most_units():
    held = {
        "a": {"g": bits(1, 1, 0, 0)},
        "b": {"g": bits(1, 1, 1, 0)},
        "c": {"g": bits(0, 1, 1, 0)},
        "d": {"g": bits(1, 0, 0, 0)},
        "e": {"g": bits(0, 0, 1, 1)},
    }
    assert jaccard(held["a"], held["b"]) == pytest.approx(2 / 3)
    assert jaccard(held["a"], held["e"]) == 0
    assert popular("a", held)["g"].tolist() == [2, 2, 2, 0]  # of b, d and c


def test_every_device_is_tuned_by_what_the_others_held_before():
    networks = zoo(hidden=8, depth=1, half=0.5)
    method = TailorFL(TRAINING, tuning=2, swap=0.25)
    before, state, costs = played(method, 2, networks, people(5, "half"))
    held = {client: memory(before, client)["held"] for client in before.clients}
    assert {verb for verb, _ in costs[1]} == {"show", "train"}
    before.round(state, 2)
    costs = {(e.task.verb, e.task.to): (e.cost.bytes_down, e.cost.bytes_up) for e in before.session.entries}
    assert costs["tune", "c0"] == (16, 2)
    changed = 0
    for client, units in held.items():
        mine, wanted = memory(before, client), popular(client, held)
        for group in units:
            assert torch.equal(
                mine["held"][group], swapped(units[group], mine["importance"][group], wanted[group], 0.25)
            )
            assert int(mine["held"][group].sum()) == 4
            changed += not torch.equal(mine["held"][group], units[group])
    assert changed


def test_a_table_of_tokens_has_no_inputs_to_make_louder():
    full = make_spec("transformer", input=(6,), classes=12, depth=1)
    networks = ModelZoo(full, [Tier("half", 1.0, 0.5, None, tier_spec(full, 0.5, None))])
    found = inputs(networks.tiers[0].spec, networks)
    net = networks.build(Model(full), stream(0, "net"))
    tables = {f"{place}.weight" for place, layer in net.named_modules() if isinstance(layer, nn.Embedding)}
    assert tables
    assert found
    assert not tables & found.keys()
    assert set(found.values()) == {0.5}


def test_tailorfl_refuses_a_tier_with_a_network_of_another_kind():
    other = make_spec("cnn", input=(1, 4, 4), classes=2)
    networks = zoo()
    mixed = ModelZoo(networks.full, [*networks.tiers, Tier("own", 1.0, None, None, other)])
    with pytest.raises(SettingsError, match="tier 'own' has a model of its own"):
        TailorFL().check(mixed)


# FedSkel


def test_sk1_the_skeleton_is_the_most_active_half():
    assert top(torch.tensor([0.1, 0.9, 0.5, 0.3]), 2).tolist() == [OFF, ON, ON, OFF]


def test_sk2_only_skeletons_are_averaged():
    """METHODS' filters: old [9,9,9,9]; {1,2} send [1,3], {2,3} send [5,7]. In a round, through bones of a network."""
    networks = zoo(hidden=4, depth=1)

    @dataclass(frozen=True)
    class Told(FedSkel):
        @on_client
        def train(self, task, device):
            sent = task.models["model"]
            said = device.data.column("x")[0]
            arrays = {n: said.clone() if n == "stem.linear.bias" else t for n, t in sent.arrays.items()}
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
    net = networks.build(Model(networks.full), stream(0, "net"))
    layer = "linear" if family == "mlp" else "conv"
    live = bits(0, 1, 1, 0)
    shape = (4,) if family == "mlp" else (4, 1, 1)
    loss = Skeletal(CrossEntropy(), {f"body.0.{layer}": live.reshape(shape)})
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


def test_a_skeletons_round_mutes_layers_and_stops_norms():
    networks = ModelZoo(make_spec("cnn", input=(1, 4, 4), classes=2, width=2, depth=1), ())
    device = Skeletons(networks, {"held": {"stem": bits(1, 0), "block0": bits(0, 1)}}, Classify(2))
    task = Task("train", "c0", models={"model": Model(networks.full)}, config={"whole": False})
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


def test_activity_is_the_sum_of_what_a_layer_says():
    networks = zoo(hidden=3, depth=1)
    play, state, _ = played(FedSkel(Local(steps=0), cut=0.6), 1, networks, people(1))
    said = networks.build(state.model).stem.linear(play.clients["c0"][1].all()["x"]).abs().sum(0)
    assert memory(play, "c0")["held"]["hidden0"].tolist() == top(said, 2).tolist()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_between_whole_exchanges_fedskel_sends_its_skeleton_and_keeps_the_rest(decay):
    networks = zoo(hidden=8, depth=1)
    method = FedSkel(replace(TRAINING, weight_decay=decay), period=3)
    play = Play(method, networks, people(2))
    state, costs, models = play.init(), [], []
    for index in range(4):
        state = play.round(state, index)
        assert all(entry.verdict == "accepted" for entry in play.session.entries)
        costs.append({(e.task.verb, e.task.to): (e.cost.bytes_down, e.cost.bytes_up) for e in play.session.entries})
        models.append(memory(play, "c0"))
    whole, bones = 4 * (24 + 72 + 18), 4 * (12 + 36 + 18)
    assert [cost["train", "c0"] for cost in costs] == [(whole, whole), (bones, bones), (bones, bones), (whole, whole)]
    held = models[0]["held"]["hidden1"]
    before, after = (mine["model"].arrays["body.0.linear.weight"] for mine in models[:2])
    assert int(held.sum()) == 4
    assert torch.equal(after[~held], before[~held])
    assert (after[held] != before[held]).any()


def test_a_newcomer_to_fedskel_exchanges_everything():
    play = Play(FedSkel(TRAINING), zoo(hidden=8), people(2))
    state = play.round(play.init(), 0, only={"c0"})
    play.round(state, 1)
    costs = {e.task.to: e.cost.bytes_up for e in play.session.entries if e.task.verb == "train"}
    assert costs["c0"] < costs["c1"] == 4 * (24 + 72 + 18)
