"""ResNet of basic blocks (He et al., CVPR 2016), with the small stem that 32x32 images want."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from potluck.core import Axis, Bag, Depth, Spec
from potluck.models.family import Family
from potluck.models.layers import Linear, Net, Pooled, Side, convolution
from potluck.models.options import SCALER, Option, Options, norms


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them; 1x1 where the shape changes, else straight."""

    def __init__(self, before: Axis, inner: Axis, after: Axis, stride: int, options: Options) -> None:
        super().__init__()
        self.first = convolution(before, inner, options, stride=stride)
        self.second = convolution(inner, after, options, relu=False)
        straight = before.group == after.group
        self.shortcut = (
            nn.Identity() if straight else convolution(before, after, options, kernel=1, stride=stride, relu=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class ResNet(Family):
    """A stem, four stages of basic blocks (each stage twice as wide, from the second on at half the size), a head.

    The body ends in a global average, so stem -> body -> head is map -> vector -> scores. Groups: ``stage0`` to
    ``stage3`` for the residual streams (the stem writes into ``stage0``), ``stage0.0`` and so on for the channels
    inside each block. The stem ``cifar`` keeps the size of the map; ``stride4`` quarters it, so a 32x32 image enters
    the body as 64 x 8 x 8.
    """

    name = "resnet"
    about = "ResNet of basic blocks in four stages"
    depth = (2, 2, 2, 2)
    aliases = Bag(
        {
            "resnet10": (1, 1, 1, 1),
            "resnet14": (1, 1, 2, 2),
            "resnet18": (2, 2, 2, 2),
            "resnet22": (2, 2, 3, 3),
            "resnet26": (3, 3, 3, 3),
        }
    )
    base = ("width", Option(64, "channels of the first stage; the others have 2, 4 and 8 times as many", high=1 << 17))
    options = Bag(
        {
            "norm": norms("running"),
            "scaler": SCALER,
            "stem": Option(
                "cifar", "3x3 convolution at full size, or one that quarters it", choices=("cifar", "stride4")
            ),
        }
    )

    def groups(self, depth: Depth, base: int, options: Options) -> dict[str, int]:
        assert isinstance(depth, tuple)
        found: dict[str, int] = {}
        for stage, count in enumerate(depth):
            found |= dict.fromkeys([_stream(stage), *(_inner(stage, place) for place in range(count))], base << stage)
        return found

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, tuple)
        streams = [Axis(_stream(stage), spec.sizes[_stream(stage)]) for stage in range(len(spec.depth))]
        stages = [_stage(spec, stage, streams[max(stage - 1, 0)], after) for stage, after in enumerate(streams)]
        stem = _stem(options["input"][0], streams[0], options)
        return Net(stem, Pooled(*stages), Linear(streams[-1], options["classes"]))


def _stem(channels: Side, stream: Axis, options: Options) -> nn.Sequential:
    quarter = options["stem"] == "stride4"
    stem = convolution(channels, stream, options, stride=2 if quarter else 1)
    if quarter:
        stem.add_module("pool", nn.MaxPool2d(2, ceil_mode=True))
    return stem


def _stage(spec: Spec, stage: int, before: Axis, after: Axis) -> nn.Sequential:
    assert isinstance(spec.depth, tuple)
    blocks = []
    for place in range(spec.depth[stage]):
        inner = Axis(_inner(stage, place), spec.sizes[_inner(stage, place)])
        stride = 2 if stage > 0 and place == 0 else 1
        blocks.append(BasicBlock(after if place else before, inner, after, stride, spec.options))
    return nn.Sequential(*blocks)


def _stream(stage: int) -> str:
    return f"stage{stage}"


def _inner(stage: int, place: int) -> str:
    return f"stage{stage}.{place}"
