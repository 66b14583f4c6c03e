"""Hermes: units pruned by weight, and entries averaged where clients overlap, by hand."""

from dataclasses import replace

import pytest
import torch
from made_round import Play, learning
from masked_rounds import TRAINING, bits, memory, people, played, zoo

from potluck.core import Local, Model
from potluck.methods import Hermes
from potluck.methods.bases.unit_importance import top_units
from potluck.methods.hermes import GroupSparsity
from potluck.parts import OverlapMean, Part, Place


def averaged(*held):
    """Clients that hold these entries of a tensor of three, with these values: what each has after averaging."""
    mean = OverlapMean({"w": torch.zeros(3)})
    parts = [Part({"w": Place("w", (torch.tensor(at),))}) for at, _ in held]
    for (_, values), part in zip(held, parts, strict=True):
        mean.add({"w": torch.tensor(values)}, part)
    return [part.take(mean.value())["w"].tolist() for part in parts]


def test_entries_that_two_clients_hold_are_averaged_and_those_of_one_stay_its_own():
    assert averaged(([0, 1], [2.0, 4.0]), ([0, 2], [6.0, 8.0])) == [[4, 4], [4, 8]]


def test_a_client_without_common_entries_is_not_changed():
    assert averaged(([0], [2.0]), ([1], [7.0]), ([0], [8.0])) == [[5], [7], [5]]


def test_in_a_round_clients_with_different_units_are_averaged_where_they_overlap():
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


def test_networks_shrink_to_their_target_and_bytes_with_them():
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


def test_the_units_with_the_smallest_weights_are_removed():
    networks = zoo(hidden=2, depth=1)
    play, state, _ = played(Hermes(Local(steps=0), threshold=0.0, keep=0.5), 1, networks)
    model = memory(play, "c0")["met"]
    body = model.arrays["body.0.linear.weight"]
    play.round(state, 1)
    kept = memory(play, "c0")["held"]["hidden1"]
    assert kept.tolist() == top_units(body.abs().sum(1), 1).tolist()
    assert torch.equal(memory(play, "c0")["model"].arrays["body.0.linear.weight"], body[kept])
    assert torch.equal(memory(play, "c0")["model"].arrays["head.weight"], model.arrays["head.weight"][:, kept])


def test_a_tiers_width_is_its_clients_target():
    clients = {"c0": ("half", learning(24, 0)), "c1": ("whole", learning(24, 1))}
    play, _, _ = played(Hermes(TRAINING, threshold=0.0, prune=0.9), 2, zoo(hidden=4, half=0.5, whole=1.0), clients)
    held = [int(memory(play, client)["held"]["hidden1"].sum()) for client in ("c0", "c1")]
    assert held == [2, 4]


def test_the_group_sparsity_penalty_pulls_whole_rows_and_leaves_zeros_alone():
    weights = {"w": torch.tensor([[3.0, 4.0], [0.0, 0.0]]), "b": torch.ones(2)}
    pulled = GroupSparsity(("w",), 0.5)({name: torch.zeros_like(w) for name, w in weights.items()}, weights)
    assert pulled["w"].tolist() == [[pytest.approx(0.3), pytest.approx(0.4)], [0, 0]]
    assert pulled["b"].tolist() == [0, 0]
