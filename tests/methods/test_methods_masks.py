"""LotteryFL, Hermes, TailorFL, FedMask and FedSkel, with the conformance numbers of METHODS.md."""

import json
import re
from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data
from tiny_runs import killed_after
from torch import nn

from potluck.core import Local, Model, Reply, SettingsError, Task, Tier, digest, on_client, stream
from potluck.learn import Classify, CrossEntropy, fit
from potluck.ledger import Memories
from potluck.methods import METHODS, FedMask, FedSkel, Hermes, LotteryFL, TailorFL
from potluck.methods.fedmask import averaged, believed
from potluck.methods.frames.held import packed, spread, unpacked
from potluck.methods.frames.merits import jaccard, popular, swapped, taylor, top
from potluck.methods.frames.through import Only, Shrink, Skeletal, Through, straight
from potluck.methods.lotteryfl import pruned
from potluck.methods.tailorfl import inputs
from potluck.models import Menagerie, make_spec, tier_spec
from potluck.parts import Mask, OverlapMean, Part, Place
from potluck.run import experiment, resume, run

MASKED = ["lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel"]
TRAINING = Local(lr=0.2, epochs=3, batch=4)
ON, OFF = True, False


def bits(*values):
    return torch.tensor([bool(value) for value in values])


def zoo(hidden=4, depth=1, family="mlp", **widths):
    """A network of two inputs and two classes; a tier for each width, or one without."""
    more = {"hidden": hidden} if family == "mlp" else {"width": hidden}
    shape = (2,) if family == "mlp" else (1, 4, 4)
    full = make_spec(family, input=shape, classes=2, depth=depth, norm="none", **more)
    tiers = [Tier(name, 1.0, width, None, tier_spec(full, width, None)) for name, width in widths.items()]
    return Menagerie(full, tiers or [Tier("all", 1.0, None, None, full)])


def learning(count, seed):
    """Rows that teach something: the label says which of the two inputs is larger."""
    x = torch.randn(count, 2, generator=stream(seed, "rows"))
    rows = data(count)
    rows.columns.update(x=x, y=(x[:, 0] > x[:, 1]).long())
    return rows


def people(count, tier="all"):
    return {f"c{n}": (tier, learning(24 + 4 * n, n)) for n in range(count)}


def played(method, rounds, networks=None, clients=None):
    """A federation after so many rounds: the play, its last state, and what every round cost."""
    play = Play(method, networks or zoo(), clients or people(3))
    state, costs = play.init(), []
    for index in range(rounds):
        state = play.round(state, index)
        assert all(entry.verdict == "accepted" for entry in play.session.entries)
        costs.append({(e.task.verb, e.task.to): (e.cost.bytes_down, e.cost.bytes_up) for e in play.session.entries})
    return play, state, costs


def memory(play, client):
    return play.memories[client][1]


# LotteryFL


def test_lo1_weights_are_averaged_over_those_who_kept_them():
    mean = OverlapMean({"w": torch.full((4,), 9.0)})
    for mask, values in ((bits(1, 1, 0, 0), [2.0, 4.0]), (bits(1, 0, 1, 0), [6.0, 8.0])):
        mean.add(unpacked({"w": torch.tensor(values)}, {"w": mask}), Mask({"w": mask}))
    assert mean.value()["w"].tolist() == [4, 4, 8, 9]


def test_lo1_in_a_round_a_weight_that_nobody_kept_stays_and_biases_are_plain_means():
    """Two clients answer with what they were told to; their masks are theirs."""
    masks = {"c0": bits(1, 1, 0, 0), "c1": bits(1, 0, 1, 0)}

    @dataclass(frozen=True)
    class Told(LotteryFL):
        @on_client
        def train(self, task, device):
            said = float(device.data.column("x")[0, 0])
            sent = task.models["model"]
            arrays = {name: torch.full_like(tensor, said) for name, tensor in sent.arrays.items()}
            left = {name: torch.ones(len(sent.arrays[name]), dtype=torch.bool) for name in self.held(device)}
            return Reply({"model": Model(sent.spec, arrays)}, left)

    networks = zoo(hidden=2, depth=1)
    play = Play(Told(), networks, {"c0": ("all", data(4, (2.0, 0.0))), "c1": ("all", data(4, (6.0, 0.0)))})
    state = play.init()
    state = replace(
        state, model=Model(state.model.spec, {n: torch.full_like(t, 9.0) for n, t in state.model.arrays.items()})
    )
    for client, mask in masks.items():
        held = {name: mask.reshape(2, 2) for name in state.model.arrays if name.endswith("weight")}
        play.memories[client] = (0, {"held": held, "remaining": 0.5, "ticket": state.ticket})
    new = play.round(state, 1).model.arrays
    assert new["stem.linear.weight"].flatten().tolist() == [4, 2, 6, 9]
    assert new["head.bias"].tolist() == [4, 4]


