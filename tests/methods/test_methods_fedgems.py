"""FedGEMS: which teacher the server follows on which row, by hand."""

from dataclasses import replace

import pytest
import torch
from constant_logits import biased, close, net, two_clients, value

from potluck.core import SERVER, Expected, Local, Task, shapes_of
from potluck.learn import kl_divergence
from potluck.methods import FedGEMS
from potluck.methods.fedgems import TeacherLoss, client_weights, ensemble_logits


def test_clients_are_weighted_by_a_softmax_of_one_over_entropy():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [True]])
    assert client_weights(entropy, right).flatten().tolist() == close(0.731059, 0.268941)


def test_a_client_that_is_wrong_has_the_least_weight_or_none():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [False]])
    assert client_weights(entropy, right).flatten().tolist() == close(0.880797, 0.119203)
    assert client_weights(entropy, right, exclude=True).flatten().tolist() == [1.0, 0.0]
    nobody = torch.zeros(2, 1, dtype=torch.bool)
    assert client_weights(entropy, nobody, exclude=True).flatten().tolist() == [0.5, 0.5]


def test_predictions_without_entropy_leave_weights_finite():
    scores = torch.tensor([[[1e4, 0.0]], [[0.0, 0.0]]])
    assert ensemble_logits(scores, torch.tensor([0])).tolist() == [[1e4, 0.0]]


def test_rows_predicted_right_have_cross_entropy_alone_and_others_a_teacher_too():
    batch = {"y": torch.tensor([0, 1]), "scores": torch.tensor([[0.0, 9.0], [1.0, 0.0]])}
    own = [0.313262, 1.313262]  # of logits [1, 0]; the second row's teacher has the same, the first one's is not used
    chosen = value(TeacherLoss(0.75, selective=True), net(1.0, 0.0), **batch)
    assert chosen == pytest.approx((own[0] + 0.75 * own[1]) / 2, abs=1e-6)
    everyone = value(TeacherLoss(0.75), net(1.0, 0.0), **batch)
    first = 0.75 * own[0] + 0.25 * float(kl_divergence(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 0.0])))
    assert everyone == pytest.approx((first + 0.75 * own[1]) / 2, abs=1e-5)


def learned(method, heard, known, kept=(0.0, 0.0)):
    """The head's bias after the server, which is wrong about all rows, has learned."""
    play = two_clients(method)
    rows = {"kept": torch.tensor([kept] * 4), "known": torch.tensor([known] * 4), "heard": torch.tensor([[heard] * 4])}
    start = biased(play.zoo.full, [0.0, 1.0])
    returns = {"scores": ((4, 2), torch.float32), **shapes_of({name: rows[name] for name in ("kept", "known")})}
    expects = Expected({"model": start.shapes}, returns)
    (reply,) = play.dispatcher.open(0).send(
        [Task("learn", SERVER, models={"model": start}, arrays=rows, expects=expects)]
    )
    return reply.models["model"].arrays["head.bias"]


def test_a_row_once_right_and_now_wrong_has_the_servers_old_logits_as_its_teacher_and_no_client():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1)
    one, other = (learned(method, heard, True, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert torch.equal(one, other)
    one, other = (learned(method, heard, False, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_without_selection_clients_are_always_the_teachers():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1, select=False)
    one, other = (learned(method, heard, True) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_the_server_remembers_its_logits_of_rows_that_it_gets_right():
    play = two_clients(FedGEMS(Local(lr=2.0, batch=4), passes=1))
    start = play.init()
    assert not start.memory["known"].any()
    state = play.round(replace(start, model=biased(play.zoo.full, [0.0, 0.1])))
    assert state.memory["known"].all()
    bias = state.model.arrays["head.bias"]
    assert bias[0] > bias[1]  # every public row is of class 0
    assert torch.allclose(state.memory["kept"], bias.expand(4, 2))
    wrong = replace(state, model=biased(play.zoo.full, [0.0, 50.0]))
    kept = play.round(wrong, 1).memory
    assert kept["known"].all()
    assert torch.equal(kept["kept"], state.memory["kept"])


def test_rows_that_a_round_did_not_draw_keep_their_remembered_logits():
    play = two_clients(FedGEMS(Local(lr=2.0, batch=4), rows=3, passes=1))
    state = play.round(replace(play.init(), model=biased(play.zoo.full, [0.0, 0.1])))
    assert int(state.memory["known"].sum()) == 3
    assert state.memory["kept"][~state.memory["known"]].tolist() == [[0.0, 0.0]]
