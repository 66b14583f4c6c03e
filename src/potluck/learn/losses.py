"""Losses as values: frozen dataclasses with a ``__call__``, so that an engine can carry, stack or capture them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Batch, Loss

IGNORED = -100
"""A label that counts nowhere, where an example has many labels (what follows padding)."""


@dataclass(frozen=True)
class CrossEntropy:
    """Mean cross-entropy of the network's scores, over all labels that count."""

    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(net(batch[self.inputs]), batch[self.labels])


@dataclass(frozen=True, eq=False)
class MaskedCrossEntropy:
    """Cross-entropy in which classes that a client does not own score zero.

    Zero, not minus infinity: they still count in the normaliser, but no gradient reaches them (HeteroFL).
    """

    owned: Tensor
    """A truth value for each class."""
    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(masked(net(batch[self.inputs]), self.owned), batch[self.labels])


def cross_entropy(scores: Tensor, labels: Tensor, teacher: Tensor | None = None) -> Tensor:
    """Mean cross-entropy with the labels or, where a teacher's scores are given, with the teacher's answers.

    Scores are [batch, classes] with labels [batch], or [batch, length, classes] with labels [batch, length]; among
    the latter those that are `IGNORED` count neither way.
    """
    if labels.dim() == 1:
        return functional.cross_entropy(scores, labels if teacher is None else teacher.softmax(1))
    flat, counts = labels.flatten(), labels.flatten() != IGNORED
    wanted = flat if teacher is None else teacher.flatten(0, -2).softmax(1)
    each = functional.cross_entropy(scores.flatten(0, -2), wanted, reduction="none")
    return (each * counts).sum() / counts.sum().clamp(min=1)


def truths(labels: Sequence[int], classes: int) -> Tensor:
    """A truth value for each class: whether it is among these."""
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[list(labels)] = True
    return mask


def masked(scores: Tensor, owned: Tensor) -> Tensor:
    """Scores with those of classes that are not owned set to zero."""
    return torch.where(owned.to(scores.device), scores, 0.0)


@dataclass(frozen=True, eq=False)
class Turns:
    """A loss for each step: which of several it is, in order."""

    losses: tuple[Loss, ...]
    order: tuple[int, ...]

    def turn(self, step: int) -> Loss:
        return self.losses[self.order[step]]

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        raise TypeError("a loss that takes turns must be asked for a step's own loss first")