def test_lo2_a_fifth_of_the_smallest_weights_goes_by_numpys_percentile():
    left = pruned(torch.tensor([3.0, -1.0, 5.0, 2.0, -4.0, 0.5]), bits(1, 1, 1, 1, 1, 0), 0.2)
    assert left.tolist() == [ON, OFF, ON, ON, ON, OFF]


def test_weights_of_equal_size_are_not_pruned():
    assert pruned(torch.ones(5), bits(1, 1, 1, 1, 1), 0.2).all()


def test_lotteryfl_prunes_rewinds_and_freezes():
    play, state, _ = played(LotteryFL(TRAINING, threshold=0.0), 1)
    mine = memory(play, "c0")
    first = {name: int(mask.sum()) / mask.numel() for name, mask in mine["held"].items()}
    assert first == {"stem.linear.weight": 0.75, "body.0.linear.weight": 13 / 16, "head.weight": 0.75}
    assert mine["remaining"] == 0.8
    own = play.method.own(Remembering(mine)).arrays
    assert all((own[name][~mask] == 0).all() for name, mask in mine["held"].items())
    still, _, _ = played(LotteryFL(Local(lr=0.0, steps=1), threshold=0.0), 3)
    kept = still.method.own(Remembering(memory(still, "c0"))).arrays
    masks = memory(still, "c0")["held"]
    assert all(torch.equal(kept[name], Mask(masks).take(state.ticket)[name]) for name in masks)


@dataclass
class Remembering:
    memory: dict


@dataclass(frozen=True)
class Quoted(LotteryFL):
    """Clients remember what they said."""

    @on_client
    def train(self, task, device):
        reply = super().train(task, device)
        device.memory["said"], device.memory["left"] = dict(reply.models["model"].arrays), dict(reply.arrays)
        return reply


