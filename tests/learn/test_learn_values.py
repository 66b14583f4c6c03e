"""Losses, edits and problems as values, with numbers from paper and pencil."""

import math

import pytest
import torch
from torch import nn

from potluck.core import NOTHING, Examples, Model, Spec
from potluck.learn import (
    Classify,
    CrossEntropy,
    Frozen,
    ProximalTerm,
    clip_gradients,
    map_tensors,
    structure_key,
    tensor_leaves,
)


def test_fp1_the_pull_is_the_gradient_of_the_penalty():
    """w = [1, 2], x = [0, 0], mu = 0.1: penalty 0.25, gradient [0.1, 0.2]."""
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.zeros(2)
    penalty = 0.1 / 2 * (w - x).square().sum()
    assert penalty.item() == pytest.approx(0.25)
    pulled = ProximalTerm({"w": x}, 0.1)({"w": torch.zeros(2)}, {"w": w.detach()})
    assert torch.equal(pulled["w"], torch.autograd.grad(penalty, w)[0])
    assert pulled["w"].tolist() == pytest.approx([0.1, 0.2])


def test_fp2_where_weights_have_not_moved_there_is_no_pull():
    grads = {"w": torch.tensor([3.0, -0.5])}
    assert ProximalTerm({"w": torch.tensor([1.0, 2.0])}, 0.1)(grads, {"w": torch.tensor([1.0, 2.0])})["w"].tolist() == [
        3,
        -0.5,
    ]


def test_a_pull_adds_to_the_gradient_and_leaves_the_given_one_alone():
    grads = {"w": torch.tensor([1.0])}
    assert ProximalTerm({"w": torch.tensor([4.0])}, 0.5)(grads, {"w": torch.tensor([2.0])})["w"].item() == 0
    assert grads["w"].item() == 1


def test_a_pull_leaves_out_what_is_not_trained():
    towards = {"w": torch.zeros(1), "running_mean": torch.zeros(1)}
    assert set(ProximalTerm(towards, 1.0)({"w": torch.ones(1)}, {"w": torch.ones(1)})) == {"w"}


def test_clipping_scales_all_tensors_by_the_same_factor():
    """The norm of (3, 4) is 5."""
    short = clip_gradients([torch.tensor([3.0]), torch.tensor([[4.0]])], 1.0)
    assert [g.item() for g in short] == pytest.approx([0.6, 0.8], rel=1e-5)
    assert [g.item() for g in clip_gradients([torch.tensor([3.0]), torch.tensor([4.0])], 6.0)] == [3, 4]


class Scores(nn.Module):
    """A network whose scores are its input."""

    def forward(self, x):
        return x


def test_cross_entropy_is_the_mean_over_the_batch():
    batch = {"x": torch.tensor([[0.0, 0.0], [math.log(3), 0.0]]), "y": torch.tensor([0, 0])}
    assert CrossEntropy()(Scores(), batch).item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


def test_cross_entropy_reads_the_columns_it_is_told():
    batch = {"ids": torch.zeros(1, 4), "tag": torch.tensor([2])}
    assert CrossEntropy("ids", "tag")(Scores(), batch).item() == pytest.approx(math.log(4))


def answers(said, true):
    """Examples on which `Scores` says the first and the second is right."""
    return Examples({"x": torch.eye(4)[said], "y": torch.tensor(true)})


def test_a_tally_counts_hits_by_class():
    tally = Classify(4).tally(Scores(), answers([0, 1, 1, 2], [0, 0, 1, 1]))
    assert tally["right"] == [1, 1, 0, 0]
    assert tally["seen"] == [2, 2, 0, 0]
    right, wrong = math.log(math.e + 3) - 1, math.log(math.e + 3)
    assert tally["loss"] == pytest.approx(2 * right + 2 * wrong)


def test_scores_of_a_tally_by_hand_with_a_class_that_has_no_examples():
    found = Classify(3).scores([{"right": [1, 0, 0], "seen": [2, 2, 0], "loss": 6.0}])
    assert found == {"accuracy": 0.25, "loss": 1.5, "count": 4, "per_class": [0.5, 0.0, None]}


