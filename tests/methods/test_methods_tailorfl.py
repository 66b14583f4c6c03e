"""TailorFL: units chosen by importance, scaling and tuning, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data, learning
from masked_rounds import OFF, ON, TRAINING, bits, memory, people, played, zoo
from torch import nn

from potluck.core import Examples, FitRequest, Local, Model, Newborn, SettingsError, Tier, digest, on_client, stream
from potluck.learn import CrossEntropy, FitJob, run_fit, trainable_weights
from potluck.methods import TailorFL
from potluck.methods.bases.unit_importance import taylor_importance, top_units
from potluck.methods.tailorfl import input_shares, jaccard, neighbour_counts, swap_units
from potluck.models import ModelZoo, make_spec, tier_spec


@dataclass(frozen=True)
class Up(TailorFL):
    """Training adds the first value of a client's data to every weight of the head."""

    @on_client
    def train(self, task, device):
        fit = yield FitRequest(self.start(task, device), device.data, Local(steps=0))
        with torch.no_grad():
            fit.net.head.weight += float(device.data.column("x")[0, 0])
        return self.report(task, device, fit)


def test_weights_are_scaled_up_in_training_while_their_inputs_are_fewer():
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


def test_without_training_nothing_changes_in_any_bit():
    networks = zoo(hidden=7, depth=2, third=0.3, most=0.7, whole=1.0)
    clients = {f"c{n}": (tier, learning(20, n)) for n, tier in enumerate(["third", "most", "whole", "most"])}
    play, state, _ = played(TailorFL(Local(steps=0)), 2, networks, clients)
    assert digest(state.model.arrays) == digest(play.init().model.arrays)


def test_a_client_trains_its_most_important_units_and_sends_no_others():
    networks = zoo(hidden=8, depth=1, quarter=0.25)
    play, _, costs = played(TailorFL(TRAINING), 2, networks, people(2, "quarter"))
    scores = memory(play, "c0")["importance"]
    assert all(torch.equal(memory(play, "c0")["held"][group], top_units(scores[group], 2)) for group in scores)
    whole, narrow = 4 * (24 + 72 + 18), 4 * (6 + 6 + 6)
    assert costs[0]["tailor", "c0"] == (whole, 2)
    assert ("tailor", "c0") not in costs[1]
    assert costs[1]["train", "c0"] == (narrow, narrow)
    assert costs[1]["show", "c0"] == (0, 2)


def test_a_client_of_full_width_has_nothing_to_choose():
    _, _, costs = played(TailorFL(TRAINING), 1, zoo(whole=1.0), people(2, "whole"))
    assert {verb for verb, _ in costs[0]} == {"show", "train"}


def test_a_units_importance_is_weight_times_gradient_summed_over_its_rows():
    networks = zoo(hidden=2, depth=1)
    play = Play(TailorFL(), networks, people(1))
    device, model = Scoring(networks, play.clients["c0"][1]), play.init().model
    found = trained(taylor_importance(model, device), networks)["hidden0"]
    net = networks.build(model)
    CrossEntropy()(net, device.data.all()).backward()
    weight, bias = net.stem.linear.weight, net.stem.linear.bias
    by_hand = (weight * weight.grad).sum(1).abs() + (bias * bias.grad).abs()
    assert torch.allclose(found, by_hand, atol=1e-6)


@dataclass
class Scoring:
    """As much of a device as importance is asked of."""

    zoo: ModelZoo
    data: Examples


def trained(work, networks):
    """What a client's work returns that asks for one fit."""
    asked = next(work)
    net = networks.build(asked.model)
    job = FitJob(
        net, asked.examples, asked.local, asked.local.lr, asked.loss or CrossEntropy(), asked.edits, stream(0, "t"),
        trainable_weights(net), asked.want_gradient,
    )  # fmt: skip
    with pytest.raises(StopIteration) as end:
        work.send(run_fit(job))
    return end.value.value


def test_the_least_important_units_are_swapped_for_those_that_similar_devices_hold():
    units, importance = bits(1, 1, 1, 0, 0, 0), torch.tensor([0.5, 0.1, 0.9, 0.0, 0.0, 0.0])
    wanted = torch.tensor([3, 0, 0, 1, 3, 0], dtype=torch.uint8)
    assert swap_units(units, importance, wanted, 0.1).tolist() == [ON, OFF, ON, OFF, ON, OFF]
    assert swap_units(units, importance, wanted, 1.0).tolist() == [OFF, OFF, ON, ON, ON, OFF]
    assert swap_units(units, importance, torch.zeros(6, dtype=torch.uint8), 0.5).tolist() == units.tolist()


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
    assert neighbour_counts("a", held)["g"].tolist() == [2, 2, 2, 0]  # of b, d and c


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
        mine, wanted = memory(before, client), neighbour_counts(client, held)
        for group in units:
            assert torch.equal(
                mine["held"][group], swap_units(units[group], mine["importance"][group], wanted[group], 0.25)
            )
            assert int(mine["held"][group].sum()) == 4
            changed += not torch.equal(mine["held"][group], units[group])
    assert changed


def test_an_embedding_table_has_no_inputs_to_scale():
    full = make_spec("transformer", input=(6,), classes=12, depth=1)
    networks = ModelZoo(full, [Tier("half", 1.0, 0.5, None, tier_spec(full, 0.5, None))])
    found = input_shares(networks.tiers[0].spec, networks)
    net = networks.build(Newborn(full), stream(0, "net"))
    tables = {f"{place}.weight" for place, layer in net.named_modules() if isinstance(layer, nn.Embedding)}
    assert tables
    assert found
    assert not tables & found.keys()
    assert set(found.values()) == {0.5}


def test_a_tier_with_a_network_of_another_kind_is_refused():
    other = make_spec("cnn", input=(1, 4, 4), classes=2)
    networks = zoo()
    mixed = ModelZoo(networks.full, [*networks.tiers, Tier("own", 1.0, None, None, other)])
    with pytest.raises(SettingsError, match="tier 'own' has a model of its own"):
        TailorFL().check(mixed)
