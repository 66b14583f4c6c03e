"""How FedIN combines the two gradients of a step: that of the client's own loss, and that of the lent features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.core import Grads


@dataclass(frozen=True)
class SumGradients:
    """The lent features' gradient (`aside`) plus a share of the client's own (`main`): FedIN's Equation 14."""

    share: float = 0.5
    rest: float = 0.5
    """The share of `main` for weights without an `aside` gradient."""

    def __call__(self, main: Grads, aside: Grads) -> Grads:
        shares = [self.share if name in aside else self.rest for name in main]
        combined = dict(zip(main, torch._foreach_mul(list(main.values()), shares), strict=True))
        torch._foreach_add_([combined[name] for name in aside], list(aside.values()))
        return combined


@dataclass(frozen=True)
class ProjectGradients:
    """The gradient nearest to `aside` that does not point against `main`: FedIN's Equation 13, exactly.

    Where the two agree, `main` is left out, as the equation says.
    """

    together: bool = False
    """Project all tensors as one long vector, not each tensor by itself."""
    rest: float = 0.5
    """The share of `main` for weights without an `aside` gradient."""

    def __call__(self, main: Grads, aside: Grads) -> Grads:
        length = {name: main[name].square().sum() for name in aside}
        along = {name: (main[name] * grad).sum() for name, grad in aside.items()}
        if self.together:
            length = dict.fromkeys(length, torch.stack(list(length.values())).sum())
            along = dict.fromkeys(along, torch.stack(list(along.values())).sum())
        return {
            name: aside[name] - _conflict(along[name], length[name]) * grad if name in aside else self.rest * grad
            for name, grad in main.items()
        }


def _conflict(along: Tensor, length: Tensor) -> Tensor:
    """How much of `main` to subtract: nothing where the two agree, or where `main` is zero."""
    safe = torch.where(length > 0, length, 1.0)
    return torch.where((along < 0) & (length > 0), along / safe, 0.0)
