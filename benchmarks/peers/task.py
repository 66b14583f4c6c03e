"""What every system is given: the workloads, their data, their networks, and how to say that a round is over.

Needs nothing but torch and numpy, because every peer imports it from an environment of its own.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

MARK = "@round"
CLASSES = 10
LR = 0.05


@dataclass(frozen=True)
class Work:
    """One workload. A round is one epoch of plain SGD on each client of the cohort, then their mean."""

    title: str
    net: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    cohort: int
    batch: int
    rounds: int
    """Rounds that are timed, after one that is not."""
    widths: tuple[float, ...] = ()
    """Client i has the width i modulo their number; none: all have the whole network."""


WORKS = {
    "W1": Work("LeNet, 28x28", "lenet", (1, 28, 28), 100, 600, 10, 32, rounds=5),
    "W2": Work("ResNet18, 32x32", "resnet18", (3, 32, 32), 100, 100, 10, 32, rounds=2),
    # Ten clients, so that every cohort holds every width twice and all systems do the same work.
    "W3": Work("ResNet18, five widths", "resnet18", (3, 32, 32), 10, 100, 10, 32, 2, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)),
    "W4": Work("MLP, 8x8", "mlp", (1, 8, 8), 10_000, 20, 200, 20, rounds=20),
}


def asked() -> tuple[Work, int, str]:
    """The workload, the number of rounds and the engine that the command line names; one thread from here on."""
    parser = argparse.ArgumentParser(description="One system on one workload; rounds.py runs this.")
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("rounds", type=int)
    parser.add_argument("engine", nargs="?", default="")
    found = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return WORKS[found.work], found.rounds, found.engine


def mark() -> None:
    """Tells whoever measures that a round is over."""
    print(MARK, flush=True)


@lru_cache(maxsize=1)
def data(work: Work) -> tuple[Tensor, Tensor]:
    """All clients' examples: noise, for speed does not depend on what the pixels show."""
    draw = torch.Generator().manual_seed(0)
    rows = work.clients * work.samples
    return torch.rand(rows, *work.shape, generator=draw), torch.randint(0, CLASSES, (rows,), generator=draw)


def shard(work: Work, client: int) -> tuple[Tensor, Tensor]:
    """One client's examples."""
    x, y = data(work)
    rows = slice(client * work.samples, (client + 1) * work.samples)
    return x[rows], y[rows]


def fit(net: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """One epoch as one would write it."""
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for rows in torch.randperm(len(y)).split(batch):
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def network(work: Work, width: float = 1.0) -> nn.Module:
    """The workload's network; its tensors have the shapes of Potluck's own, which `ours.py` checks."""
    return {"lenet": lenet, "resnet18": resnet18, "mlp": mlp}[work.net](work.shape, width)


def lenet(shape: tuple[int, ...], width: float) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def mlp(shape: tuple[int, ...], width: float) -> nn.Module:
    hidden = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), *hidden, nn.Linear(64, CLASSES))


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*convolution(before, after, 3, stride), nn.ReLU())
        self.second = nn.Sequential(*convolution(after, after, 3, 1))
        same = before == after and stride == 1
        self.around = nn.Identity() if same else nn.Sequential(*convolution(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(x)) + self.around(x))


def convolution(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)


def resnet18(shape: tuple[int, ...], width: float) -> nn.Module:
    sizes = [math.ceil(width * size) for size in (64, 64, 128, 256, 512)]
    blocks: list[nn.Module] = []
    for stage in range(4):
        before, after = sizes[stage : stage + 2]
        blocks += [Block(before, after, 2 if stage else 1), Block(after, after, 1)]
    stem = (*convolution(shape[0], sizes[0], 3, 1), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], CLASSES))