def test_tallies_add_up_to_the_tally_of_all():
    all_at_once = [Classify(4).tally(Scores(), answers([0, 1, 1, 2, 3], [0, 0, 1, 1, 3]))]
    in_parts = [
        Classify(4).tally(Scores(), answers([0, 1], [0, 0])),
        Classify(4).tally(Scores(), answers([1, 2, 3], [1, 1, 3])),
    ]
    one, other = Classify(4).scores(all_at_once), Classify(4).scores(in_parts)
    assert one.pop("loss") == pytest.approx(other.pop("loss"))
    assert one == other


def test_nobody_has_no_score():
    empty = Examples({"x": torch.zeros(0, 2), "y": torch.zeros(0, dtype=torch.long)})
    tally = Classify(2).tally(Scores(), empty)
    assert tally == {"right": [0, 0], "seen": [0, 0], "loss": 0.0}
    nothing = {"accuracy": None, "loss": None, "count": 0, "per_class": [None, None]}
    assert Classify(2).scores([tally]) == Classify(2).scores([]) == nothing
    assert Classify(2).tally(Scores(), NOTHING)["seen"] == [0, 0]


def test_more_rows_than_are_scored_at_once_are_all_scored():
    many = Examples({"x": torch.eye(2).repeat(300, 1), "y": torch.tensor([0, 1] * 300)})
    assert Classify(2).tally(Scores(), many)["seen"] == [300, 300]
    assert Classify(2).scores([Classify(2).tally(Scores(), many)])["accuracy"] == 1


def test_scoring_neither_trains_nor_leaves_a_trace():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.9))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    data = Examples({"x": torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), "y": torch.tensor([0, 1] * 4)})
    first = Classify(2).tally(net, data)
    assert first == Classify(2).tally(net, data)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_problems_loss_is_a_value():
    assert Classify(3).loss == Classify(9).loss == CrossEntropy()


def test_values_of_one_structure_differ_in_nothing_but_numbers():
    one, other = (ProximalTerm({"w": torch.full((2,), number)}, 0.5) for number in (1.0, 2.0))
    assert structure_key(one) == structure_key(other)
    assert structure_key(one) != structure_key(ProximalTerm({"w": torch.ones(2)}, 0.6))
    assert structure_key(one) != structure_key(ProximalTerm({"w": torch.ones(3)}, 0.5))
    assert structure_key(one) != structure_key(ProximalTerm({"v": torch.ones(2)}, 0.5))
    assert structure_key([one]) != structure_key(one)


def test_a_network_in_a_value_goes_by_which_it_is():
    net, twin = nn.Linear(2, 2), nn.Linear(2, 2)
    assert structure_key(Frozen(net)) == structure_key(Frozen(net)) != structure_key(Frozen(twin))


def test_the_tensors_of_a_value_come_in_an_order_of_their_names():
    pull = ProximalTerm({"b": torch.tensor(2.0), "a": torch.tensor(1.0)}, 0.5)
    assert [float(tensor) for tensor in tensor_leaves((pull, [torch.tensor(3.0)]))] == [1.0, 2.0, 3.0]


def test_a_value_can_have_other_tensors_in_the_same_places():
    pull = ProximalTerm({"w": torch.ones(2)}, 0.5)
    doubled = map_tensors((pull, Model(Spec("x"), {"w": torch.ones(1)}), "text"), lambda tensor: tensor * 2)
    assert doubled[0].towards["w"].tolist() == [2.0, 2.0]
    assert doubled[1].arrays["w"].tolist() == [2.0]
    assert (doubled[0].strength, doubled[2]) == (0.5, "text")
    assert pull.towards["w"].tolist() == [1.0, 1.0]


def test_what_may_hide_numbers_is_refused():
    with pytest.raises(TypeError, match="a function in a loss or edit may hold hidden numbers"):
        structure_key(lambda net, batch: None)
