"""Your own network: any module whose channels can be traced takes part, cut to every tier's width, under FedRolex.

pip install "potluck[trace]" && python examples/own_network.py
"""

import torch
from torch import Tensor, nn

import potluck as pl


class Gated(nn.Module):
    """Two branches that are joined, weighed by a squeeze-and-excite gate, and added to a shortcut.

    Potluck calls it with the number of classes, and with the shape of one example if it asks for `input`.
    """

    def __init__(self, classes: int, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2 * channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.left = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.right = nn.Conv2d(2 * channels, channels, 5, padding=2)
        self.squeeze = nn.Linear(2 * channels, channels)
        self.excite = nn.Linear(channels, 2 * channels)
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        both = torch.cat([self.left(x), self.right(x)], dim=1)
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(both.mean((2, 3))))))
        return self.head(torch.relu(x + both * gate[:, :, None, None]).mean((2, 3)))


result = pl.run(
    {
        "name": "own-network",
        "rounds": 20,
        "data": {"clients": 30},
        "tier": [
            {"name": "tv", "width": 0.25, "profile": "tv"},
            {"name": "phone", "width": 0.5, "profile": "pixel5"},
            {"name": "flagship", "width": 1.0, "profile": "mate_x3"},
        ],
        "method": {"name": "fedrolex"},
        "local": {"lr": 0.1, "momentum": 0.9, "epochs": 3, "batch": 8, "clip": 1.0},
    },
    model=Gated,
)
print(f"the server's model: {result.accuracy:.1%}")
for name, tier in result.scores["tiers"].items():
    print(f"{name:>9}: {tier['test']['accuracy']:.1%} at its width")
