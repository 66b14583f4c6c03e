"""FedMask: scores, bits and their means, by hand."""

import pytest
import torch
from masked_rounds import Remembering, memory, played, zoo
from torch import nn

from potluck.core import Local, digest
from potluck.learn import CrossEntropy
from potluck.methods import FedMask
from potluck.methods.fedmask import MaskedWeightsLoss, mean_bits, score_for, straight_through
from potluck.parts import OverlapMean, Part, Place


def test_a_weight_is_used_where_its_score_is_not_negative():
    scores = torch.tensor([0.3, -0.2], requires_grad=True)
    used = straight_through(scores)
    assert used.tolist() == [1, 0]
    used.sum().backward()
    soft = torch.sigmoid(scores.detach())
    assert torch.allclose(scores.grad, soft * (1 - soft))


def test_bits_that_three_clients_hold_are_averaged_and_those_that_one_holds_stay():
    """Masks [1,1,0], [1,0,0], [1,0,1] of structures {0,1}, {0}, {0,2}."""
    mean = OverlapMean({"w": torch.zeros(3)})
    for at, mask in (([0, 1], [1.0, 1.0]), ([0], [1.0]), ([0, 2], [1.0, 1.0])):
        mean.add({"w": torch.tensor(mask)}, Part({"w": Place("w", (torch.tensor(at),))}))
    agreed = mean_bits(mean)["w"]
    assert agreed.tolist() == [254, 255, 255]
    assert torch.sigmoid(score_for(torch.tensor([-3.0, 0.2, -0.7]), agreed)).tolist() == pytest.approx(
        [0.99, torch.sigmoid(torch.tensor(0.2)).item(), torch.sigmoid(torch.tensor(-0.7)).item()]
    )


def test_a_mean_of_two_thirds_survives_as_a_byte():
    mean = OverlapMean({"w": torch.zeros(1)})
    for bit in (1.0, 1.0, 0.0):
        mean.add({"w": torch.tensor([bit])}, Part({"w": Place("w")}))
    assert torch.sigmoid(score_for(torch.zeros(1), mean_bits(mean)["w"])).item() == pytest.approx(2 / 3, abs=1 / 508)


def test_the_loss_is_of_weights_times_bits_and_gradients_reach_scores_alone():
    net = nn.Sequential(nn.Linear(2, 2))
    frozen = {"0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "0.bias": torch.tensor([0.5, -0.5])}
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 2.0]]))
    batch = {"x": torch.tensor([[1.0, 1.0]]), "y": torch.tensor([0])}
    value = MaskedWeightsLoss(CrossEntropy(), frozen, ("0.weight",))(net, batch)
    assert value.item() == pytest.approx(CrossEntropy()(lambda x: torch.tensor([[1.5, 6.5]]), batch).item())
    scores, bias = torch.autograd.grad(value, list(net.parameters()), materialize_grads=True)
    assert (scores != 0).all()
    assert (bias == 0).all()


def test_clients_learn_bits_and_send_bits():
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
