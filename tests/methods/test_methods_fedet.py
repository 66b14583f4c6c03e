"""Fed-ET: the weighted consensus, those who dissent, and the shared head, by hand."""

from dataclasses import replace

import pytest
import torch
from constant_logits import PublicPlay, close, echoing_logits, net, unlabelled, value
from made_round import data, zoo

from potluck.core import SERVER, Client, Tier
from potluck.learn import CrossEntropy, kl_divergence
from potluck.methods import FedET
from potluck.methods.fedet import ConsensusLoss, confidence, consensus, dissenting_logits
from potluck.models import ModelZoo, make_spec

THREE_NETWORKS = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 4.0, 0.0]], [[1.0, 0.0, 0.0]]])


def test_networks_are_weighted_by_the_variance_of_their_logits():
    assert confidence(THREE_NETWORKS).flatten().tolist() == close(0.190476, 0.761905, 0.047619)
    assert consensus(THREE_NETWORKS)[0].tolist() == close(0.428571, 3.047619, 0.0)
    assert consensus(THREE_NETWORKS).argmax(-1).tolist() == [1]
    doubts, doubted = dissenting_logits(THREE_NETWORKS)
    assert doubts[0].tolist() == close(1.8, 0.0, 0.0)
    assert doubted.tolist() == [True]


def test_where_all_agree_only_cross_entropy_is_left():
    alike = torch.tensor([[[2.0, 0.0]], [[3.0, 1.0]]])
    doubts, doubted = dissenting_logits(alike)
    assert (doubts.tolist(), doubted.tolist()) == ([[0.0, 0.0]], [False])
    batch = {"agreed": torch.tensor([0]), "doubts": doubts}
    own = value(CrossEntropy(labels="agreed"), net(0.0, 1.0), **batch)
    assert value(ConsensusLoss(0.05), net(0.0, 1.0), **batch, doubted=doubted) == own
    uniform = float(kl_divergence(torch.zeros(2), torch.tensor([0.0, 1.0])))
    doubting = value(ConsensusLoss(0.05), net(0.0, 1.0), **batch, doubted=torch.tensor([True]))
    assert doubting == pytest.approx(own + 0.05 * uniform, abs=1e-6)


def test_networks_with_equal_logits_for_all_classes_count_alike():
    flat = torch.zeros(2, 1, 3)
    assert confidence(flat).flatten().tolist() == [0.5, 0.5]
    assert all(bool(tensor.isfinite().all()) for tensor in dissenting_logits(flat))


def heads(method):
    """A federation in which a (d1) has logits [1, 3], b and c (d2) have [4, 0], after one round."""
    logits = {"a": [1.0, 3.0], "b": [4.0, 0.0], "c": [4.0, 0.0]}
    clients = {id: ("d1" if id == "a" else "d2", data(2, tuple(own))) for id, own in logits.items()}
    play = PublicPlay(unlabelled(echoing_logits(method)), zoo(1, 2), clients)
    return play, play.round(play.init())


def test_the_representation_layer_is_the_mean_of_the_clients_and_goes_back_to_all():
    """By clients: (1 + 4 + 4) / 3 and (3 + 0 + 0) / 3."""
    play, state = heads(FedET(teach=replace(FedET().teach, steps=0)))
    assert state.large.arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "a").arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "b").arrays["head.bias"].tolist() == [3.0, 1.0]


def test_the_large_model_learns_the_consensus_and_its_representation_layer_with_it():
    """Scores [4, 0] vary most: all public rows are taken for class 0."""
    play, state = heads(FedET())
    bias = state.large.arrays["head.bias"].tolist()
    assert bias[0] - bias[1] > 2.0
    assert play.served(state, "a").arrays["head.bias"].tolist() == bias
    assert play.method.serve(state, Client(SERVER, play.everyone[0].tier), play.zoo) is state.large
    (learn,) = play.entries("learn")
    assert (learn.task.to, learn.cost.flops > 0) == (SERVER, True)


def test_a_head_of_another_shape_stays_its_architectures_own():
    full = make_spec("lenet", input=(1, 8, 8), classes=2)
    other = make_spec("cnn", input=(1, 8, 8), classes=2)
    made = ModelZoo(full, [Tier("l", spec=full), Tier("c", spec=other)], public=4)
    assert [spec.family for spec in FedET().heads(made)] == ["lenet"]
