"""Losses and scores where every token of a row has a label, with numbers from paper and pencil."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.core import NOTHING, Examples
from potluck.learn import CrossEntropy, MaskedCrossEntropy, NextToken, class_mask, cross_entropy
from potluck.learn.losses import IGNORED


class Scores(nn.Module):
    """A network whose scores are its input."""

    def forward(self, x):
        return x


ROWS = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]], [[math.log(7), 0.0], [9.0, -9.0]]])
"""Two rows of two tokens, a vocabulary of two: the first token has chances of 1/2, 3/4, 7/8 and nearly 1."""


def test_the_loss_is_the_mean_over_the_tokens_that_count_not_over_rows():
    batch = {"x": ROWS, "y": torch.tensor([[0, 0], [1, IGNORED]])}
    expected = (math.log(2) + math.log(4 / 3) + math.log(8)) / 3
    assert CrossEntropy()(Scores(), batch).item() == pytest.approx(expected)


def test_tokens_that_are_ignored_get_no_gradient():
    scores = ROWS.clone().requires_grad_()
    (found,) = torch.autograd.grad(cross_entropy(scores, torch.tensor([[0, IGNORED], [IGNORED, 1]])), scores)
    assert found[0, 1].tolist() == found[1, 0].tolist() == [0, 0]
    assert found[0, 0].tolist() == [-0.25, 0.25]


def test_a_batch_in_which_nothing_counts_has_no_loss():
    assert cross_entropy(ROWS, torch.full((2, 2), IGNORED)).item() == 0


def test_lm1_holds_for_every_token():
    """Logits [2, -1, 5], tokens 0 and 1 owned, token 0 right: 0.169846."""
    batch = {"x": torch.tensor([[[2.0, -1.0, 5.0]] * 2]), "y": torch.tensor([[0, 0]])}
    assert MaskedCrossEntropy(class_mask([0, 1], 3))(Scores(), batch).item() == pytest.approx(0.169846, abs=1e-6)


def test_one_label_a_row_goes_the_old_way_bit_by_bit():
    rng = torch.Generator().manual_seed(0)
    scores, other = torch.randn(7, 5, generator=rng), torch.randn(7, 5, generator=rng)
    labels = torch.arange(7) % 5
    assert torch.equal(cross_entropy(scores, labels), functional.cross_entropy(scores, labels))
    taught = functional.cross_entropy(scores, other.softmax(1))
    assert torch.equal(cross_entropy(scores, labels, teacher=other), taught)


def test_a_teacher_answers_only_where_a_label_counts():
    """A teacher sure of the first token by 3 to 1, a pupil by 1 to 1; and by 7 to 1 where nothing counts."""
    teacher, pupil = torch.tensor([[[math.log(3), 0.0], [5.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [math.log(7), 0.0]]])
    labels = torch.tensor([[1, IGNORED]])
    assert cross_entropy(pupil, labels, teacher=teacher).item() == pytest.approx(math.log(2))
    both = 0.5 * (math.log(2) + cross_entropy(pupil[:, 1:], labels[:, :1], teacher=teacher[:, 1:]).item())
    assert cross_entropy(pupil, torch.tensor([[1, 0]]), teacher=teacher).item() == pytest.approx(both)


def said(answers, true):
    """Examples on which `Scores` says the first and the second is right."""
    return Examples({"x": torch.eye(4)[torch.tensor(answers)], "y": torch.tensor(true)})


def test_a_tally_counts_tokens_and_leaves_padding_out():
    tally = NextToken(4).tally(Scores(), said([[0, 1, 2], [3, 3, 3]], [[0, 1, 1], [3, IGNORED, IGNORED]]))
    assert (tally["right"], tally["seen"]) == (3, 4)
    right, wrong = math.log(math.e + 3) - 1, math.log(math.e + 3)
    assert tally["loss"] == pytest.approx(3 * right + wrong)


def test_only_owned_tokens_compete_where_it_is_said_which():
    """Token 2 scores 1 and is not owned: all score 0, so the first of them wins."""
    examples = said([[2, 2]], [[0, 2]])
    assert NextToken(4).tally(Scores(), examples)["right"] == 1
    masked = NextToken(4).tally(Scores(), examples, owned=[0, 1])
    assert masked["right"] == 1
    assert masked["loss"] == pytest.approx(2 * math.log(4))


def test_scores_of_tallies_by_hand():
    tallies = [{"right": 1, "seen": 3, "loss": 3.0}, {"right": 1, "seen": 1, "loss": 1.0}]
    assert NextToken(9).scores(tallies) == {"accuracy": 0.5, "loss": 1.0, "perplexity": math.e, "count": 4}
    assert NextToken(9).scores([]) == {"accuracy": None, "loss": None, "perplexity": None, "count": 0}
    assert NextToken(9).scores([{"right": 0, "seen": 1, "loss": 1e6}])["perplexity"] is None


def test_nobody_has_no_tokens():
    assert NextToken(4).tally(Scores(), NOTHING) == {"right": 0, "seen": 0, "loss": 0.0}


@pytest.mark.parametrize("vocabulary", [4, 1 << 19, 1 << 22, 1 << 25])
def test_however_few_rows_are_scored_at_once_all_are(vocabulary):
    """Rows of three tokens: 256 rows at once, 10, or one at a time."""
    many = said([[0, 1, 2]] * 300, [[0, 1, IGNORED]] * 300)
    assert NextToken(vocabulary).tally(Scores(), many)["seen"] == 600
