"""DS-FL: entropy reduction and what clients and server learn of it, by hand."""

from dataclasses import replace

import pytest
import torch
from constant_logits import STILL, biased, close, net, two_clients, unlabelled, value

from potluck.core import SERVER
from potluck.methods import DSFL
from potluck.methods.dsfl import SoftCrossEntropy, reduce_entropy


def test_entropy_is_reduced_by_a_softmax_of_mean_probabilities():
    answers = torch.tensor([[[0.6, 0.4]], [[0.8, 0.2]]])
    assert DSFL().combine(answers)[0].tolist() == close(0.982014, 0.017986)
    assert DSFL(aggregate="sa").combine(answers)[0].tolist() == close(0.7, 0.3)


def test_a_uniform_mean_stays_uniform():
    assert reduce_entropy(torch.tensor([[0.5, 0.5]]), 0.1).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("aggregate", "wanted"), [("era", 0.982014), ("sa", 0.7)])
def test_clients_and_server_learn_the_mean_probabilities_without_labels(aggregate, wanted):
    """The gradient of cross-entropy is the softmax minus the target, and the learning rate is one."""
    play = two_clients(unlabelled(DSFL(STILL, aggregate=aggregate, distils=1)), b="d2")
    logits = {"a": torch.tensor([0.6, 0.4]).log(), "b": torch.tensor([0.8, 0.2]).log()}
    play.keep(**logits)
    start = replace(play.init(), model=biased(play.zoo.full, [0.0, 0.0]))
    state = play.round(start, 1)
    for client, chance in (("a", 0.6), ("b", 0.8)):
        assert play.bias(client)[0] == pytest.approx(float(logits[client][0]) - (chance - wanted), abs=1e-5)
    assert state.model.arrays["head.bias"][0].item() == pytest.approx(wanted - 0.5, abs=1e-6)
    (learned,) = play.entries("learn")
    assert learned.task.to == SERVER
    assert learned.cost.flops > 0


def test_the_loss_is_cross_entropy_with_probabilities_for_labels():
    answers = torch.tensor([[0.7, 0.3]])
    assert value(SoftCrossEntropy(), net(1.0, 0.0), answers=answers) == pytest.approx(0.3 + 0.313262, abs=1e-6)
