"""Losses and gradient edits as values: frozen dataclasses with a ``__call__``.

So an engine can carry, stack or capture them. None of them asks a tensor for its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Arrays, Batch, Grads, Loss

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
        return cross_entropy(mask_logits(net(batch[self.inputs]), self.owned), batch[self.labels])


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


def class_mask(labels: Sequence[int], classes: int) -> Tensor:
    """A truth value for each class: whether it is among these."""
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[list(labels)] = True
    return mask


def mask_logits(scores: Tensor, owned: Tensor) -> Tensor:
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


Blend: TypeAlias = Callable[[Grads, Grads], Grads]
"""(gradients of the main loss, of the other loss for the weights it reaches), both by name -> gradients to descend."""


@dataclass(frozen=True, eq=False)
class JointLoss:
    """Two losses in one step: a main one for all weights, and one on the side for some of them.

    Both gradients are taken at the same weights. Edits correct the main one before the two are blended.
    """

    main: Loss
    aside: Loss
    reach: str
    """The second loss is for weights whose names begin with this."""
    blend: Blend | None
    """How the two gradients become one; None: not at all, the second loss takes its own step after the main one's."""

    def reached(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these weights that the second loss is for."""
        return tuple(name for name in names if name.startswith(self.reach))

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        raise TypeError("a joint loss is two losses: the local loop takes their gradients one by one")


@dataclass(frozen=True, eq=False)
class BlendGradients:
    """The edit that blends a joint loss's two gradients of one step."""

    aside: Grads
    blend: Blend

    def __call__(self, grads: Grads, weights: Grads) -> Grads:
        return self.blend(grads, self.aside)


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """Pulls weights back to where they were: the gradient of (strength / 2) * distance squared (FedProx)."""

    towards: Arrays
    strength: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {name: grad + self.strength * (weights[name] - self.towards[name]) for name, grad in grads.items()}
