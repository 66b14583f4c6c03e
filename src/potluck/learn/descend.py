"""Optimiser steps over all tensors of a network at once, the arithmetic of torch.optim without its bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from potluck.core import Local

Step: TypeAlias = Callable[[list[Tensor], list[Tensor]], None]
"""(weights, gradients) -> weights moved in place."""


def stepper(local: Local, lr: float) -> Step:
    """A fresh optimiser: what one client uses for one round."""
    if local.optimiser == "adam":
        return _Adam(lr, local.betas, local.eps, local.weight_decay)
    return _Sgd(lr, local.momentum, local.weight_decay)


class _Sgd:
    def __init__(self, lr: float, momentum: float, decay: float) -> None:
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.pace: list[Tensor] | None = None

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        if self.decay:
            grads = list(torch._foreach_add(grads, weights, alpha=self.decay))
        if self.momentum:
            if self.pace is None:
                self.pace = [grad.clone() for grad in grads]
            else:
                torch._foreach_mul_(self.pace, self.momentum)
                torch._foreach_add_(self.pace, grads)
            grads = self.pace
        torch._foreach_add_(weights, grads, alpha=-self.lr)


class _Adam:
    def __init__(self, lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, decay
        self.count = 0
        self.means: list[Tensor] = []
        self.squares: list[Tensor] = []

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        if not self.count:
            self.means = [torch.zeros_like(weight) for weight in weights]
            self.squares = [torch.zeros_like(weight) for weight in weights]
        self.count += 1
        first, second = self.betas
        if self.decay:
            grads = list(torch._foreach_add(grads, weights, alpha=self.decay))
        torch._foreach_lerp_(self.means, grads, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, grads, grads, 1 - second)
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(roots, (1 - second**self.count) ** 0.5)
        torch._foreach_add_(roots, self.eps)
        torch._foreach_addcdiv_(weights, self.means, roots, -self.lr / (1 - first**self.count))


class Apart:
    """Two fresh optimisers: `some` for weights that also take steps of their own, the other for the rest."""

    def __init__(self, local: Local, lr: float, some: Sequence[bool]) -> None:
        self.chosen = list(some)
        self.some, self.rest = stepper(local, lr), stepper(local, lr)

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        for step, wanted in ((self.some, True), (self.rest, False)):
            at = [index for index, chosen in enumerate(self.chosen) if chosen is wanted]
            if at:
                step([weights[index] for index in at], [grads[index] for index in at])


def clipped(grads: list[Tensor], most: float) -> list[Tensor]:
    """Gradients scaled so that their common norm is at most this, as `clip_grad_norm_` scales them."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    return list(torch._foreach_mul(grads, scale))