def test_in_the_round_of_pruning_what_goes_is_zero_and_does_not_count():
    """A server that has moved on from its first values; one client, which prunes and rewinds."""
    play = Play(Quoted(TRAINING, threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    new = play.round(replace(state, model=Model(state.model.spec, moved)), 1).model.arrays
    mine = memory(play, "c0")
    for name, mask in mine["held"].items():
        assert torch.equal(mask, pruned(moved[name], torch.ones_like(mask), 0.2))
        assert (mine["said"][name][~mine["left"][name]] == 0).all()
        assert torch.equal(new[name][~mask], moved[name][~mask])
        assert torch.equal(new[name][mask], mine["said"][name][mine["left"][name]])


def test_what_stays_is_rewound_to_the_first_values():
    play = Play(LotteryFL(Local(lr=0.0, steps=1), threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    play.round(replace(state, model=Model(state.model.spec, moved)), 1)
    mine = memory(play, "c0")
    own = play.method.own(Remembering(mine)).arrays
    assert digest(own) == digest(Mask(mine["held"]).take(state.ticket))


def test_lotteryfl_does_not_prune_what_is_not_good_enough():
    play, _, costs = played(LotteryFL(TRAINING, threshold=1.0), 2)
    assert all(mask.all() for mask in memory(play, "c0")["held"].values())
    assert costs[0]["train", "c0"] == costs[1]["train", "c0"]


def test_lotteryfl_stops_at_its_target_and_its_bytes_fall_with_what_is_left():
    networks = zoo(hidden=20, depth=2)
    play, _, costs = played(LotteryFL(TRAINING, threshold=0.0), 8, networks)
    weights = 40 + 400 + 400 + 40
    rest = 20 + 20 + 20 + 2
    mine = memory(play, "c0")
    left = sum(int(mask.sum()) for mask in mine["held"].values())
    assert mine["remaining"] == pytest.approx(0.8**4)
    assert 0.40 < left / weights < 0.42
    assert costs[0]["show", "c0"] == (0, weights // 8)
    assert costs[0]["train", "c0"] == (4 * (weights + rest), 4 * (weights + rest) + weights // 8)
    bits_up = sum(-(-int(mask.sum()) // 8) for mask in mine["held"].values())
    assert costs[-1]["train", "c0"] == (4 * (left + rest), 4 * (left + rest) + bits_up)


def test_a_newcomer_to_lotteryfl_is_also_sent_the_first_values():
    networks = zoo()
    play = Play(LotteryFL(TRAINING, threshold=0.0), networks, people(2))
    state = play.round(play.init(), 0, only={"c0"})
    play.round(state, 1, only={"c1"})
    assert digest(memory(play, "c1")["ticket"]) == digest(state.ticket) != digest(state.model.arrays)
    (first,) = [e.cost.bytes_down for e in play.session.entries if e.task.verb == "train"]
    assert first == 2 * 4 * sum(tensor.numel() for tensor in state.ticket.values())


def test_what_is_packed_comes_back():
    mask, w = torch.rand(3, 4) > 0.5, torch.randn(3, 4)
    back = unpacked(packed({"w": w, "b": w[0]}, {"w": mask}), {"w": mask})
    assert torch.equal(back["w"], torch.where(mask, w, 0.0))
    assert torch.equal(back["b"], w[0])
    assert spread(bits(1, 0), bits(0, 1, 1)).tolist() == [OFF, ON, OFF]


def test_gradients_reach_only_what_the_masks_hold():
    edited = Only({"w": bits(1, 0)})({"w": torch.ones(2), "b": torch.ones(1)}, {})
    assert (edited["w"].tolist(), edited["b"].tolist()) == ([1, 0], [1])


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
    networks = Menagerie(full, [Tier("half", 1.0, 0.5, None, tier_spec(full, 0.5, None))])
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
    mixed = Menagerie(networks.full, [*networks.tiers, Tier("own", 1.0, None, None, other)])
    with pytest.raises(SettingsError, match="tier 'own' has a model of its own"):
        TailorFL().check(mixed)


# FedMask


def test_fm1_a_weight_is_used_where_its_score_is_not_negative():
    scores = torch.tensor([0.3, -0.2], requires_grad=True)
    used = straight(scores)
    assert used.tolist() == [1, 0]
    used.sum().backward()
    soft = torch.sigmoid(scores.detach())
    assert torch.allclose(scores.grad, soft * (1 - soft))


def test_fm2_what_three_hold_is_averaged_and_what_one_holds_stays():
    """Masks [1,1,0], [1,0,0], [1,0,1] of structures {0,1}, {0}, {0,2}."""
    mean = OverlapMean({"w": torch.zeros(3)})
    for at, mask in (([0, 1], [1.0, 1.0]), ([0], [1.0]), ([0, 2], [1.0, 1.0])):
        mean.add({"w": torch.tensor(mask)}, Part({"w": Place("w", (torch.tensor(at),))}))
    agreed = averaged(mean)["w"]
    assert agreed.tolist() == [254, 255, 255]
    assert torch.sigmoid(believed(torch.tensor([-3.0, 0.2, -0.7]), agreed)).tolist() == pytest.approx(
        [0.99, torch.sigmoid(torch.tensor(0.2)).item(), torch.sigmoid(torch.tensor(-0.7)).item()]
    )


def test_two_of_three_is_two_thirds_within_a_byte():
    mean = OverlapMean({"w": torch.zeros(1)})
    for bit in (1.0, 1.0, 0.0):
        mean.add({"w": torch.tensor([bit])}, Part({"w": Place("w")}))
    assert torch.sigmoid(believed(torch.zeros(1), averaged(mean)["w"])).item() == pytest.approx(2 / 3, abs=1 / 508)


def test_the_loss_sees_weights_times_bits_and_only_scores_feel_it():
    net = nn.Sequential(nn.Linear(2, 2))
    frozen = {"0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "0.bias": torch.tensor([0.5, -0.5])}
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 2.0]]))
    batch = {"x": torch.tensor([[1.0, 1.0]]), "y": torch.tensor([0])}
    value = Through(CrossEntropy(), frozen, ("0.weight",))(net, batch)
    assert value.item() == pytest.approx(CrossEntropy()(lambda x: torch.tensor([[1.5, 6.5]]), batch).item())
    scores, bias = torch.autograd.grad(value, list(net.parameters()), materialize_grads=True)
    assert (scores != 0).all()
    assert (bias == 0).all()


def test_fedmask_learns_bits_and_sends_bits():
    networks = zoo(hidden=8, depth=2)
    training = Local(lr=0.3, epochs=5, batch=4, optimiser="adam")
    play, state, costs = played(FedMask(training), 3, networks)
    assert digest(state.model.arrays) == digest(play.init().model.arrays)
    mine = memory(play, "c0")
    assert {group: int(units.sum()) for group, units in mine["held"].items()} == dict.fromkeys(mine["held"], 4)
    whole = 4 * (24 + 72 + 72 + 18)
    assert costs[0]["tailor", "c0"] == (whole, 3)
    assert costs[2]["train", "c0"] == (0, 2 + 2 + 1)
    assert costs[2]["merge", "c0"] == (16 + 16 + 8, 0)
    own, frozen = play.method.own(Remembering(mine)).arrays, mine["weights"].arrays
    used = {name: own[name] != 0 for name in mine["scores"]}
    assert all(torch.equal(own[name][kept], frozen[name][kept]) for name, kept in used.items())
    assert any(not kept.all() for kept in used.values())
    assert torch.equal(own["stem.linear.weight"], frozen["stem.linear.weight"])


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
    networks = Menagerie(make_spec("cnn", input=(1, 4, 4), classes=2, width=2, depth=1), ())
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
    zoo: Menagerie
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


# All of them


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        (LotteryFL, {"prune": 0.0}, "method.prune = 0.0 must be above 0 and at most 1"),
        (LotteryFL, {"keep": 1.5}, "method.keep = 1.5 must be above 0 and at most 1"),
        (Hermes, {"keep": 0.0}, "method.keep = 0.0 must be above 0 and at most 1"),
        (TailorFL, {"tuning": -1}, "method.tuning = -1 is below 0"),
        (FedMask, {"last": 0}, "method.last = 0 is below 1"),
        (FedSkel, {"cut": 1.0}, "method.cut = 1.0 must be at least 0 and below 1"),
        (FedSkel, {"period": 0}, "method.period = 0 is below 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(method, setting, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        method(**setting)


def plain(name, **changes):
    base = {
        "rounds": 6,
        "cohort": 4,
        "data": {"clients": 6, "partition": "labels", "labels": 2},
        "model": {"name": "cnn", "width": 8, "depth": 1},
        "tier": [{"name": "half", "width": 0.5}, {"name": "whole", "width": 1.0}],
        "method": {"name": name},
        "local": {"lr": 0.1, "epochs": 3, "batch": 8},
        "score": {"every": 3, "clients": 6},
        "run": {"engine": "serial"},
    }
    return {**base, **changes}


@pytest.mark.parametrize("name", MASKED)
def test_clients_score_their_own_models_and_batch_norms_come_along(name, tmp_path):
    result = run(experiment(plain(name)), tmp_path / "run")
    tasks = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    assert {line["outcome"] for line in tasks if line["event"] == "task"} == {"accepted"}
    last = json.loads((result.folder / "scores.jsonl").read_text().splitlines()[-1])
    assert last["global"] is None
    assert last["clients"]["count"] == 6
    if name != "fedmask":  # which needs more than six rounds to choose among random weights
        assert last["clients"]["mean"] > 0.7


def remembered(folder):
    found = Memories(folder / "memory")
    return {f"c{n}": found.read(f"c{n}") for n in range(6)}


@pytest.mark.parametrize("name", MASKED)
def test_memories_survive_a_kill_bit_for_bit(name, tmp_path):
    settings = plain(name, rounds=4, model={"name": "mlp", "hidden": 4}, local={"steps": 3})
    whole = run(experiment(settings), tmp_path / "whole")
    killed_after(2, experiment(settings), tmp_path / "killed")
    before = remembered(tmp_path / "killed")
    assert resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256
    assert remembered(tmp_path / "killed") == remembered(tmp_path / "whole") != before


def test_every_method_here_is_listed():
    assert [METHODS[name].__name__.lower() for name in MASKED] == MASKED
