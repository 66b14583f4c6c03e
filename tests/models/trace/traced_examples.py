"""Modules as a user may write them, with an example input and the axis groups that tracing should find."""

# ruff: noqa: RUF012 (layers are copied by each module that is made of them)

import copy

import torch
import torch.nn.functional as F
from torch import nn

MAPS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))

ROWS = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


class Module(nn.Module):
    """Layers by name, and a forward that subclasses write."""

    layers: dict = {}

    def __init__(self):
        super().__init__()
        for name, layer in copy.deepcopy(self.layers).items():
            setattr(self, name, layer)


class DenselyConnected(Module):
    layers = {
        "a": nn.Conv2d(3, 6, 3, padding=1),
        "b": nn.Conv2d(6, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(10),
        "c": nn.Conv2d(10, 5, 3, padding=1),
        "head": nn.Linear(15, 7),
    }

    def forward(self, x):
        x = F.relu(self.a(x))
        x = torch.cat([x, F.relu(self.b(x))], 1)
        x = torch.cat([F.relu(self.c(self.norm(x))), x], 1)
        return self.head(x.mean((2, 3)))


class Grouped(Module):
    layers = {
        "a": nn.Conv2d(3, 12, 3),
        "grouped": nn.Conv2d(12, 8, 3, groups=2, padding=1),
        "depthwise": nn.Conv2d(8, 8, 3, groups=8, padding=1),
        "thrice": nn.Conv2d(8, 24, 3, groups=8),
        "c": nn.Conv2d(24, 5, 1),
        "head": nn.Linear(5 * 16, 7),
    }

    def forward(self, x):
        x = torch.sigmoid(self.grouped(torch.tanh(self.a(x))))
        return self.head(F.relu(self.c(self.thrice(self.depthwise(x)))).flatten(1))


class SqueezeExcite(Module):
    layers = {
        "a": nn.Conv2d(3, 8, 3),
        "down": nn.Linear(8, 3),
        "up": nn.Linear(3, 8),
        "c": nn.Conv2d(8, 6, 3),
        "head": nn.Linear(6, 4),
    }

    def forward(self, x):
        x = F.relu(self.a(x))
        gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        return self.head(F.relu(self.c(x * gate[:, :, None, None])).mean((2, 3)))


class Branches(Module):
    layers = {
        "stem": nn.Conv2d(3, 6, 3, padding=1),
        "long": nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1)),
        "wide": nn.Conv2d(6, 6, 5, padding=2),
        "norm": nn.GroupNorm(2, 6),
        "head": nn.Linear(6, 4),
    }

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.relu(self.norm(x + self.long(x) + self.wide(x))).mean((2, 3)))


class UShaped(Module):
    """The input itself is concatenated, too: entries that are never cut beside some that are."""

    layers = {
        "a": nn.Conv2d(3, 6, 3, padding=1),
        "b": nn.Conv2d(6, 9, 3, padding=1, stride=2),
        "up": nn.ConvTranspose2d(9, 5, 2, stride=2),
        "c": nn.Conv2d(14, 4, 3, padding=1),
        "head": nn.Conv2d(4, 2, 1),
    }

    def forward(self, x):
        a = F.relu(self.a(x))
        return self.head(F.relu(self.c(torch.cat([x, self.up(F.relu(self.b(a))), a], 1))))


class Tokens(Module):
    """Embedding, a table of positions without a layer, layer norm, residual."""

    layers = {
        "embed": nn.Embedding(11, 8),
        "place": nn.Parameter(torch.ones(1, 5, 8)),
        "norm": nn.LayerNorm(8),
        "up": nn.Linear(8, 12),
        "down": nn.Linear(12, 8),
        "head": nn.Linear(8, 11),
    }

    def forward(self, x):
        x = self.embed(x) + self.place
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


class Gated(Module):
    layers = {"a": nn.Linear(5, 8), "b": nn.Linear(4, 6), "head": nn.Linear(6, 3)}

    def forward(self, x):
        left, right = self.a(x).chunk(2, 1)
        return self.head(F.relu(self.b(left * torch.sigmoid(right))))


class Halves(Module):
    """Pieces of one layer go separate ways and meet again in another order."""

    layers = {
        "a": nn.Conv2d(3, 12, 3),
        "b": nn.Conv2d(4, 4, 1),
        "c": nn.Conv2d(4, 4, 1),
        "d": nn.Conv2d(12, 5, 1),
        "head": nn.Linear(5, 3),
    }

    def forward(self, x):
        one, two, three = self.a(x).chunk(3, 1)
        return self.head(F.relu(self.d(torch.cat([self.c(three), two, self.b(one)], 1))).mean((2, 3)))


class Again(Module):
    """One layer is used twice, so what goes in and what comes out are the same units."""

    layers = {"a": nn.Linear(5, 8), "again": nn.Linear(8, 8), "head": nn.Linear(8, 3)}

    def forward(self, x):
        return self.head(self.again(F.relu(self.again(self.a(x)))))


class AroundTheInput(Module):
    layers = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 3, 3, padding=1), "head": nn.Linear(3, 3)}

    def forward(self, x):
        return self.head((x + self.b(self.a(x))).mean((2, 3)))


MODULES = {
    DenselyConnected: (MAPS, {"a": 6, "b": 4, "c": 5}),
    Grouped: (MAPS, {"a": 6, "grouped": 4, "c": 5}),
    SqueezeExcite: (MAPS, {"a": 8, "down": 3, "c": 6}),
    Branches: (MAPS, {"stem": 6, "long.0": 4}),
    UShaped: (MAPS, {"a": 6, "b": 9, "up": 5, "c": 4, ":fixed": 1}),
    Tokens: (TOKENS, {"embed": 8, "up": 12}),
    Gated: (ROWS, {"a": 4, "b": 6}),
    Halves: (MAPS, {"a": 4, "a:1": 4, "a:2": 4, "b": 4, "c": 4, "d": 5}),
    Again: (ROWS, {"a": 8}),
    AroundTheInput: (MAPS, {"a": 8}),
}
