"""FedNova: updates normalised by local steps, by hand."""

from dataclasses import replace

import pytest
from drift_rounds import SHARES, Slope, after, at, descending, everywhere, near
from made_round import Play, data, zoo

from potluck.core import Local, Reply
from potluck.learn import displacement
from potluck.methods import FedAvg, FedNova
from potluck.parts import Momentum


def test_with_momentum_steps_go_further():
    assert displacement(Local(momentum=0.5), 0.1, 3) == 4.25


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_the_displacement_is_that_of_unit_gradients(momentum, mu):
    """By the loop itself; with momentum alone by its closed form, with a proximal term alone by its recursion."""
    for steps in (0, 1, 2, 7):
        pace = distance = recursion = 0.0
        for _ in range(steps):
            pace = momentum * pace + 1 - 0.1 * mu * distance
            distance += pace
            recursion = recursion * (1 - 0.1 * mu) + 1
        found = displacement(Local(momentum=momentum), 0.1, steps, mu)
        assert found == pytest.approx(distance)
        if not mu:
            assert found == pytest.approx((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
        if not momentum:
            assert found == pytest.approx(recursion)
    assert displacement(Local(optimiser="adam", momentum=momentum), 0.1, 5, mu) == 5


def sloping(method, networks=None, tiers=("d1", "d1")):
    """Gradients of 1 and 2 everywhere, one step and three, from zero."""
    clients = {"c0": (tiers[0], data(4, (1.0, 0.0))), "c1": (tiers[1], data(12, (2.0, 0.0)))}
    play = Play(descending(method, Slope()), networks or zoo(1), clients)
    return play.round(at(play.init(), 0.0)).model.arrays


EPOCH = Local(lr=1.0, epochs=1, batch=4)


def test_every_step_counts_alike_whoever_takes_it():
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform"))) == pytest.approx(-3)
    assert everywhere(sloping(FedAvg(EPOCH, weighting="uniform"))) == pytest.approx(-3.5)


def test_directions_and_distances_are_weighted_by_samples():
    """p = 1/4, 3/4: directions 1 and 2 mean 1.75, distances 1 and 3 mean 2.5."""
    assert everywhere(sloping(FedNova(EPOCH))) == pytest.approx(-1.75 * 2.5)


def test_momentum_and_a_proximal_term_are_divided_out():
    """Momentum 0.5: a = 1 and 4.25. With mu = 0.5 a = 1 and 1.75, but the mean is that of the steps, 1 and 3."""
    swift = FedNova(replace(EPOCH, momentum=0.5), weighting="uniform")
    assert everywhere(sloping(swift)) == pytest.approx(-1.5 * (1 + 4.25) / 2)
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform", mu=0.5))) == pytest.approx(-1.5 * 2)


def test_each_tensor_is_normalised_over_those_who_own_it():
    new = sloping(FedNova(EPOCH, weighting="uniform", share="layerwise"), zoo(1, 2), ("d1", "d2"))
    assert new["body.0.linear.weight"].item() == pytest.approx(-3)
    assert new["body.1.linear.weight"].item() == pytest.approx(-6)


def test_server_momentum_is_a_server_rule():
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform", server=Momentum(lr=0.5)))) == pytest.approx(-1.5)


def test_buffers_take_the_mean_weighted_by_samples():
    networks = zoo(1, norm="running")
    ours, theirs = (after(kind(EPOCH), 1, "d1", "d1", networks=networks) for kind in (FedNova, FedAvg))
    buffers = networks.buffers(networks.full)
    assert near({name: ours[name] for name in buffers}, {name: theirs[name] for name in buffers})
    assert not near(ours, theirs, 1e-4)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(share, momentum):
    local, tiers, networks = Local(lr=0.1, steps=5, batch=4, momentum=momentum), ("d1", "d2", "d2"), zoo(1, 2)
    ours, theirs = (after(kind(local, share=share), 3, *tiers, networks=networks) for kind in (FedNova, FedAvg))
    assert near(ours, theirs)
    longer = replace(local, steps=None, epochs=5)
    ours, theirs = (after(kind(longer, share="whole"), 3, *tiers, networks=networks) for kind in (FedNova, FedAvg))
    assert not near(ours, theirs, 1e-4)


@pytest.mark.parametrize("told", [10**9, -1, 0, None, "many"])
def test_a_client_is_not_believed_more_steps_than_its_samples_allow(told):
    reply = Reply(weight=12.0, metrics={"steps": told})
    assert FedNova(EPOCH).steps(reply)[0] in (1, 3)
