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
    """Sets running statistics to the mean over the batches of one pass. Returns its rows; 0 without batch norm.

    Batches are of nearly equal size, because each counts alike. The network is called in the mode that it is in, and
    batch norm uses the statistics of the batch in training mode only.
    """
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]
    if not norms or not len(examples):
        return 0
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None  # PyTorch's cumulative average
    order = torch.randperm(len(examples), generator=rng)
    # At least two rows in each batch: one row may have no variance.
    batches = max(min(-(-len(examples) // batch), len(examples) // 2), 1)
    with torch.no_grad():
        for rows in order.tensor_split(batches):
            net(examples[rows]["x"])
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    return len(examples)
