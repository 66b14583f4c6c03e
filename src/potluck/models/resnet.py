"""ResNet (He et al., CVPR 2016), with the small stem for 32x32 images.

A bottleneck has its stride in the 3x3 convolution, as in today's implementations; in the paper it is in the first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Linear, Net, PooledBody, Side, convolution
from potluck.models.options import SCALER, Option, Options, norm_option

WIDTH = Option(64, "channels of the first stage; the others have 2, 4 and 8 times as many", high=1 << 17)
EXPANSION = 4
"""A bottleneck's output has this many times the channels of its 3x3 convolution."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: a 1x1 convolution where the shape changes, else the identity."""

    def __init__(self, before: Axis, inner: Axis, after: Axis, stride: int, options: Options) -> None:
        super().__init__()
        self.first = convolution(before, inner, options, stride=stride)
        self.second = convolution(inner, after, options, relu=False)
        self.shortcut = _shortcut(before, after, stride, options)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last to four times the channels, and a shortcut."""

    def __init__(self, before: Axis, inner: tuple[Axis, Axis], after: Axis, stride: int, options: Options) -> None:
        super().__init__()
        self.first = convolution(before, inner[0], options, kernel=1)
        self.second = convolution(*inner, options, stride=stride)
        self.third = convolution(inner[1], after, options, kernel=1, relu=False)
        self.shortcut = _shortcut(before, after, stride, options)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.third(self.second(self.first(x))) + self.shortcut(x))


class ResNet(Family):
    """A stem, four stages of blocks (each stage twice as wide, from the second on at half the size), a head.

    The body ends in global average pooling, so the head reads one vector per example. Groups: ``stage0`` to ``stage3``
    for the residual streams (the stem's output is in ``stage0``), ``stage0.0`` and so on for the channels inside each
    block. A bottleneck has two such groups, ``stage0.0.first`` and ``stage0.0.second``, and then the stem has one of
    its own, ``stem``. The stem ``cifar`` keeps the size of the map; ``stride4`` quarters it, so a 32x32 image enters
    the body as 64 x 8 x 8.
    """

    name = "resnet"
    about = "ResNet of basic or bottleneck blocks in four stages"
    depth = (2, 2, 2, 2)
    aliases = FrozenDict(
        {
            "resnet10": {"depth": (1, 1, 1, 1), "block": "basic"},
            "resnet14": {"depth": (1, 1, 2, 2), "block": "basic"},
            "resnet18": {"depth": (2, 2, 2, 2), "block": "basic"},
            "resnet22": {"depth": (2, 2, 3, 3), "block": "basic"},
            "resnet26": {"depth": (3, 3, 3, 3), "block": "basic"},
            "resnet50": {"depth": (3, 4, 6, 3), "block": "bottleneck"},
            "resnet101": {"depth": (3, 4, 23, 3), "block": "bottleneck"},
            "resnet152": {"depth": (3, 8, 36, 3), "block": "bottleneck"},
        }
    )
    base = FrozenDict({"width": WIDTH})
    options = FrozenDict(
        {
            "norm": norm_option("running"),
            "scaler": SCALER,
            "stem": Option(
                "cifar", "3x3 convolution at full size, or one that quarters it", choices=("cifar", "stride4")
            ),
            "block": Option("basic", "two 3x3 convolutions, or 1x1, 3x3, 1x1", choices=("basic", "bottleneck")),
        }
    )

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, tuple)
        bottleneck = options["block"] == "bottleneck"
        found = {"stem": base["width"]} if bottleneck else {}
        for stage, count in enumerate(depth):
            width = base["width"] << stage
            found[f"stage{stage}"] = width * EXPANSION if bottleneck else width
            inner = [group for place in range(count) for group in _inner_groups(stage, place, bottleneck)]
            found |= dict.fromkeys(inner, width)
        return found

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, tuple)
        streams = [Axis(f"stage{stage}", spec.sizes[f"stage{stage}"]) for stage in range(len(spec.depth))]
        entry = Axis("stem", spec.sizes["stem"]) if "stem" in spec.sizes else streams[0]
        stages = [
            _stage(spec, stage, streams[stage - 1] if stage else entry, after) for stage, after in enumerate(streams)
        ]
        stem = _stem(options["input"][0], entry, options)
        return Net(stem, PooledBody(*stages), Linear(streams[-1], options["classes"]))


def block_stride(stage: int, place: int) -> int:
    """The stride of a block: every stage but the first halves the map in its first block."""
    return 2 if stage > 0 and place == 0 else 1


def _stem(channels: Side, stream: Axis, options: Options) -> nn.Sequential:
    quarter = options["stem"] == "stride4"
    stem = convolution(channels, stream, options, stride=2 if quarter else 1)
    if quarter:
        stem.add_module("pool", nn.MaxPool2d(2, ceil_mode=True))
    return stem


def _stage(spec: Spec, stage: int, before: Axis, after: Axis) -> nn.Sequential:
    assert isinstance(spec.depth, tuple)
    bottleneck = spec.options["block"] == "bottleneck"
    blocks: list[nn.Module] = []
    for place in range(spec.depth[stage]):
        first, *second = (Axis(group, spec.sizes[group]) for group in _inner_groups(stage, place, bottleneck))
        entry, stride = after if place else before, block_stride(stage, place)
        if second:
            blocks.append(Bottleneck(entry, (first, second[0]), after, stride, spec.options))
        else:
            blocks.append(BasicBlock(entry, first, after, stride, spec.options))
    return nn.Sequential(*blocks)


def _inner_groups(stage: int, place: int, bottleneck: bool) -> tuple[str, ...]:
    """The groups of the channels inside a block."""
    block = f"stage{stage}.{place}"
    return (f"{block}.first", f"{block}.second") if bottleneck else (block,)


def _shortcut(before: Axis, after: Axis, stride: int, options: Options) -> nn.Module:
    if before.group == after.group:
        return nn.Identity()
    return convolution(before, after, options, kernel=1, stride=stride, relu=False)
