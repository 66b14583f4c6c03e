"""Scoring a network: how many rows at once, and counts that do not depend on it."""

import math

import pytest
import torch
from torch import nn

from potluck.core import Examples
from potluck.data.tokenizer import TrimPadding
from potluck.learn import Classify, NextToken, Regress, Tag, problems
from potluck.learn.problems import rows_at_once

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RUNNING, STATIC = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)


@pytest.mark.parametrize(
    ("net", "entries", "where", "rows"),
    [
        (RUNNING, 3 * 32 * 32, CPU, 256),
        (RUNNING, 3 * 32 * 32, GPU, 1024),
        (RUNNING, 64 * 64, GPU, 1024),
        (RUNNING, 3 * 64 * 64, GPU, 341),
        (RUNNING, 3 * 224 * 224, GPU, 256),
        (nn.Sequential(RUNNING, STATIC), 3 * 32 * 32, GPU, 256),
        (nn.Identity(), 0, GPU, 1024),
    ],
)
def test_a_gpu_scores_more_rows_at_once_unless_a_norm_depends_on_the_batch(net, entries, where, rows):
    assert rows_at_once(net, entries, where) == rows


def examples(rows, **columns):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    return Examples({"x": x, **{name: make(x) for name, make in columns.items()}})


@pytest.mark.parametrize("rows", [0, 1, 256, 600])
def test_classes_are_counted_over_all_batches(rows):
    """The network says the place of the largest entry, and labels are that place or, for the first third, class 0."""

    def labels(x):
        true = x.argmax(1)
        true[: len(x) // 3] = 0
        return true

    given = examples(rows, y=labels)
    tally = Classify(4, metric="f1").tally(nn.Identity(), given)
    x, true = given.column("x"), given.column("y")
    said = x.argmax(1)
    assert tally["seen"] == [int((true == label).sum()) for label in range(4)]
    assert tally["guessed"] == [int((said == label).sum()) for label in range(4)]
    assert tally["right"] == [int(((said == label) & (true == label)).sum()) for label in range(4)]
    assert tally["loss"] == pytest.approx(float(nn.functional.cross_entropy(x, true, reduction="sum")) if rows else 0)


def test_tokens_and_squared_errors_are_summed_over_all_batches():
    given = examples(600, y=lambda x: x.argmax(1))
    tokens = Examples({"x": given.column("x").view(150, 4, 4), "y": given.column("y").view(150, 4)})
    tally = NextToken(4).tally(nn.Identity(), tokens)
    assert (tally["right"], tally["seen"]) == (600, 600)
    assert NextToken(4).tally(nn.Identity(), examples(0, y=lambda x: x)) == {"right": 0, "seen": 0, "loss": 0.0}
    ones = Examples({"x": torch.ones(600, 1), "y": torch.zeros(600)})
    assert Regress().tally(nn.Identity(), ones)["loss"] == 600.0


WAITS = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts values that are read from tensors, each of which would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in WAITS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("problem", [Classify(4), NextToken(4), Tag(("O", "B-a", "I-a", "B-b"))])
def test_no_value_is_read_while_batches_are_scored(problem, monkeypatch):
    monkeypatch.setattr(problems, "BATCH", 10)
    given = examples(100, y=lambda x: x.argmax(1))
    if not isinstance(problem, Classify):
        given = Examples({"x": given.column("x").view(100, 1, 4), "y": given.column("y").view(100, 1)})
    with Reads() as reads:
        problem.tally(nn.Identity(), given)
    assert reads.count == 0


class Widths(nn.Module):
    """Notes how many tokens the rows of each batch have, padding among them; its scores count tokens 1 and 2."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.seen = nn.ModuleList(layers), []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(ids.shape))
        return torch.stack([(ids == token).sum(1).float() for token in (1, 2)], 1)


def texts(lengths):
    """Rows of so many tokens 1 (rows of an even length) or 2, padded with 0 to 20; the label is that token's class."""
    x = torch.zeros(len(lengths), 20, dtype=torch.long)
    for row, length in enumerate(lengths):
        x[row, :length] = 1 + length % 2
    return Examples({"x": x, "y": torch.tensor(lengths) % 2}, prepare=TrimPadding(0))


def test_texts_are_scored_in_the_order_of_their_lengths_so_that_little_is_padding(monkeypatch):
    monkeypatch.setattr(problems, "BATCH", 2)
    net, given = Widths(), texts([3, 12, 5, 4, 20])
    tally = Classify(2).tally(net, given)
    assert net.seen == [(2, 4), (2, 12), (1, 20)]
    assert (tally["right"], tally["seen"]) == ([3, 2], [3, 2])
    assert tally["loss"] == pytest.approx(sum(math.log1p(math.exp(-length)) for length in (3, 12, 5, 4, 20)))


def test_tags_are_scored_in_the_order_of_lengths_too(monkeypatch):
    monkeypatch.setattr(problems, "BATCH", 2)

    class Tags(Widths):
        def forward(self, ids):
            super().forward(ids)
            return nn.functional.one_hot(ids, 3).float()

    given = texts([9, 2, 7, 1])
    given = Examples({"x": given.column("x"), "y": given.column("x")}, prepare=given.prepare)
    net = Tags()
    assert Tag(("O", "B-a", "I-a")).tally(net, given)["right"] == 2 * 2 + 2 * 9
    assert net.seen == [(2, 2), (2, 9)]


def test_texts_keep_their_order_if_a_norm_depends_on_the_batch(monkeypatch):
    monkeypatch.setattr(problems, "BATCH", 2)
    net = Widths(nn.BatchNorm1d(3, track_running_stats=False))
    Classify(2).tally(net, texts([3, 12, 5, 4, 20]))
    assert net.seen == [(2, 12), (2, 5), (1, 20)]
