"""Methods whose server learns from the models of all clients: FedDF and Fed-ET, by the numbers of METHODS."""

from dataclasses import replace

import pytest
import torch
from made_round import data, zoo
from speaking import Speaking, close, net, saying, two, unlabelled, value

from potluck.core import SERVER, Client, Examples, Model, Tier
from potluck.learn import (
    CrossEntropy,
    Doubt,
    Follow,
    agreed,
    confidence,
    dissenting,
    divergence,
    mean_scores,
    predict_logits,
)
from potluck.methods import FedDF, FedET
from potluck.methods.feddf import Distillation
from potluck.models import ModelZoo, make_spec

# FedDF


def test_df1_a_student_follows_the_softmax_of_the_teachers_mean_scores():
    target = mean_scores(torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]]))
    assert target.softmax(-1)[0].tolist() == close(0.731059, 0.268941)
    assert value(Follow(), net(0.0, 0.0), scores=target) == pytest.approx(0.110944, abs=1e-6)


@pytest.mark.parametrize("on", ["public", "noise"])
def test_df1_all_clients_teach_every_architecture(on):
    """The average of d1 says what the teachers say; d2, of which nobody took part, starts uniform and learns it."""
    once = Distillation(optimiser="sgd", lr=1.0, steps=1)
    play = two(unlabelled(saying(FedDF(on=on, noise=3, teach=once))))
    play.clients["a"][1].columns["x"][:] = torch.tensor([2.0, 0.0])
    start = play.init()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in start.model.arrays.items()}
    state = play.round(replace(start, model=Model(start.model.spec, zeros)))
    losses = {entry.task.key: entry.metrics["loss"] for entry in play.entries("learn")}
    small, large = (tier.spec for tier in play.zoo.tiers)
    assert losses[small.key] == pytest.approx(0.0, abs=1e-7)
    assert losses[large.key] == pytest.approx(0.110944, abs=1e-6)
    assert play.served(state, "a").arrays["head.bias"].tolist() == close(1.0, 0.0)
    whole = play.method.serve(state, Client(SERVER, Tier("server", spec=play.zoo.full)), play.zoo)
    assert whole.spec == large
    assert whole.arrays["head.bias"].tolist() == close(0.231059, -0.231059)


def test_df2_a_student_that_is_its_only_teacher_has_nothing_to_learn():
    target = torch.tensor([[0.3, -1.2]])
    assert float(divergence(target, target)) == 0.0
    only = net(0.3, -1.2)
    loss = Follow()(only, {"x": torch.ones(1, 2), "scores": predict_logits(only, Examples({"x": torch.ones(1, 2)}))})
    grads = torch.autograd.grad(loss, list(only.parameters()))
    assert all(float(grad.abs().max()) < 1e-7 for grad in grads)


def test_noise_needs_no_public_rows_and_teachers_and_students_see_the_same():
    method = FedDF(on="noise", noise=5)
    method.check(zoo(1))
    play = two(method)
    seeds = []
    for index in range(2):
        play.round(play.init(), index)
        asked = [entry.task.config["noise"] for verb in ("answer", "learn") for entry in play.entries(verb)]
        assert len(asked) == 4
        assert len(set(asked)) == 1
        seeds.append(asked[0])
    assert seeds[0] != seeds[1]


# Fed-ET

ET1 = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 4.0, 0.0]], [[1.0, 0.0, 0.0]]])


def test_et1_networks_agree_by_the_variance_of_their_scores():
    assert confidence(ET1).flatten().tolist() == close(0.190476, 0.761905, 0.047619)
    assert agreed(ET1)[0].tolist() == close(0.428571, 3.047619, 0.0)
    assert agreed(ET1).argmax(-1).tolist() == [1]
    doubts, doubted = dissenting(ET1)
    assert doubts[0].tolist() == close(1.8, 0.0, 0.0)
    assert doubted.tolist() == [True]


def test_et2_where_all_agree_only_cross_entropy_is_left():
    alike = torch.tensor([[[2.0, 0.0]], [[3.0, 1.0]]])
    doubts, doubted = dissenting(alike)
    assert (doubts.tolist(), doubted.tolist()) == ([[0.0, 0.0]], [False])
    batch = {"agreed": torch.tensor([0]), "doubts": doubts}
    own = value(CrossEntropy(labels="agreed"), net(0.0, 1.0), **batch)
    assert value(Doubt(0.05), net(0.0, 1.0), **batch, doubted=doubted) == own
    uniform = float(divergence(torch.zeros(2), torch.tensor([0.0, 1.0])))
    doubting = value(Doubt(0.05), net(0.0, 1.0), **batch, doubted=torch.tensor([True]))
    assert doubting == pytest.approx(own + 0.05 * uniform, abs=1e-6)


def test_networks_that_tell_no_class_from_another_count_alike():
    flat = torch.zeros(2, 1, 3)
    assert confidence(flat).flatten().tolist() == [0.5, 0.5]
    assert all(bool(tensor.isfinite().all()) for tensor in dissenting(flat))


def heads(method):
    """A federation in which a (d1) says [1, 3], b and c (d2) say [4, 0], after one round."""
    told = {"a": [1.0, 3.0], "b": [4.0, 0.0], "c": [4.0, 0.0]}
    clients = {id: ("d1" if id == "a" else "d2", data(2, tuple(said))) for id, said in told.items()}
    play = Speaking(unlabelled(saying(method)), zoo(1, 2), clients)
    return play, play.round(play.init())


def test_the_representation_layer_is_the_mean_of_the_clients_and_goes_back_to_all():
    """By clients: (1 + 4 + 4) / 3 and (3 + 0 + 0) / 3."""
    play, state = heads(FedET(teach=replace(FedET().teach, steps=0)))
    assert state.large.arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "a").arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "b").arrays["head.bias"].tolist() == [3.0, 1.0]


def test_the_large_model_learns_what_is_agreed_on_and_its_layer_with_it():
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
