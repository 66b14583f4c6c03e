"""Factories as users write them: networks that cannot be cut, and networks with attention."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from potluck.core import Axis


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture."""

    def __init__(self, columns, classes, units=6):
        super().__init__()
        self.read = nn.Linear(columns, units)
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.head = nn.Linear(units, classes)

    def forward(self, x):
        return self.head(self.lstm(self.read(x.flatten(1, 2)))[0][:, -1])


class Branching(nn.Module):
    """Takes one of two ways; which one depends on the numbers of the batch."""

    def __init__(self, pixels, classes, units=6):
        super().__init__()
        self.dark = nn.Linear(pixels, units)
        self.bright = nn.Linear(pixels, units)
        self.head = nn.Linear(units, classes)

    def forward(self, x):
        x = x.flatten(1)
        way = self.bright if x.mean() > 0 else self.dark
        return self.head(torch.relu(way(x)))


def recurrent(input, classes, units=6):
    return Recurrent(input[-1], classes, units)


def branching(input, classes):
    return Branching(input[0] * input[1] * input[2], classes)


class Block(nn.Module):
    """A block of a transformer with PyTorch's attention."""

    def __init__(self, units, heads, need_weights):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.attend = nn.MultiheadAttention(units, heads, batch_first=True)
        self.up, self.down = nn.Linear(units, 20), nn.Linear(20, units)
        self.need_weights = need_weights

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, need_weights=self.need_weights)[0]
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class ViT(nn.Module):
    """Patches, a class token and positions; the scores are read from the class token."""

    def __init__(self, channels, classes, units=16, heads=4, depth=2, need_weights=False):
        super().__init__()
        self.patch = nn.Conv2d(channels, units, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, units))
        self.place = nn.Parameter(torch.randn(1, 5, units))
        self.blocks = nn.ModuleList(Block(units, heads, need_weights) for _ in range(depth))
        self.head = nn.Linear(units, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class OwnAttention(nn.Module):
    """Attention with projections of one's own: separate, in one layer, or as timm has them; perhaps all by hand."""

    def __init__(self, units, heads, packed="", by_hand=False):
        super().__init__()
        self.heads, self.packed, self.by_hand = heads, packed, by_hand
        if packed:
            self.qkv = nn.Linear(units, 3 * units)
        else:
            self.q, self.k, self.v = (nn.Linear(units, units) for _ in range(3))
        self.out = nn.Linear(units, units)

    def forward(self, x):
        rows, length, _ = x.shape
        if self.packed == "timm":
            q, k, v = self.qkv(x).reshape(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            found = self.qkv(x).chunk(3, -1) if self.packed else (self.q(x), self.k(x), self.v(x))
            q, k, v = (each.view(rows, length, self.heads, -1).transpose(1, 2) for each in found)
        mixed = self.attend(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, -1))

    def attend(self, q, k, v):
        """By hand, scores are scaled by a constant, or by the root of a head's width: before their product or after."""
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v)
        if self.by_hand == "counted":
            return (q @ k.mT * 0.5).softmax(-1) @ v / v.shape[-1]  # no scale of scores, but a count of units
        if self.by_hand == "einsum":
            q = (q * q.shape[-1] ** -0.5).contiguous()
            return F.softmax(torch.einsum("bhid,bhjd->bhij", q, k), dim=-1) @ v
        if self.by_hand == "masked":
            scores = torch.matmul(q, k.transpose(-2, -1))
            scores /= math.sqrt(q.shape[-1])
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return torch.softmax(scores.masked_fill(hidden, -1e9), dim=-1) @ v
        if self.by_hand == "root":
            return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return (q @ k.mT * 0.5).softmax(-1) @ v


class OwnViT(nn.Module):
    def __init__(self, channels, classes, packed="", by_hand=False):
        super().__init__()
        self.patch = nn.Conv2d(channels, 16, 4, 4)
        self.norm = nn.LayerNorm(16)
        self.attend = OwnAttention(16, 4, packed, by_hand)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head((x + self.attend(self.norm(x))).mean(1))


class Encoder(nn.Module):
    """PyTorch's own encoder over the rows of a picture."""

    def __init__(self, columns, classes):
        super().__init__()
        self.read = nn.Linear(columns, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.encoder(self.read(x.flatten(1, 2))).mean(1))


class Grouped(nn.Module):
    """Convolutions in groups, and depthwise."""

    def __init__(self, channels, classes):
        super().__init__()
        self.a = nn.Conv2d(channels, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(torch.relu(self.depthwise(torch.relu(self.grouped(torch.relu(self.a(x)))))).mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and a concatenation with what was before."""

    def __init__(self, channels, classes):
        super().__init__()
        self.a = nn.Conv2d(channels, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 8, 3, padding=1, stride=2)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.c = nn.Conv2d(12, 8, 3, padding=1)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        a = torch.relu(self.a(x))
        both = torch.cat([a, self.up(torch.relu(self.down(a)))], 1)
        return self.head(torch.relu(self.c(both)).mean((2, 3)))


def vit(input, classes, depth_blocks=2, need_weights=False):
    return ViT(input[0], classes, depth=depth_blocks, need_weights=need_weights)


def own_vit(input, classes, packed="", by_hand=False):
    return OwnViT(input[0], classes, packed, by_hand)


def encoder(input, classes):
    return Encoder(input[-1], classes)


def grouped(input, classes):
    return Grouped(input[0], classes)


def unet(input, classes):
    return UNet(input[0], classes)


def declared_lstm(input, classes, units=6):
    return Recurrent(input[-1], classes, units)


def _lstm_axes(net):
    """Ten lines: every gate has one row for each hidden unit."""
    hidden, read = Axis("hidden", net.lstm.hidden_size), Axis("read", net.read.out_features)
    gates = Axis("hidden", net.lstm.hidden_size, outer=4)
    return {
        "read.weight": (read, None),
        "read.bias": (read,),
        "lstm.weight_ih_l0": (gates, read),
        "lstm.weight_hh_l0": (gates, hidden),
        "lstm.bias_ih_l0": (gates,),
        "lstm.bias_hh_l0": (gates,),
        "head.weight": (None, hidden),
    }


declared_lstm.axes = _lstm_axes
