"""Optimisers that update all tensors of a network at once: the arithmetic of torch.optim, with less overhead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from potluck.core import Local


class Optimiser(Protocol):
    """Updates weights in place."""

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None: ...

    def reset(self, lr: float) -> None:
        """Clears the state and sets the learning rate, for the next client or round."""


def make_optimiser(local: Local, lr: float, hardware: torch.device | None = None) -> Optimiser:
    """A new optimiser. On a GPU its learning rate and its state are tensors, so that a step can be captured."""
    if hardware is not None and hardware.type == "cuda":
        return make_fused_optimiser(local, lr, hardware)
    if local.optimiser == "adam":
        return _Adam(lr, local.betas, local.eps, local.weight_decay)
    return _Sgd(lr, local.momentum, local.weight_decay)


def make_fused_optimiser(local: Local, lr: float, hardware: torch.device) -> Optimiser:
    """A new optimiser with a fused step and all its state in tensors, so that a step can be captured."""
    return (_FusedAdam if local.optimiser == "adam" else _FusedSgd)(local, lr, hardware)


class _Sgd:
    def __init__(self, lr: float, momentum: float, decay: float) -> None:
        self.momentum, self.decay = momentum, decay
        self.reset(lr)

    def reset(self, lr: float) -> None:
        self.lr = lr
        self.velocity: list[Tensor] | None = None

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        if self.decay:
            grads = list(torch._foreach_add(grads, weights, alpha=self.decay))
        if self.momentum:
            if self.velocity is None:
                self.velocity = [grad.clone() for grad in grads]
            else:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, grads)
            grads = self.velocity
        torch._foreach_add_(weights, grads, alpha=-self.lr)


class _Adam:
    def __init__(self, lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
        self.betas, self.eps, self.decay = betas, eps, decay
        self.reset(lr)

    def reset(self, lr: float) -> None:
        self.lr, self.count = lr, 0
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


class _Fused:
    """The base of fused optimisers: the learning rate is a tensor; the state is allocated once and then zeroed."""

    slots = 0

    def __init__(self, local: Local, lr: float, hardware: torch.device) -> None:
        self.local = local
        self.lr = torch.tensor(lr, dtype=torch.float32, device=hardware)
        self.state: list[list[Tensor]] = []

    def reset(self, lr: float) -> None:
        self.lr.fill_(lr)
        for tensors in self.state:
            torch._foreach_zero_(tensors)

    def _align(self, weights: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """Gradients with the strides of their weights: a fused step works in memory order, not by index."""
        return [
            grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)
            for weight, grad in zip(weights, grads, strict=True)
        ]

    def _slots_for(self, weights: list[Tensor]) -> list[list[Tensor]]:
        if not self.state:
            self.state = [[torch.zeros_like(weight) for weight in weights] for _ in range(self.slots)]
        return self.state


class _FusedSgd(_Fused):
    def __init__(self, local: Local, lr: float, hardware: torch.device) -> None:
        super().__init__(local, lr, hardware)
        self.slots = int(local.momentum > 0)

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        velocities = self._slots_for(weights)[0] if self.slots else []
        torch._fused_sgd_(
            weights, self._align(weights, grads), velocities, lr=self.lr, momentum=self.local.momentum,
            weight_decay=self.local.weight_decay, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


class _FusedAdam(_Fused):
    slots = 2

    def __init__(self, local: Local, lr: float, hardware: torch.device) -> None:
        super().__init__(local, lr, hardware)
        self.count = torch.zeros((), dtype=torch.float32, device=hardware)

    def reset(self, lr: float) -> None:
        super().reset(lr)
        self.count.zero_()

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        means, squares = self._slots_for(weights)
        self.count.add_(1)
        first, second = self.local.betas
        torch._fused_adam_(
            weights, self._align(weights, grads), means, squares, [], [self.count] * len(weights), lr=self.lr,
            beta1=first, beta2=second, weight_decay=self.local.weight_decay, eps=self.local.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip


class SplitOptimiser:
    """Two new optimisers: `some` for chosen weights, which also take extra steps, and `rest` for the others."""

    def __init__(self, local: Local, lr: float, some: Sequence[bool], hardware: torch.device | None = None) -> None:
        self.chosen = list(some)
        self.some, self.rest = make_optimiser(local, lr, hardware), make_optimiser(local, lr, hardware)

    def reset(self, lr: float) -> None:
        self.some.reset(lr)
        self.rest.reset(lr)

    def __call__(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        for step, wanted in ((self.some, True), (self.rest, False)):
            at = [index for index, chosen in enumerate(self.chosen) if chosen is wanted]
            if at:
                step([weights[index] for index in at], [grads[index] for index in at])


def clip_gradients(grads: list[Tensor], most: float) -> list[Tensor]:
    """Gradients scaled down to a total norm of at most `most`, as in `clip_grad_norm_`."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    return list(torch._foreach_mul(grads, scale))


def displacement(local: Local, lr: float, steps: int, mu: float = 0.0) -> float:
    """The 1-norm of `a` in FedNova's paper: the distance of all steps, in learning rates, if every gradient is 1.

    Momentum makes it larger; a proximal term of strength `mu` makes it smaller. For Adam it is the number of steps.
    """
    if local.optimiser == "adam":
        return float(steps)
    back = lr * mu
    # One step: velocity = momentum * velocity - back * distance + 1; distance += velocity.
    once = torch.tensor(
        [[local.momentum, -back, 1.0], [local.momentum, 1.0 - back, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    return float(torch.linalg.matrix_power(once, steps)[1, 2])
