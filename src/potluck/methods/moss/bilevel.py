"""Bilevel optimisation: the gradient of an outer loss through a few SGD steps on inner losses.

The inner losses depend on the weights and on meta-weights; the gradient is with respect to the meta-weights. It is
computed by reverse accumulation: the weights before each step are kept, and the graph of each step is built again on
the way back. So memory holds the graph of one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays

Objective: TypeAlias = Callable[[Arrays, Arrays], Tensor]
"""(weights, meta-weights) -> a scalar loss."""


def gradient_through_steps(
    weights: Arrays,
    meta: Arrays,
    inner: Sequence[Objective],
    lr: float | Tensor,
    outer: Objective,
    clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outer loss after one SGD step on each inner loss, and its gradient with respect to the meta-weights.

    `clip` is the largest norm of the inner gradients. The arguments are not changed.
    """
    states = [weights]
    for loss in inner:
        states.append(_sgd_step(states[-1], meta, loss, lr, clip))
    end = _leaves(states.pop())
    value = outer(end, meta)
    # The gradient of the outer loss with respect to the weights after the step at hand.
    adjoint = dict(zip(end, torch.autograd.grad(value, list(end.values()), materialize_grads=True), strict=True))
    total = {name: torch.zeros_like(tensor) for name, tensor in meta.items()}
    for state, loss in zip(reversed(states), reversed(inner), strict=True):
        by_weights, by_meta = _second_derivatives(state, meta, loss, adjoint, clip)
        adjoint = _subtract(adjoint, by_weights, lr)
        total = _subtract(total, by_meta, lr)
    return value.detach(), total


def _sgd_step(
    weights: Arrays, meta: Arrays, loss: Objective, lr: float | Tensor, clip: float | None
) -> dict[str, Tensor]:
    """The weights after one SGD step."""
    live = _leaves(weights)
    grads = torch.autograd.grad(loss(live, meta), list(live.values()), materialize_grads=True)
    return _subtract(live, _clipped(grads, clip), lr)


def _second_derivatives(
    weights: Arrays, meta: Arrays, loss: Objective, adjoint: Arrays, clip: float | None
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient of <adjoint, gradient of the loss>, with respect to the weights and to the meta-weights."""
    live, live_meta = _leaves(weights), _leaves(meta)
    value = loss(live, live_meta)
    grads = torch.autograd.grad(value, list(live.values()), create_graph=True, materialize_grads=True)
    wanted = [*live.values(), *live_meta.values()]
    # The gradients of a loss that is linear in everything are constants.
    dependent = [
        (grad, adjoint[name]) for name, grad in zip(live, _clipped(grads, clip), strict=True) if grad.requires_grad
    ]
    if dependent:
        outputs, vectors = zip(*dependent, strict=True)
        second = list(torch.autograd.grad(outputs, wanted, vectors, materialize_grads=True))
    else:
        second = [torch.zeros_like(tensor) for tensor in wanted]
    return second[: len(live)], second[len(live) :]


def _clipped(grads: Sequence[Tensor], most: float | None) -> Sequence[Tensor]:
    """Gradients scaled down to a total norm of at most `most`, by operations that can be differentiated."""
    if most is None:
        return grads
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    return [grad * scale for grad in grads]


def _subtract(start: Arrays, grads: Sequence[Tensor], lr: float | Tensor) -> dict[str, Tensor]:
    """start - lr * grads, for all tensors at once."""
    tensors = [tensor.detach() for tensor in start.values()]
    return dict(zip(start, torch._foreach_sub(tensors, torch._foreach_mul(list(grads), lr)), strict=True))


def _leaves(arrays: Arrays) -> dict[str, Tensor]:
    """The same tensors as leaves of a new graph."""
    return {name: tensor.detach().requires_grad_() for name, tensor in arrays.items()}
