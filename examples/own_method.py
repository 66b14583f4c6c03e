"""A method of your own: FedAvg in which clients count by the root of their samples, and gradient entries are clipped.

python examples/own_method.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import potluck as pl
from potluck.core import Device, Edit, Grads, Reply, Task, Zoo
from potluck.methods import FedAvg


@dataclass(frozen=True)
class ClipEntries:
    """A gradient edit is a value too: this one clips large entries."""

    most: float

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {name: torch.clamp(grad, -self.most, self.most) for name, grad in grads.items()}


@dataclass(frozen=True)
class RootAvg(FedAvg):
    """The fields are the settings. What the method does differently are the overridden functions."""

    power: float = 0.5
    most: float = 0.1

    def weigh(self, reply: Reply, zoo: Zoo) -> float:
        return float(reply.weight**self.power)

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        return (ClipEntries(self.most),)


settings = {
    "name": "own-method",
    "rounds": 10,
    "data": {"clients": 20, "partition": "dirichlet"},
    "model": {"name": "cnn", "depth": 2},
    "tier": [{"name": "small", "depth": 1}, {"name": "large", "depth": 2}],
}
print(f"RootAvg {pl.run(settings, method=RootAvg(share='layerwise')).accuracy:.1%}")
