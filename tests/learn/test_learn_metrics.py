"""Scores other than accuracy, by hand and against scikit-learn and NumPy."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from potluck.core import Examples
from potluck.learn import Classify, Regress, Tag
from potluck.learn.losses import IGNORED
from potluck.learn.metrics import class_f1, entities, f1, matthews, merge_moments, moments, pearson
from potluck.learn.problems import SquaredError


class Says(nn.Module):
    """A network that gives its inputs back: scores, or a column of numbers."""

    def forward(self, x):
        return x


def said_of(classes, said, true):
    return Examples({"x": torch.eye(classes)[said], "y": torch.tensor(true)})


def test_f1_precision_and_recall_by_hand():
    assert f1(right=3, seen=6, guessed=4) == {"f1": 0.6, "precision": 0.75, "recall": 0.5}
    assert f1(0, 0, 0) == {"f1": 0, "precision": 0, "recall": 0}


def test_f1_of_two_classes_is_that_of_class_1():
    # Class 1: six there, four said, three of them rightly.
    assert class_f1([3, 3], [4, 6], [6, 4]) == f1(3, 6, 4)


def test_f1_of_more_classes_is_the_mean_over_those_that_occur_or_were_said():
    found = class_f1([2, 0, 1, 0], [2, 2, 1, 0], [3, 0, 2, 0])
    assert found["f1"] == pytest.approx((4 / 5 + 0 + 2 / 3) / 3)
    assert found["precision"] == pytest.approx((2 / 3 + 0 + 1 / 2) / 3)
    assert found["recall"] == pytest.approx((1 + 0 + 1) / 3)


def test_matthews_by_hand():
    # 6 true positives, 3 true negatives, 1 false positive, 2 false negatives: (6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5).
    assert matthews([3, 6], [4, 8], [5, 7]) == pytest.approx(16 / math.sqrt(7 * 8 * 4 * 5))
    assert matthews([4, 8], [4, 8], [4, 8]) == 1
    assert matthews([0, 0], [5, 5], [5, 5]) == -1
    assert matthews([0, 8], [4, 8], [0, 12]) == 0  # always the same answer
    assert matthews([0, 0], [0, 0], [0, 0]) == 0


@pytest.mark.parametrize("classes", [2, 5])
def test_a_classifiers_scores_are_scikit_learns(classes):
    rng = np.random.default_rng(classes)
    true, said = rng.integers(0, classes, 300), rng.integers(0, classes, 300)
    said[:150] = true[:150]
    problem = Classify(classes, "matthews")
    halves = [said_of(classes, said[part].tolist(), true[part].tolist()) for part in (slice(0, 99), slice(99, None))]
    found = problem.scores([problem.tally(Says(), half) for half in halves])
    how = "binary" if classes == 2 else "macro"
    assert found["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(true, said))
    assert found["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(true, said))
    assert found["f1"] == pytest.approx(sklearn.metrics.f1_score(true, said, average=how))
    assert found["precision"] == pytest.approx(sklearn.metrics.precision_score(true, said, average=how))
    assert found["recall"] == pytest.approx(sklearn.metrics.recall_score(true, said, average=how))


ANSWERS = st.integers(2, 5).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=30),
        st.integers(0, 30),
    )
)
"""A number of classes, pairs of a true and a predicted class, and where the rows are parted."""


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
@example((2, [(0, 0)], 0))  # class 1 neither occurs nor is predicted
@example((2, [(0, 1), (0, 1)], 1))  # nothing is right
@example((4, [(1, 1), (1, 3)], 1))  # two classes are absent, one is only predicted
def test_scores_are_scikit_learns_whatever_the_answers_and_however_they_are_divided(drawn):
    classes, pairs, middle = drawn
    true, said = ([pair[side] for pair in pairs] for side in (0, 1))
    problem = Classify(classes, "f1")
    parts = [said_of(classes, said[part], true[part]) for part in (slice(middle), slice(middle, None)) if true[part]]
    found = problem.scores([problem.tally(Says(), part) for part in parts])
    how = {"average": "binary"} if classes == 2 else {"average": "macro"}
    precision, recall, f1_, _ = sklearn.metrics.precision_recall_fscore_support(true, said, zero_division=0.0, **how)
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx([precision, recall, f1_], abs=1e-12)
    assert found["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(true, said))
    if len({*true, *said}) > 1:  # of a single class scikit-learn warns
        assert found["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(true, said), abs=1e-12)


def test_a_classifier_judged_by_accuracy_counts_no_more_than_before():
    assert set(Classify(2).tally(Says(), said_of(2, [0, 1], [0, 0]))) == {"right", "seen", "loss"}
    none = Classify(2, "f1").scores([])
    assert (none["f1"], none["matthews"], none["accuracy"]) == (None, None, None)


def test_pearson_by_hand():
    # Deviations -1, 0, 1 and -2, 1, 1: products 2, 0, 1, squares 2 and 6.
    assert pearson(moments([1, 2, 3], [0, 3, 3])) == pytest.approx(3 / math.sqrt(12))
    assert pearson(moments([1, 2], [5, 4])) == pytest.approx(-1)
    assert pearson(moments([7, 7, 7], [1, 2, 3])) == 0
    assert pearson(moments([1], [1])) is None
    assert pearson(moments([], [])) is None
    assert pearson(moments([1, math.nan, 3], [1, 2, 3])) is None


def test_moments_of_parts_join_to_those_of_all_even_far_from_zero():
    rng = np.random.default_rng(0)
    true = 1e7 + rng.normal(size=500)
    said = true + rng.normal(size=500)
    parts = [moments(said[at : at + 77].tolist(), true[at : at + 77].tolist()) for at in range(0, 500, 77)]
    assert pearson(merge_moments([moments([], []), *parts])) == pytest.approx(np.corrcoef(said, true)[0, 1], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(-50, 50)] * 2), min_size=2, max_size=30), st.integers(0, 30))
@example([(1, 1), (1, 2)], 1)  # predictions that are all the same
def test_pearson_is_numpys_however_the_pairs_are_divided(pairs, middle):
    parts = [moments(*zip(*part, strict=True)) for part in (pairs[:middle], pairs[middle:]) if part]
    said, true = np.array(pairs).T
    wanted = np.corrcoef(said, true)[0, 1] if said.std() and true.std() else 0.0
    assert pearson(merge_moments(parts)) == pytest.approx(wanted, abs=1e-9)


def test_a_number_is_learned_by_its_squared_error_and_judged_by_pearson():
    examples = Examples({"x": torch.tensor([[1.0], [2.0], [3.0]]), "y": torch.tensor([0.0, 3.0, 3.0])})
    assert Regress().loss == SquaredError()
    assert Regress().loss(Says(), examples.all()).item() == pytest.approx(2 / 3)
    found = Regress().scores([Regress().tally(Says(), examples.pick(torch.tensor(rows))) for rows in ([0, 1], [2])])
    assert found == {"pearson": pytest.approx(3 / math.sqrt(12)), "loss": pytest.approx(2 / 3), "count": 3}
    assert Regress().scores([]) == {"pearson": None, "loss": None, "count": 0}


@pytest.mark.parametrize(
    ("tags", "marked"),
    [
        ("B-x I-x O B-y", {("x", 0, 1), ("y", 3, 3)}),
        ("B-x B-x I-x", {("x", 0, 0), ("x", 1, 2)}),  # a new B ends the entity before
        ("O I-x I-x O", {("x", 1, 2)}),  # an I that follows nothing begins one
        ("B-x I-y I-y", {("x", 0, 0), ("y", 1, 2)}),  # so does an I of another kind
        ("I-x B-x", {("x", 0, 0), ("x", 1, 1)}),
        ("B-x-ray I-x-ray", {("x-ray", 0, 1)}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_entities_are_read_off_bio_tags_as_seqeval_reads_them(tags, marked):
    assert entities(tags.split()) == marked


NAMES = ("O", "B-x", "I-x", "B-y", "I-y")


def tagged(*rows):
    """Rows of pairs of tags, said and true; a blank truth counts nowhere."""
    length = max(map(len, rows))
    x, y = torch.zeros(len(rows), length, len(NAMES)), torch.full((len(rows), length), IGNORED)
    for row, pairs in enumerate(rows):
        for place, (said, true) in enumerate(pairs):
            x[row, place, NAMES.index(said)] = 1
            y[row, place] = NAMES.index(true) if true else IGNORED
    return Examples({"x": x, "y": y})


def test_tags_are_judged_by_whole_entities_and_tokens_without_a_tag_are_passed_over():
    rows = tagged(
        # The middle token is inside a word: what is said there neither breaks nor makes an entity.
        [("O", "O"), ("B-x", "B-x"), ("B-y", ""), ("I-x", "I-x"), ("B-y", "B-y")],
        # An entity that ends too early is no hit; one that is not there is a false one.
        [("B-x", "B-x"), ("O", "I-x"), ("B-y", "O")],
    )
    tally = Tag(NAMES).tally(Says(), rows)
    assert tally["entities"] == {"x": [1, 2, 2], "y": [1, 1, 2]}
    assert (tally["right"], tally["seen"]) == (5, 7)
    found = Tag(NAMES).scores([tally])
    assert (found["precision"], found["recall"], found["f1"]) == (2 / 4, 2 / 3, 4 / 7)
    assert found["per_entity"]["x"] == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "count": 2}
    assert found["per_entity"]["y"] == {"f1": 2 / 3, "precision": 0.5, "recall": 1.0, "count": 1}
    assert (found["accuracy"], found["count"]) == (5 / 7, 7)
    right, wrong = math.log(math.e + 4) - 1, math.log(math.e + 4)
    assert found["loss"] == pytest.approx((5 * right + 2 * wrong) / 7)


TAGS = st.sampled_from(NAMES)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=5))
@example([[("I-x", "I-x"), ("I-y", "B-x")]])  # entities that begin with I, and that follow each other at once
@example([[("O", "O")]])  # no entities at all
@example([[("B-x", "O")], [("O", "B-y")]])  # a kind that is only predicted, and one that is only there
def test_scores_of_entities_are_seqevals_whatever_the_tags(rows):
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling", reason="needs the package seqeval")
    said, true = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    for row in (*said, *true):
        assert sorted(entities(row)) == sorted(seqeval.get_entities(row))
    found = Tag(NAMES).scores([Tag(NAMES).tally(Says(), tagged(row)) for row in rows])
    how = {"zero_division": 0, "average": "micro"}
    precision, recall, f1_, _ = seqeval.precision_recall_fscore_support(true, said, **how)
    assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx([precision, recall, f1_], abs=1e-12)


def test_entities_do_not_reach_from_one_row_into_the_next():
    rows = tagged([("B-x", "B-x")], [("I-x", "I-x")])
    assert Tag(NAMES).tally(Says(), rows)["entities"]["x"] == [2, 2, 2]


def test_tallies_of_tags_add_up_and_nobody_has_no_score():
    one, two = tagged([("B-x", "B-x"), ("O", "O")]), tagged([("B-x", "O"), ("B-y", "B-y")])
    found = Tag(NAMES).scores([Tag(NAMES).tally(Says(), each) for each in (one, two)])
    assert (found["f1"], found["precision"], found["count"]) == (0.8, 2 / 3, 4)
    assert Tag(NAMES).scores([])["f1"] is None
    assert Tag(("O",)).scores([])["f1"] is None


def test_tags_that_a_client_does_not_own_are_out_of_the_running():
    rows = tagged([("B-y", "O")])
    assert Tag(NAMES).tally(Says(), rows)["right"] == 0
    assert Tag(NAMES).tally(Says(), rows, owned=[0, 1, 2])["entities"]["y"] == [0, 0, 0]
