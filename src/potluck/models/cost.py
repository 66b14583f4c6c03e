"""What a training step asks of a device, counted on networks without numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from potluck.core import Spec, Work
from potluck.models.families import FAMILIES
from potluck.models.skeleton import skeleton


def cost(spec: Spec, batch: int) -> Work:
    """FLOPs of forward and backward, and what must be held meanwhile, for a batch of this size.

    FLOPs are those of matrix products and convolutions. Activations are the tensors that autograd keeps for the
    backward pass, each storage once, the batch itself among them where a layer needs it.
    """
    (flops, held), (more_flops, more_held), weights = _counted(spec)
    return Work(
        flops=flops + (more_flops - flops) * (batch - 2),
        parameter_bytes=sum(size for _, size in weights),
        activation_bytes=held + (more_held - held) * (batch - 2),
        parameters=sum(count for count, _ in weights),
    )


@lru_cache(maxsize=1024)
def _counted(spec: Spec) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]]:
    """A step on two examples, a step on three (both counts are straight lines), and the parameters."""
    if spec.options.get("norm") == "counted":  # asks for numbers, which are not there; otherwise it works as running
        spec = replace(spec, options={**spec.options, "norm": "running"})
    net = skeleton(spec)
    shape: Any = spec.options["input"]
    dtype = torch.long if FAMILIES[spec.family].tokens else torch.float
    weights = tuple((tensor.numel(), tensor.nbytes) for tensor in net.parameters())
    two, three = (_step(net, torch.zeros(batch, *shape, dtype=dtype, device="meta")) for batch in (2, 3))
    return two, three, weights


def _step(net: nn.Module, batch: Tensor) -> tuple[int, int]:
    """FLOPs, and bytes kept for the backward pass."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = net(batch).sum()
        torch.autograd.grad(loss, list(net.parameters()))
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in kept}
    for tensor in (*net.parameters(), *net.buffers()):
        storages.pop(tensor.untyped_storage()._cdata, None)
    return counter.get_total_flops(), sum(storages.values())
