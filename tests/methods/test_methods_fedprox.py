"""FedProx: the proximal term by hand, and in rounds."""

import pytest
import torch
from drift_rounds import SHARES, TRAINING, after, people
from made_round import Play, zoo

from potluck.core import Local, digest
from potluck.learn import ProximalTerm
from potluck.methods import FedAvg, FedProx


def test_the_proximal_term_is_the_gradient_of_the_penalty():
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.zeros(2)
    penalty = 0.1 / 2 * (w - x).square().sum()
    assert penalty.item() == pytest.approx(0.25)
    pulled = ProximalTerm({"w": x}, 0.1)({"w": torch.zeros(2)}, {"w": w.detach()})["w"]
    assert pulled.tolist() == pytest.approx([0.1, 0.2])
    assert torch.allclose(pulled, torch.autograd.grad(penalty, w)[0])


def test_the_proximal_term_is_zero_where_a_client_started():
    w = torch.tensor([1.0, 2.0])
    assert ProximalTerm({"w": w}, 0.1)({"w": torch.zeros(2)}, {"w": w})["w"].tolist() == [0, 0]


@pytest.mark.parametrize("share", SHARES)
def test_fedprox_without_a_proximal_term_is_fedavg_under_every_share(share):
    tiers, networks = ("d1", "d2", "d2"), zoo(1, 2)
    ours = after(FedProx(TRAINING, mu=0.0, share=share), 2, *tiers, networks=networks)
    assert digest(ours) == digest(after(FedAvg(TRAINING, share=share), 2, *tiers, networks=networks))


def moved(state):
    return state.model.arrays


def test_fedprox_without_a_proximal_term_is_fedavg_bit_for_bit():
    states = []
    for method in (FedAvg(Local(epochs=2, batch=4)), FedProx(Local(epochs=2, batch=4), mu=0.0)):
        play = Play(method, zoo(2), people("d2", "d2", "d2"))
        states.append(digest(moved(play.round(play.round(play.init()), 1))))
    assert states[0] == states[1]


def test_the_proximal_term_keeps_clients_closer_to_where_they_started():
    def distance(method):
        play = Play(method, zoo(1), people("d1", "d1"))
        start = play.init()
        new = moved(play.round(start))
        return sum(float((new[name] - old).square().sum()) for name, old in moved(start).items())

    local = Local(lr=0.1, epochs=5, batch=4)
    assert 0 < distance(FedProx(local, mu=5.0)) < distance(FedProx(local, mu=0.1)) < distance(FedAvg(local))


def test_the_proximal_term_pulls_towards_the_weights_received_this_round():
    """One full-batch step feels no proximal term; the second is pulled back by lr * mu * what the first one moved."""
    one, two = Local(lr=0.5, steps=1, batch=100), Local(lr=0.5, steps=2, batch=100)

    def after(method):
        play = Play(method, zoo(1), people("d1"))
        return moved(play.round(play.init()))

    assert digest(after(FedProx(one, mu=0.4))) == digest(after(FedAvg(one)))
    start = moved(Play(FedAvg(), zoo(1), people("d1")).init())
    first, free, held = after(FedAvg(one)), after(FedAvg(two)), after(FedProx(two, mu=0.4))
    for name, tensor in held.items():
        assert torch.allclose(tensor, free[name] - 0.5 * 0.4 * (first[name] - start[name]), atol=1e-6), name
