"""Losses and edits of masked networks: which weights, filters and layers gradients go through to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.core import Arrays, Batch, Grads, Loss


@dataclass(frozen=True, eq=False)
class Only:
    """Lets gradients through to the entries of these masks alone; a tensor without one trains entire."""

    masks: Arrays

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {
            name: torch.where(self.masks[name], grad, 0.0) if name in self.masks else grad
            for name, grad in grads.items()
        }


@dataclass(frozen=True, eq=False)
class Shrink:
    """Pulls whole rows of these tensors towards zero: the gradient of strength x the sum of their lengths."""

    names: tuple[str, ...]
    strength: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        pulls = {name: self.strength * unit_rows(weights[name]) for name in self.names}
        return {name: grad + pulls[name] if name in pulls else grad for name, grad in grads.items()}


def unit_rows(weight: Tensor) -> Tensor:
    """A tensor with each row scaled to length one; a row of zeros stays."""
    lengths: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1).clamp(min=1e-12)
    return weight / lengths.reshape(-1, *[1] * (weight.dim() - 1))


@dataclass(frozen=True, eq=False)
class Through:
    """A loss of the network whose weights are these where the live scores say so, and zero elsewhere."""

    own: Loss
    weights: Arrays
    """Every trained tensor of the network, frozen."""
    masked: tuple[str, ...]
    """Those in whose place the live network has scores."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        live = dict(net.named_parameters())
        worn = {name: w * straight(live[name]) if name in self.masked else w for name, w in self.weights.items()}
        worn_net: Any = partial(functional_call, net, worn)
        return self.own(worn_net, batch)


def straight(scores: Tensor) -> Tensor:
    """One where sigmoid(score) is at least a half, else zero; its gradient is the sigmoid's."""
    soft = torch.sigmoid(scores)
    return (scores >= 0).to(scores.dtype) + (soft - soft.detach())


@dataclass(frozen=True, eq=False)
class Skeletal:
    """A loss from which gradients reach only the outputs of some units; what the network says is unchanged."""

    own: Loss
    live: Arrays
    """By layer, truth values that broadcast over its output."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        def muted(live: Tensor, _: nn.Module, __: Any, said: Tensor) -> Tensor:
            return torch.where(live, said, said.detach())

        with hooked(net, {path: partial(muted, live) for path, live in self.live.items()}):
            return self.own(net, batch)


@contextmanager
def hooked(net: nn.Module, hooks: Mapping[str, Any]) -> Iterator[None]:
    """While this lasts, each of these layers passes its output through a hook."""
    handles = [net.get_submodule(path).register_forward_hook(hook) for path, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
