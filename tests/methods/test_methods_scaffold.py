"""SCAFFOLD: control variates by hand, and what they correct."""

from dataclasses import replace

import pytest
import torch
from drift_rounds import SHARES, TRAINING, Bowl, Slope, after, at, descending, everywhere, people
from made_round import Play, data, zoo

from potluck.core import Local, SettingsError, digest
from potluck.methods import SCAFFOLD, FedAvg
from potluck.methods.scaffold import client_variates
from potluck.parts import Momentum


def one_client_of_ten(method, networks=None, tier="d1", index=1):
    """Ten clients, of which c1 alone takes part; x = 1, c = 0.5, c_1 = 0.2, a gradient of one everywhere."""
    clients = {f"c{n}": (tier, data(8, (1.0, 0.0))) for n in range(10)}
    play = Play(descending(method, Slope()), networks or zoo(1), clients)
    state = at(play.init(), 1.0)
    state = replace(state, control={name: torch.full_like(tensor, 0.5) for name, tensor in state.control.items()})
    play.memories["c1"] = (0, {"control": {name: torch.full_like(c, 0.2) for name, c in state.control.items()}})
    return play, play.round(state, index, only={"c1"})


TWO_STEPS = Local(lr=0.1, steps=2, batch=8)


@pytest.mark.parametrize("variate", ["auto", "travel", "start", "mean"])
def test_client_and_server_move_their_control_variates(variate):
    play, new = one_client_of_ten(SCAFFOLD(TWO_STEPS, variate=variate))
    assert everywhere(new.model.arrays) == pytest.approx(0.74)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    assert everywhere(new.control) == pytest.approx(0.58)


def test_the_control_variate_follows_the_learning_rate_that_was_applied():
    local = Local(lr=1.0, steps=2, batch=8, schedule="steps", milestones=(1,))
    play, new = one_client_of_ten(SCAFFOLD(local))
    assert everywhere(new.model.arrays) == pytest.approx(0.74)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    still, same = one_client_of_ten(SCAFFOLD(replace(local, factor=0.0)))
    assert (everywhere(same.model.arrays), everywhere(same.control)) == (1.0, 0.5)
    assert everywhere(still.memories["c1"][1]["control"]) == pytest.approx(0.2)


def test_the_control_variate_is_a_gradient_under_momentum_and_adam_too():
    play, new = one_client_of_ten(SCAFFOLD(replace(TWO_STEPS, momentum=0.5)))
    assert everywhere(new.model.arrays) == pytest.approx(1 - 0.1 * 1.3 * (1 + 1.5))
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    play, new = one_client_of_ten(SCAFFOLD(replace(TWO_STEPS, optimiser="adam")))
    assert everywhere(new.model.arrays) == pytest.approx(0.8, abs=1e-5)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    with pytest.raises(SettingsError, match=r'method\.variate = "mean"'):
        SCAFFOLD(replace(TWO_STEPS, optimiser="adam"), variate="travel").check(zoo(1))


def test_the_papers_global_step_size_is_a_server_rule():
    _, new = one_client_of_ten(SCAFFOLD(TWO_STEPS, server=Momentum(lr=0.5, beta=0.0)))
    assert everywhere(new.model.arrays) == pytest.approx(0.87)
    assert everywhere(new.control) == pytest.approx(0.58)


def test_buffers_have_no_control_variates():
    _, new = one_client_of_ten(SCAFFOLD(TWO_STEPS), zoo(1, norm="running"))
    buffers = zoo(1, norm="running").buffers(zoo(1, norm="running").full)
    assert buffers
    assert new.control.keys() == new.model.arrays.keys() - buffers


def test_the_servers_control_variate_of_a_tensor_is_the_mean_over_those_who_own_it():
    clients = {f"c{n}": (tier, data(8, (1.0, 0.0))) for n, tier in enumerate(["d1", "d1", "d2", "d2"])}
    play = Play(descending(SCAFFOLD(TWO_STEPS, share="layerwise"), Slope()), zoo(1, 2), clients)
    new = play.round(play.init(), only={"c2"})
    assert new.control["body.0.linear.weight"].item() == pytest.approx(1 / 4)
    assert new.control["body.1.linear.weight"].item() == pytest.approx(1 / 2)
    later = play.round(new, 1, only={"c0", "c1", "c3"})
    assert everywhere(later.control) == pytest.approx(1.0)
    alone = play.round(new, 1, only={"c0"})
    assert alone.control["body.1.linear.weight"].equal(new.control["body.1.linear.weight"])


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variate", ["travel", "start", "mean"])
def test_scaffolds_first_round_is_uniform_fedavg(share, variate):
    tiers, networks = ("d1", "d2", "d2"), zoo(1, 2)
    ours = SCAFFOLD(TRAINING, share=share, variate=variate)
    theirs = FedAvg(TRAINING, share=share, weighting="uniform")
    one, two = (digest(after(ours, rounds, *tiers, networks=networks)) for rounds in (1, 2))
    assert one == digest(after(theirs, 1, *tiers, networks=networks))
    assert two != digest(after(theirs, 2, *tiers, networks=networks))


def test_clients_with_unequal_losses_reach_the_common_minimum_only_with_control_variates():
    """a = 1, b = 0 and a = 4, b = 1: the sum is least at 0.8; after many steps FedAvg settles near the middle, 0.5."""
    clients = {"c0": ("d1", data(8, (1.0, 0.0))), "c1": ("d1", data(8, (4.0, 1.0)))}
    found = {}
    for name, method in {"fedavg": FedAvg, "scaffold": SCAFFOLD}.items():
        play = Play(descending(method(Local(lr=0.1, steps=20, batch=8)), Bowl()), zoo(1), clients)
        state = at(play.init(), 0.0)
        for index in range(20):
            state = play.round(state, index)
        found[name] = everywhere(state.model.arrays)
    assert found["scaffold"] == pytest.approx(0.8, abs=1e-3)
    assert found["fedavg"] < 0.6


def test_a_remembered_control_variate_of_another_shape_counts_as_none():
    like = {"a": torch.ones(2), "b": torch.ones(3)}
    found = client_variates({"control": {"a": torch.full((2,), 5.0), "b": torch.ones(4)}}, like)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [5, 5], "b": [0, 0, 0]}


def test_the_mean_gradient_takes_memory_too():
    sizes = []
    for variate in ("travel", "mean"):
        play = Play(SCAFFOLD(Local(steps=2, batch=4), variate=variate), zoo(2), people("d2"))
        play.round(play.init())
        sizes.append(play.session.entries[0].cost.memory)
    assert sizes[1] - sizes[0] == play.zoo.cost(play.zoo.full, 4).parameter_bytes
