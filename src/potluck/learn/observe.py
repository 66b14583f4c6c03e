"""Looking at data without learning from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from potluck.core import Examples, Loss


def observe(net: nn.Module, examples: Examples, batch: int, loss: Loss, rng: torch.Generator) -> int:
    """One pass in training mode without gradients, so that norms gather statistics; the number of batches seen."""
    net.train()
    rows: list[Tensor] = list(torch.split(torch.randperm(len(examples), generator=rng), batch))
    with torch.no_grad():
        for some in rows:
            loss(net, examples[some])
    return len(rows)
