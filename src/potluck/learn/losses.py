"""Losses and gradient edits as frozen dataclasses with ``__call__``.

So an engine can send, stack or capture them. None of them reads a value from the GPU.
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
"""The label of positions that do not count, such as padding, where an example has many labels."""


@dataclass(frozen=True)
class CrossEntropy:
    """Mean cross-entropy of the network's logits, over all labels that count."""

    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(net(batch[self.inputs]), batch[self.labels])


@dataclass(frozen=True, eq=False)
class MaskedCrossEntropy:
    """Cross-entropy in which the logits of classes that a client does not own are zero (HeteroFL).

    Zero, not minus infinity: they still count in the softmax, but get no gradient.
    """

    owned: Tensor
    """A boolean for each class."""
    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(mask_logits(net(batch[self.inputs]), self.owned), batch[self.labels])


def cross_entropy(scores: Tensor, labels: Tensor, teacher: Tensor | None = None) -> Tensor:
    """Mean cross-entropy with the labels or, if a teacher's logits are given, with the teacher's probabilities.

    `scores` are logits of shape [batch, classes] with labels [batch], or [batch, length, classes] with labels
    [batch, length]. In the second case, positions whose label is `IGNORED` do not count.
    """
    if labels.dim() == 1:
        return functional.cross_entropy(scores, labels if teacher is None else teacher.softmax(1))
    flat, counts = labels.flatten(), labels.flatten() != IGNORED
    wanted = flat if teacher is None else teacher.flatten(0, -2).softmax(1)
    each = functional.cross_entropy(scores.flatten(0, -2), wanted, reduction="none")
    return (each * counts).sum() / counts.sum().clamp(min=1)


def class_mask(labels: Sequence[int], classes: int) -> Tensor:
    """A boolean for each class: whether it is among these labels."""
    mask = torch.zeros(classes, dtype=torch.bool)
    mask[list(labels)] = True
    return mask


def mask_logits(scores: Tensor, owned: Tensor) -> Tensor:
    """Logits, with zero for classes that are not owned."""
    return torch.where(owned.to(scores.device), scores, 0.0)


@dataclass(frozen=True, eq=False)
class Turns:
    """Several losses that take turns: `order` says which one each step uses."""

    losses: tuple[Loss, ...]
    order: tuple[int, ...]

    def turn(self, step: int) -> Loss:
        return self.losses[self.order[step]]

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        raise TypeError("a loss that takes turns must be asked for a step's own loss first")


Blend: TypeAlias = Callable[[Grads, Grads], Grads]
"""(gradients of the main loss, gradients of the second loss for its weights), both by name -> gradients of the step."""


@dataclass(frozen=True, eq=False)
class JointLoss:
    """Two losses in one step: a main loss for all weights, and a second loss for some of them.

    With `blend`, both gradients are taken at the same weights, and edits correct the main one before the blend.
    """

    main: Loss
    aside: Loss
    reach: str
    """The second loss trains the weights whose names begin with this."""
    blend: Blend | None
    """How the two gradients become one. None: the second loss takes its own step after the main loss."""

    def names_in_reach(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names, among these, of weights that the second loss trains."""
        return tuple(name for name in names if name.startswith(self.reach))

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        raise TypeError("a joint loss is two losses: the local loop takes their gradients one by one")


@dataclass(frozen=True, eq=False)
class BlendGradients:
    """The edit that blends the two gradients of a joint loss in one step."""

    aside: Grads
    blend: Blend

    def __call__(self, grads: Grads, weights: Grads) -> Grads:
        return self.blend(grads, self.aside)


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """FedProx's proximal term: the gradient of (strength / 2) * squared distance to the weights `towards`."""

    towards: Arrays
    strength: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        away = torch._foreach_sub([weights[name] for name in grads], [self.towards[name] for name in grads])
        torch._foreach_mul_(away, self.strength)
        return dict(zip(grads, torch._foreach_add(list(grads.values()), away), strict=True))
