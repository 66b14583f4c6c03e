"""A small convolutional network that can be cut in width and in depth."""

from __future__ import annotations

from torch import nn

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Linear, Net, PooledBody, convolution
from potluck.models.options import NORM_TEXT, SCALER, Option, Options, norm_option


class CNN(Family):
    """3x3 convolutions of equal width, one in the stem and one in each block; global average pooling; a linear head.

    A block ends in max-pooling while its map is larger than 2 on both sides. That depends only on the block's position
    and the input. So a shallow network is the beginning of a deep one. Groups: ``stem``, ``block0``, ``block1``, ...
    """

    name = "cnn"
    about = "Small CNN: equal 3x3 convolutions with pooling, then global average pooling"
    depth = 3
    base = FrozenDict({"width": Option(32, "channels of each convolution")})
    options = FrozenDict({"norm": norm_option("running"), "scaler": SCALER})

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, int)
        return dict.fromkeys(["stem", *(f"block{index}" for index in range(depth))], base["width"])

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        channels, height, width = options["input"]
        before = stem = Axis("stem", spec.sizes["stem"])
        side, blocks = min(height, width), []
        for index in range(len(spec.sizes) - 1):
            after = Axis(f"block{index}", spec.sizes[f"block{index}"])
            blocks.append(self._block(before, after, options, smaller=side > 2))
            before, side = after, self._half(side)
        return Net(convolution(channels, stem, options), PooledBody(*blocks), Linear(before, options["classes"]))

    @staticmethod
    def _block(before: Axis, after: Axis, options: Options, smaller: bool) -> nn.Module:
        return convolution(before, after, options, pool=smaller)

    @staticmethod
    def _half(side: int) -> int:
        return side // 2


class DeviceCNN(CNN):
    """The small CNN for training on devices: strides in place of pooling, group norm or none in place of batch norm.

    A block has stride 2 while its map is larger than 2 on both sides. Names, groups and counts are those of ``cnn``.
    """

    name = "device_cnn"
    about = "Small CNN that phones can train: strides in place of pooling, group norm"
    options = FrozenDict({"norm": Option("group", NORM_TEXT, choices=("group", "none")), "scaler": SCALER})

    @staticmethod
    def _block(before: Axis, after: Axis, options: Options, smaller: bool) -> nn.Module:
        return convolution(before, after, options, stride=2 if smaller else 1)

    @staticmethod
    def _half(side: int) -> int:
        return (side + 1) // 2
