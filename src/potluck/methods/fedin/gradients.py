"""How the two gradients of a FedIN step become one: of the client's own loss, and of the lent features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.core import Grads


@dataclass(frozen=True)
class SumGradients:
    """The aside's gradient plus a share of the main one's: FedIN's Equation 14."""

    share: float = 0.5
    rest: float = 0.5
    """The share for weights that the aside does not reach."""

    def __call__(self, main: Grads, aside: Grads) -> Grads:
        return {
            name: aside[name] + self.share * grad if name in aside else self.rest * grad for name, grad in main.items()
        }


@dataclass(frozen=True)
class ProjectGradients:
    """The gradient nearest to the aside's that does not point against the main one: FedIN's Equation 13, exactly.

    Where the two agree, the main gradient is left out altogether: so the equation says.
    """

    together: bool = False
    """One angle between all tensors as one long vector, instead of one for each tensor."""
    rest: float = 0.5
    """The share of the main gradient for weights that the aside does not reach."""

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
    """How much of the main gradient must be taken out: none where the two agree, or where there is no main one."""
    safe = torch.where(length > 0, length, 1.0)
    return torch.where((along < 0) & (length > 0), along / safe, 0.0)
