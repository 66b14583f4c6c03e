"""Recalibration: batch norm statistics are gathered anew on the public rows.

A transfer changes a student's weights in a few steps. Running statistics follow more slowly, so in evaluation mode the
student would be normalised by those of older weights.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from potluck.core import Examples


def recalibrate(net: nn.Module, examples: Examples, batch: int, rng: torch.Generator) -> int:
    """Sets running statistics to the mean over the batches of one pass, in the network's own mode. Returns its rows.

    Batches are of nearly equal size, because each counts alike. Without at least two rows, or without batch norm in
    training mode, nothing happens: it returns 0.
    """
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.training]
    norms = [layer for layer in norms if layer.running_mean is not None]
    if not norms or len(examples) < 2:
        return 0
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # PyTorch's cumulative average
    order = torch.randperm(len(examples), generator=rng)
    # At least two rows in each batch: one row may have no variance.
    batches = max(min(-(-len(examples) // batch), len(examples) // 2), 1)
    try:
        with torch.no_grad():
            for rows in order.tensor_split(batches):
                net(examples[rows]["x"])
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
    return len(examples)
