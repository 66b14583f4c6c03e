"""Methods whose clients exchange answers and keep their models: FedMD, DS-FL and FedGEMS, by the numbers of METHODS."""

from dataclasses import replace

import pytest
import torch
from made_round import data, zoo
from speaking import STILL, Speaking, biased, close, net, two, unlabelled, value

from potluck.core import SERVER, Local, Task
from potluck.learn import Guided, Mimic, SoftCrossEntropy, divergence, mean_scores, reliance, relied, sharpened
from potluck.methods import DSFL, FedGEMS, FedMD

# FedMD


def test_md1_the_consensus_is_the_mean_of_raw_scores_and_its_distance_an_absolute_one():
    consensus = mean_scores(torch.tensor([[[1.0, 3.0]], [[3.0, 5.0]]]))
    assert consensus.tolist() == [[2.0, 4.0]]
    assert value(Mimic(), net(1.0, 3.0), scores=consensus) == 1.0


def test_md1_clients_move_towards_the_consensus():
    """The gradient of the mean over two entries is a half for each: one step of rate 1 moves every score by that."""
    play = two(FedMD(STILL))
    play.keep(a=[1.0, 3.0], b=[3.0, 5.0])
    play.round(play.init(), 1)
    assert play.bias("a") == [1.5, 3.5]
    assert play.bias("b") == [2.5, 4.5]


def test_md2_identical_clients_have_nothing_to_digest():
    play = two(FedMD(STILL, digests=3), b="d2")
    play.keep(a=[1.0, 3.0], b=[1.0, 3.0])
    play.round(play.init(), 1)
    assert play.bias("a") == play.bias("b") == [1.0, 3.0]


def test_a_new_client_warms_up_on_public_rows_and_then_its_own_and_only_once():
    cold = Speaking(FedMD(STILL, warm_public=0, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    warm = Speaking(FedMD(STILL, warm_public=1, warm_private=0, digests=0), zoo(1), {"a": ("d1", data(4))})
    both = Speaking(FedMD(STILL, warm_public=1, warm_private=2, digests=0), zoo(1), {"a": ("d1", data(4))})
    for play in (cold, warm, both):
        play.round(play.init())
    flops = [play.entries("answer")[0].cost.flops for play in (cold, warm, both)]
    assert flops[2] - flops[0] == 3 * (flops[1] - flops[0]) > 0
    assert warm.bias("a")[0] > cold.bias("a")[0]  # every public row is of class 0
    before = warm.bias("a")
    warm.round(warm.init(), 1)
    assert warm.bias("a") == before


def test_who_does_not_answer_is_not_told_and_a_round_without_answers_is_a_round():
    play = Speaking(FedMD(STILL), zoo(1), {"a": ("d1", data(4)), "empty": ("d1", data(0))})
    play.round(play.init())
    assert [entry.task.to for entry in play.entries("digest")] == ["a"]
    play.round(play.init(), 1, only=["empty"])
    assert not play.entries("digest")


# DS-FL


def test_ds1_entropy_is_reduced_by_a_softmax_of_mean_probabilities():
    answers = torch.tensor([[[0.6, 0.4]], [[0.8, 0.2]]])
    assert DSFL().combined(answers)[0].tolist() == close(0.982014, 0.017986)
    assert DSFL(aggregate="sa").combined(answers)[0].tolist() == close(0.7, 0.3)


def test_ds2_a_uniform_mean_stays_uniform():
    assert sharpened(torch.tensor([[0.5, 0.5]]), 0.1).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("aggregate", "wanted"), [("era", 0.982014), ("sa", 0.7)])
def test_ds1_clients_and_server_learn_the_answers_without_labels(aggregate, wanted):
    """The gradient of cross-entropy is the softmax minus the answer, and the learning rate is one."""
    play = two(unlabelled(DSFL(STILL, aggregate=aggregate, distils=1)), b="d2")
    said = {"a": torch.tensor([0.6, 0.4]).log(), "b": torch.tensor([0.8, 0.2]).log()}
    play.keep(**said)
    start = replace(play.init(), model=biased(play.zoo.full, [0.0, 0.0]))
    state = play.round(start, 1)
    for client, chance in (("a", 0.6), ("b", 0.8)):
        assert play.bias(client)[0] == pytest.approx(float(said[client][0]) - (chance - wanted), abs=1e-5)
    assert state.model.arrays["head.bias"][0].item() == pytest.approx(wanted - 0.5, abs=1e-6)
    (learned,) = play.entries("learn")
    assert learned.task.to == SERVER
    assert learned.cost.flops > 0


def test_a_certain_answer_costs_its_cross_entropy():
    answers = torch.tensor([[0.7, 0.3]])
    assert value(SoftCrossEntropy(), net(1.0, 0.0), answers=answers) == pytest.approx(0.3 + 0.313262, abs=1e-6)


# FedGEMS


def test_ge1_clients_are_relied_on_by_a_softmax_of_one_over_entropy():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [True]])
    assert reliance(entropy, right).flatten().tolist() == close(0.731059, 0.268941)


