"""Gradient edits as values: small corrections inside the local loop, applied one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from potluck.core import Arrays, Grads


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """Pulls weights back towards where they were: the gradient of (strength / 2) * distance squared."""

    towards: Arrays
    strength: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {name: grad + self.strength * (weights[name] - self.towards[name]) for name, grad in grads.items()}
