"""Losses as values: frozen dataclasses with a ``__call__``, so that an engine can carry, stack or capture them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Batch


@dataclass(frozen=True)
class CrossEntropy:
    """Mean cross-entropy of the network's scores."""

    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(net(batch[self.inputs]), batch[self.labels])
