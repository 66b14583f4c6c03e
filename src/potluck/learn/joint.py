"""Two losses in one step: the gradients of both are taken at the same weights, then reconciled.

Chan et al. (FedIN, 2023) teach a network's middle from features that other clients lent, beside its own data. As every
loss is, these are values: nothing here asks a tensor for its number, so that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Batch, Grads, Loss

Blend: TypeAlias = Callable[[Grads, Grads], Grads]
"""(the main loss's gradients, the aside's for the weights it reaches), both by name -> the gradients to descend."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A main loss for all weights, and one on the side for some of them.

    Edits correct the main loss's gradients, before these meet the aside's.
    """

    main: Loss
    aside: Loss
    reach: str
    """The aside is for the weights whose names begin with this."""
    blend: Blend | None
    """How the two meet in one step; None: not at all, the aside takes a step of its own after the main loss's."""

    def reached(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these weights that the aside is for."""
        return tuple(name for name in names if name.startswith(self.reach))

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        raise TypeError("a joint loss is two: they are asked one by one, and their gradients then meet")


@dataclass(frozen=True)
class Sum:
    """The aside's gradient plus a share of the main one's: FedIN's Equation 14."""

    share: float = 0.5
    rest: float = 0.5
    """The share for weights that the aside does not reach."""

    def __call__(self, main: Grads, aside: Grads) -> Grads:
        return {
            name: aside[name] + self.share * grad if name in aside else self.rest * grad for name, grad in main.items()
        }


@dataclass(frozen=True)
class Project:
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
            name: aside[name] - _against(along[name], length[name]) * grad if name in aside else self.rest * grad
            for name, grad in main.items()
        }


def _against(along: Tensor, length: Tensor) -> Tensor:
    """How much of the main gradient must be taken out: none where the two agree, or where there is no main one."""
    safe = torch.where(length > 0, length, 1.0)
    return torch.where((along < 0) & (length > 0), along / safe, 0.0)


@dataclass(frozen=True, eq=False)
class Meeting:
    """The edit in which the main gradients meet the aside's of the same step."""

    aside: Grads
    blend: Blend

    def __call__(self, grads: Grads, weights: Grads) -> Grads:
        return self.blend(grads, self.aside)
