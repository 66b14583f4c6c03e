"""Two levels: weights descend losses that other numbers shape, and those numbers learn where that should lead.

The gradient of what comes out, through a few steps of descent, by reverse accumulation: states are kept, and the graph
of each step is built anew on the way back, so that memory holds one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Numbers: TypeAlias = Mapping[str, Tensor]
Objective: TypeAlias = Callable[[Numbers, Numbers], Tensor]
"""(weights, what shapes the loss) -> the scalar to descend."""


def through_steps(
    weights: Numbers, shaping: Numbers, steps: Sequence[Objective], rate: float | Tensor, outcome: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outcome after gradient steps of this rate down these losses, and its gradient by what shapes them.

    Nothing that is given is changed.
    """
    states = [weights]
    for step in steps:
        states.append(_descended(states[-1], shaping, step, rate))
    end = _live(states.pop())
    value = outcome(end, shaping)
    pull = dict(zip(end, torch.autograd.grad(value, list(end.values()), materialize_grads=True), strict=True))
    totals = {name: torch.zeros_like(tensor) for name, tensor in shaping.items()}
    for state, step in zip(reversed(states), reversed(steps), strict=True):
        by_weights, by_shaping = _back(state, shaping, step, pull)
        pull = _moved(pull, list(by_weights.values()), rate)
        totals = _moved(totals, list(by_shaping.values()), rate)
    return value.detach(), totals


def _descended(weights: Numbers, shaping: Numbers, loss: Objective, rate: float | Tensor) -> dict[str, Tensor]:
    live = _live(weights)
    grads = torch.autograd.grad(loss(live, shaping), list(live.values()), materialize_grads=True)
    return _moved(live, grads, rate)


def _back(
    weights: Numbers, shaping: Numbers, loss: Objective, pull: Numbers
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """How a step's gradient, seen along the pull, changes with the weights and with what shapes the loss."""
    inner, outer = _live(weights), _live(shaping)
    grads = torch.autograd.grad(loss(inner, outer), list(inner.values()), create_graph=True, materialize_grads=True)
    wanted = [*inner.values(), *outer.values()]
    # A loss that is linear in everything has gradients that depend on nothing.
    seen = [(grad, pull[name]) for name, grad in zip(inner, grads, strict=True) if grad.requires_grad]
    if seen:
        along, pulls = zip(*seen, strict=True)
        found = list(torch.autograd.grad(along, wanted, pulls, materialize_grads=True))
    else:
        found = [torch.zeros_like(tensor) for tensor in wanted]
    return dict(zip(inner, found[: len(inner)], strict=True)), dict(zip(outer, found[len(inner) :], strict=True))


def _moved(start: Numbers, grads: Sequence[Tensor], rate: float | Tensor) -> dict[str, Tensor]:
    """A step down gradients, of all at once."""
    begun = [tensor.detach() for tensor in start.values()]
    return dict(zip(start, torch._foreach_sub(begun, torch._foreach_mul(list(grads), rate)), strict=True))


def _live(numbers: Numbers) -> dict[str, Tensor]:
    return {name: tensor.detach().requires_grad_() for name, tensor in numbers.items()}
