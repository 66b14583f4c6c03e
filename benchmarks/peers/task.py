"""What every system is given: the workloads, their data, their networks, and how to say that a round is over.

Needs nothing but torch and numpy, because every peer imports it from an environment of its own.
"""

from __future__ import annotations

import argparse
import math
import sys
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
    hardware: str = "cpu"


WORKS = {
    "W1": Work("LeNet, 28x28", "lenet", (1, 28, 28), 100, 600, 10, 32, rounds=5),
    "W2": Work("ResNet18, 32x32", "resnet18", (3, 32, 32), 100, 100, 10, 32, rounds=2),
    # Ten clients, so that every cohort holds every width twice and all systems do the same work.
    "W3": Work("ResNet18, five widths", "resnet18", (3, 32, 32), 10, 100, 10, 32, 2, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)),
    "W4": Work("MLP, 8x8", "mlp", (1, 8, 8), 10_000, 20, 200, 20, rounds=20),
    "W5": Work("PreResNet18, 32x32, on a GPU", "preresnet18", (3, 32, 32), 100, 500, 10, 10, 5, hardware="cuda"),
    "W5m": Work(
        *("PreResNet18, five widths, on a GPU", "preresnet18", (3, 32, 32), 10, 500, 10, 10, 5),
        *((1, 1 / 2, 1 / 4, 1 / 8, 1 / 16), "cuda"),
    ),
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
    """Tells whoever measures that a round is over, and waits until it is noted."""
    print(MARK, flush=True)
    sys.stdin.readline()


@lru_cache(maxsize=1)
def data(work: Work) -> tuple[Tensor, Tensor]:
    """All clients' examples: noise, for speed does not depend on what the pixels show."""
    draw = torch.Generator().manual_seed(0)
    rows = work.clients * work.samples
    return torch.rand(rows, *work.shape, generator=draw), torch.randint(0, CLASSES, (rows,), generator=draw)


@lru_cache(maxsize=1)
def moved(work: Work) -> tuple[Tensor, Tensor]:
    x, y = data(work)
    return x.to(work.hardware), y.to(work.hardware)


def shard(work: Work, client: int) -> tuple[Tensor, Tensor]:
    """One client's examples, where the networks are."""
    x, y = moved(work)
    rows = slice(client * work.samples, (client + 1) * work.samples)
    return x[rows], y[rows]


def fit(net: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    """One epoch as one would write it."""
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for rows in torch.randperm(len(y)).to(y.device).split(batch):
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def network(work: Work, width: float = 1.0) -> nn.Module:
    """The workload's network; its tensors have the shapes of Potluck's own, which `ours.py` checks."""
    known = {"lenet": lenet, "resnet18": resnet18, "mlp": mlp, "preresnet18": preresnet18}
    return known[work.net](work.shape, width).to(work.hardware)


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


def ready(channels: int) -> nn.Module:
    """A norm without running statistics, and a ReLU."""
    return nn.Sequential(nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU())


class PreBlock(nn.Module):
    """Two pre-activated 3x3 convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.enter, self.between = ready(before), ready(after)
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.around = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.enter(x)
        beside: Tensor = x if self.around is None else self.around(entered)
        return beside + self.second(self.between(self.first(entered)))


def preresnet18(shape: tuple[int, ...], width: float) -> nn.Module:
    sizes = [math.ceil(width * size) for size in (64, 64, 128, 256, 512)]
    blocks: list[nn.Module] = []
    for stage in range(4):
        before, after = sizes[stage : stage + 2]
        blocks += [PreBlock(before, after, 2 if stage else 1), PreBlock(after, after, 1)]
    stem = nn.Conv2d(shape[0], sizes[0], 3, 1, 1, bias=False)
    last = (ready(sizes[-1]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], CLASSES))
    return nn.Sequential(stem, *blocks, *last)