def test_a_client_that_is_wrong_counts_as_if_it_knew_nothing_or_not_at_all():
    entropy, right = torch.tensor([[0.5], [1.0]]), torch.tensor([[True], [False]])
    assert reliance(entropy, right).flatten().tolist() == close(0.880797, 0.119203)
    assert reliance(entropy, right, exclude=True).flatten().tolist() == [1.0, 0.0]
    nobody = torch.zeros(2, 1, dtype=torch.bool)
    assert reliance(entropy, nobody, exclude=True).flatten().tolist() == [0.5, 0.5]


def test_clients_without_any_doubt_leave_numbers_finite():
    scores = torch.tensor([[[1e4, 0.0]], [[0.0, 0.0]]])
    assert relied(scores, torch.tensor([0])).tolist() == [[1e4, 0.0]]


def test_rows_that_are_right_have_cross_entropy_alone_and_others_a_teacher_too():
    batch = {"y": torch.tensor([0, 1]), "scores": torch.tensor([[0.0, 9.0], [1.0, 0.0]])}
    own = [0.313262, 1.313262]  # of scores [1, 0]; the second row's teacher says the same, the first one's is not asked
    chosen = value(Guided(0.75, selective=True), net(1.0, 0.0), **batch)
    assert chosen == pytest.approx((own[0] + 0.75 * own[1]) / 2, abs=1e-6)
    everyone = value(Guided(0.75), net(1.0, 0.0), **batch)
    first = 0.75 * own[0] + 0.25 * float(divergence(torch.tensor([0.0, 9.0]), torch.tensor([1.0, 0.0])))
    assert everyone == pytest.approx((first + 0.75 * own[1]) / 2, abs=1e-5)


def learned(method, heard, known, kept=(0.0, 0.0)):
    """The head's bias after the server, which is wrong about all rows, has learned."""
    play = two(method)
    rows = {"kept": torch.tensor([kept] * 4), "known": torch.tensor([known] * 4), "heard": torch.tensor([[heard] * 4])}
    start = biased(play.zoo.full, [0.0, 1.0])
    (reply,) = play.dispatcher.open(0).send([Task("learn", SERVER, models={"model": start}, arrays=rows)])
    return reply.models["model"].arrays["head.bias"]


def test_ge2_a_row_once_right_and_now_wrong_has_the_memory_as_its_teacher_and_no_client():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1)
    one, other = (learned(method, heard, True, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert torch.equal(one, other)
    one, other = (learned(method, heard, False, kept=(2.0, 0.0)) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_without_selection_clients_are_always_asked():
    method = FedGEMS(Local(lr=0.1, batch=4), passes=1, select=False)
    one, other = (learned(method, heard, True) for heard in ([9.0, 0.0], [0.0, 9.0]))
    assert not torch.equal(one, other)


def test_the_server_remembers_its_scores_of_rows_that_it_gets_right():
    play = two(FedGEMS(Local(lr=2.0, batch=4), passes=1))
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


def test_rows_that_a_round_is_not_about_keep_their_memory():
    play = two(FedGEMS(Local(lr=2.0, batch=4), rows=3, passes=1))
    state = play.round(replace(play.init(), model=biased(play.zoo.full, [0.0, 0.1])))
    assert int(state.memory["known"].sum()) == 3
    assert state.memory["kept"][~state.memory["known"]].tolist() == [[0.0, 0.0]]
