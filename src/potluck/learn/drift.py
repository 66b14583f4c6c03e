"""What keeps clients from drifting apart: shifted gradients, contrasted features, and how far local steps carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Arrays, Batch, Grads, Local, Loss, Memory
from potluck.learn.values import Frozen


@dataclass(frozen=True, eq=False)
class Shift:
    """Adds the same to every gradient: SCAFFOLD's server variate minus the client's."""

    by: Arrays

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {name: grad + self.by[name] for name, grad in grads.items()}


def recalled(memory: Memory, key: str, like: Arrays) -> dict[str, Tensor]:
    """The arrays that a client remembers under a key, as far as they are shaped like these; zeros for the others."""
    kept = memory.get(key, {})
    return {
        name: kept[name] if name in kept and kept[name].shape == tensor.shape else torch.zeros_like(tensor)
        for name, tensor in like.items()
    }


@dataclass(frozen=True, eq=False)
class ContrastiveLoss:
    """A loss, plus a pull of the features towards one network's and away from another's (MOON).

    The features are what the last layer of the head is given: with a projection in the head, the projected ones.
    """

    own: Loss
    towards: Frozen
    away: Frozen
    strength: float
    temperature: float
    inputs: str = "x"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        with listening(net) as heard:
            own = self.own(net, batch)
        near, far = (self.features(other, batch) for other in (self.towards, self.away))
        return own + self.strength * contrast(heard[0], near, far, self.temperature)

    def features(self, other: Frozen, batch: Batch) -> Tensor:
        with listening(other.net) as heard:
            other(batch[self.inputs])
        return heard[0]


def contrast(features: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """The mean of -log(e^(cos(z, near) / T) / (e^(cos(z, near) / T) + e^(cos(z, far) / T))) over all z."""
    gap = functional.cosine_similarity(features, far, dim=-1) - functional.cosine_similarity(features, near, dim=-1)
    return functional.softplus(gap / temperature).mean()


@contextmanager
def listening(net: nn.Module) -> Iterator[list[Tensor]]:
    """What the last layer of a network's head is given, call by call, while this lasts."""
    head = net.get_submodule("head")
    heard: list[Tensor] = []
    layer = head[-1] if isinstance(head, nn.Sequential) else head
    handle = layer.register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    try:
        yield heard
    finally:
        handle.remove()


def carried(local: Local, lr: float, steps: int, mu: float = 0.0) -> float:
    """How far so many steps carry, in learning rates, if every gradient is one: FedNova's norm of a.

    Momentum carries further; a pull of strength `mu` back to the start holds back. Under Adam it is the steps.
    """
    if local.optimiser == "adam":
        return float(steps)
    back = lr * mu
    # A step maps (pace, distance, 1) to itself: pace = momentum * pace - back * distance + 1; distance += pace.
    once = torch.tensor(
        [[local.momentum, -back, 1.0], [local.momentum, 1.0 - back, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64
    )
    return float(torch.linalg.matrix_power(once, steps)[1, 2])
