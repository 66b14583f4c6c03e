"""FedDF: every architecture learns the mean logits of all clients' models, by hand."""

from dataclasses import replace

import pytest
import torch
from constant_logits import close, echoing_logits, net, two_clients, unlabelled, value
from made_round import zoo

from potluck.core import SERVER, Client, Examples, Model, Tier
from potluck.learn import kl_divergence, mean_logits, predict_logits
from potluck.methods import FedDF
from potluck.methods.feddf import FedDFDistillation, KLFromTeachers


def test_a_student_learns_the_softmax_of_the_teachers_mean_logits():
    target = mean_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]]))
    assert target.softmax(-1)[0].tolist() == close(0.731059, 0.268941)
    assert value(KLFromTeachers(), net(0.0, 0.0), scores=target) == pytest.approx(0.110944, abs=1e-6)


@pytest.mark.parametrize("on", ["public", "noise"])
def test_all_clients_teach_every_architecture(on):
    """The average of d1 predicts what the teachers do; d2, of which nobody took part, starts uniform and learns it."""
    once = FedDFDistillation(optimiser="sgd", lr=1.0, steps=1)
    play = two_clients(unlabelled(echoing_logits(FedDF(on=on, noise=3, teach=once))))
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


def test_a_student_that_is_its_only_teacher_has_nothing_to_learn():
    target = torch.tensor([[0.3, -1.2]])
    assert float(kl_divergence(target, target)) == 0.0
    only = net(0.3, -1.2)
    loss = KLFromTeachers()(
        only, {"x": torch.ones(1, 2), "scores": predict_logits(only, Examples({"x": torch.ones(1, 2)}))}
    )
    grads = torch.autograd.grad(loss, list(only.parameters()))
    assert all(float(grad.abs().max()) < 1e-7 for grad in grads)


def test_random_inputs_need_no_public_rows_and_are_the_same_for_teachers_and_students():
    method = FedDF(on="noise", noise=5)
    method.check(zoo(1))
    play = two_clients(method)
    seeds = []
    for index in range(2):
        play.round(play.init(), index)
        asked = [entry.task.config["noise"] for verb in ("answer", "learn") for entry in play.entries(verb)]
        assert len(asked) == 4
        assert len(set(asked)) == 1
        seeds.append(asked[0])
    assert seeds[0] != seeds[1]
