"""Zoos with a tier for each width, and rounds without engines, for methods that train narrow parts of a network."""

import torch
from torch import nn

from potluck.core import Client, Round, Tier
from potluck.models import ModelZoo, make_spec, tier_spec


def zoo(*widths, model="mlp", **options):
    full = make_spec(model, input=(4,) if model == "mlp" else (1, 8, 8), classes=3, **options)
    tiers = [Tier(f"w{width}", width=width, spec=tier_spec(full, width)) for width in widths]
    return ModelZoo(full, tiers)


def now(networks, index=0, clients=()):
    return Round(index, list(clients), len(clients), networks, 0, None, None, None)


def client(networks, tier=0, id="c0"):
    return Client(id, networks.tiers[tier])


class Fixed(nn.Module):
    """Logits that do not depend on the input."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([logits]))

    def forward(self, x):
        return self.logits.expand(len(x), -1)
