"""Counts the FLOPs of a forward and a backward pass, and the bytes that autograd keeps in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class PassCount:
    """What a forward pass and its backward pass take."""

    flops: int
    """Both passes: those of matrix products and convolutions."""
    forward_flops: int
    saved_bytes: int
    """The tensors that autograd saves for the backward pass; each storage counts once."""


def count_pass(forward: Callable[[], Tensor], held: Iterable[Tensor]) -> PassCount:
    """Counts a forward pass and the backward pass of the sum of its result. The tensors `held` do not count as saved.

    Gradients are left in the weights that require them.
    """
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            result = forward().sum()
        forward_flops = counter.get_total_flops()
        if result.requires_grad:
            # Not autograd.grad: it fails on a parameter that a layer gets as its input, under this counter's hooks.
            result.backward()  # type: ignore[no-untyped-call]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    for tensor in held:
        storages.pop(tensor.untyped_storage()._cdata, None)
    return PassCount(counter.get_total_flops(), forward_flops, sum(storages.values()))
