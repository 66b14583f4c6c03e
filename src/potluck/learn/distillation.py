"""Distillation: training on the logits of other networks, which are a further column of the examples.

Logits of several networks are stacked as [networks, rows, classes].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Examples, Local

BATCH = 256
"""Rows in one forward pass."""


@dataclass(frozen=True)
class DistillationSettings(Local):
    """The settings of training on the server; each method sets its own defaults."""

    def __str__(self) -> str:
        changed = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return ", ".join(f"{name} {value}" for name, value, usual in changed if value != usual) or "as usual"


def predict_logits(net: nn.Module, examples: Examples) -> Tensor:
    """A network's logits for every row, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        parts = [net(examples[slice(at, at + BATCH)]["x"]) for at in range(0, len(examples), BATCH)]
    return torch.cat(parts).float()


def with_columns(examples: Examples, **more: Tensor) -> Examples:
    """These examples with further columns of the same length."""
    own = {name: examples.column(name) for name in examples.columns}
    where = next(iter(own.values())).device
    return Examples({**own, **{name: column.to(where) for name, column in more.items()}}, None, examples.prepare)


def random_inputs(count: int, shape: Sequence[int], seed: int, near: Examples) -> Examples:
    """`count` random normal inputs of this shape, drawn from a seed, on the device of the examples `near`."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return Examples({"x": x.to(next(iter(near.columns.values())).device)})


def mean_logits(logits: Tensor) -> Tensor:
    """The plain mean over networks (FedMD, FedDF)."""
    return logits.mean(0)


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)), row by row."""
    return functional.kl_div(logits.log_softmax(-1), target.log_softmax(-1), reduction="none", log_target=True).sum(-1)
