"""Learning through outputs: what networks say about public rows, what is made of many answers, and losses against it.

Scores of several networks are stacked as [networks, rows, classes]. What a row's target is travels as a column beside
the examples, so that a batch brings its own; nothing here asks a tensor for its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Batch, Examples, Local

BATCH = 256
"""Rows that a network is asked about at once."""
LEAST = 1e-6
"""The smallest entropy that is told from none."""


@dataclass(frozen=True)
class DistillationSettings(Local):
    """Training beside the clients' own, with defaults of its method's; told in short."""

    def __str__(self) -> str:
        told = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return ", ".join(f"{name} {value}" for name, value, usual in told if value != usual) or "as usual"


def predict_logits(net: nn.Module, examples: Examples) -> Tensor:
    """A network's scores for every row, as in evaluation."""
    net.eval()
    with torch.no_grad():
        parts = [net(examples[slice(at, at + BATCH)]["x"]) for at in range(0, len(examples), BATCH)]
    return torch.cat(parts).float()


def with_columns(examples: Examples, **more: Tensor) -> Examples:
    """These examples with further columns, a row of each for each of theirs."""
    own = {name: examples.column(name) for name in examples.columns}
    where = next(iter(own.values())).device
    return Examples({**own, **{name: column.to(where) for name, column in more.items()}}, None, examples.prepare)


def noise(count: int, shape: Sequence[int], seed: int, near: Examples) -> Examples:
    """So many random inputs of this shape, the seed's, in the place where other examples are."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return Examples({"x": x.to(next(iter(near.columns.values())).device)})


def mean_scores(scores: Tensor) -> Tensor:
    """What networks say on average (FedMD, FedDF)."""
    return scores.mean(0)


def sharpened(answers: Tensor, temperature: float) -> Tensor:
    """Probabilities of less entropy: a softmax of probabilities, not of scores (DS-FL's ERA)."""
    return (answers / temperature).softmax(-1)


def reliance(entropy: Tensor, right: Tensor, exclude: bool = False) -> Tensor:
    """How much each network counts for each row, [networks, rows]: a softmax of one over its entropy (FedGEMS).

    A network that is wrong about a row has zero there before the softmax, which is still a weight above zero; with
    `exclude` it has none, unless all are wrong.
    """
    reasons = torch.where(right, 1 / entropy.clamp(min=LEAST), 0.0)
    if exclude:
        reasons = torch.where(right | ~right.any(0), reasons, -torch.inf)
    return reasons.softmax(0)


def relied(scores: Tensor, labels: Tensor, exclude: bool = False) -> Tensor:
    """What networks say, each as much as it can be relied on."""
    entropy = torch.special.entr(scores.softmax(-1)).sum(-1)
    return (reliance(entropy, scores.argmax(-1) == labels, exclude)[..., None] * scores).sum(0)


def confidence(scores: Tensor) -> Tensor:
    """Each network's share in each row, [networks, rows]: by the variance of its scores over classes (Fed-ET)."""
    return _shares(scores.var(-1))


def agreed(scores: Tensor) -> Tensor:
    """What networks say, each by its confidence."""
    return (confidence(scores)[..., None] * scores).sum(0)


def dissenting(scores: Tensor) -> tuple[Tensor, Tensor]:
    """What those networks say, by their confidence, that would not choose what all agree on; and where there are any.

    Where there are none, zeros.
    """
    others = scores.argmax(-1) != agreed(scores).argmax(-1)
    shares = _shares(torch.where(others, confidence(scores), 0.0)) * others
    return (shares[..., None] * scores).sum(0), others.any(0)


def _shares(weights: Tensor) -> Tensor:
    """Weights that sum to one over networks; all alike where there are none."""
    total = weights.sum(0)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 1 / len(weights))


def divergence(target: Tensor, scores: Tensor) -> Tensor:
    """KL from softmax(scores) to softmax(target), row by row."""
    return functional.kl_div(scores.log_softmax(-1), target.log_softmax(-1), reduction="none", log_target=True).sum(-1)


@dataclass(frozen=True)
class Mimic:
    """Mean absolute error of scores against others (FedMD's digest)."""

    inputs: str = "x"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.l1_loss(net(batch[self.inputs]), batch[self.target])


@dataclass(frozen=True)
class Follow:
    """Divergence from a teacher's answers, given as scores; labels are not looked at (FedDF)."""

    inputs: str = "x"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return divergence(batch[self.target], net(batch[self.inputs])).mean()


@dataclass(frozen=True)
class SoftCrossEntropy:
    """Cross-entropy with probabilities in place of labels (DS-FL)."""

    inputs: str = "x"
    target: str = "answers"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(net(batch[self.inputs]), batch[self.target])


@dataclass(frozen=True)
class Guided:
    """A share of cross-entropy with the labels, the rest divergence from a teacher's scores (FedGEMS)."""

    share: float
    selective: bool = False
    """Rows that the network already gets right have cross-entropy alone: the teacher is asked about the others."""
    inputs: str = "x"
    labels: str = "y"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        scores, labels = net(batch[self.inputs]), batch[self.labels]
        own = functional.cross_entropy(scores, labels, reduction="none")
        mixed = self.share * own + (1 - self.share) * divergence(batch[self.target], scores)
        if not self.selective:
            return mixed.mean()
        return torch.where(scores.argmax(-1) == labels, own, mixed).mean()


@dataclass(frozen=True)
class Doubt:
    """Cross-entropy with what others agree on, and a little divergence from those who dissent, if any do (Fed-ET)."""

    strength: float
    inputs: str = "x"
    labels: str = "agreed"
    target: str = "doubts"
    where: str = "doubted"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        scores = net(batch[self.inputs])
        doubts = torch.where(batch[self.where], divergence(batch[self.target], scores), 0.0)
        return functional.cross_entropy(scores, batch[self.labels]) + self.strength * doubts.mean()
