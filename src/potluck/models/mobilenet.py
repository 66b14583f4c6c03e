"""MobileNetV2 (Sandler et al., CVPR 2018), https://arxiv.org/abs/1801.04381, in its usual variant for 32x32 images.

The variant has no stride in the stem and in the second stage, so it halves the map three times instead of five, and it
has ReLU instead of ReLU6. A block adds its input only where the shape stays the same, as in the paper. The widespread
code of the variant also adds it where only the number of channels changes, through a 1x1 convolution.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Linear, Net, PooledBody, convolution, depthwise
from potluck.models.options import SCALER, Options, norm_option


class MobileNetStage(NamedTuple):
    """A row of the paper's Table 2: blocks of one width, of which the first has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int


STAGES = (
    MobileNetStage(1, 16, 1, 1),
    MobileNetStage(6, 24, 2, 1),
    MobileNetStage(6, 32, 3, 2),
    MobileNetStage(6, 64, 4, 2),
    MobileNetStage(6, 96, 3, 1),
    MobileNetStage(6, 160, 3, 2),
    MobileNetStage(6, 320, 1, 1),
)
STEM, LAST = 32, 1280


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, 3x3 depthwise, 1x1 to fewer channels; added to the input if shapes agree.

    Without an expansion there is no first convolution, and `hidden` is the group of the input.
    """

    def __init__(self, before: Axis, hidden: Axis, after: Axis, stride: int, options: Options) -> None:
        super().__init__()
        self.residual = before.group == after.group and stride == 1
        self.expand = None if hidden.group == before.group else convolution(before, hidden, options, kernel=1)
        self.each = depthwise(hidden, options, stride=stride)
        self.project = convolution(hidden, after, options, kernel=1, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x if self.expand is None else self.expand(x)
        out: Tensor = self.project(self.each(hidden))
        return x + out if self.residual else out


class MobileNetV2(Family):
    """A 3x3 convolution, seven stages of inverted residuals, a 1x1 convolution to 1280, average pooling, a linear head.

    Groups: ``stem``, ``stage0`` to ``stage6`` for the outputs of the blocks of a stage (which are added), ``stage1.0``
    and so on for the expanded channels inside a block, ``last``. The first stage expands nothing and works on ``stem``.
    As ``device_mobilenet`` it has group norm, so that phones can train it: its strides need no pooling.
    """

    name = "mobilenet_v2"
    about = "MobileNetV2 for 32x32 images"
    depth = tuple(stage.blocks for stage in STAGES)
    aliases = FrozenDict({"device_mobilenet": {"norm": "group"}})
    options = FrozenDict({"norm": norm_option("running"), "scaler": SCALER})

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, tuple)
        found = {"stem": STEM, "last": LAST}
        before = STEM
        for index, (stage, count) in enumerate(zip(STAGES, depth, strict=True)):
            found[f"stage{index}"] = stage.channels
            for place in range(count):
                found[_hidden_group(index, place)] = stage.expansion * before
                before = stage.channels
        return found

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, tuple)
        before = stem = Axis("stem", spec.sizes["stem"])
        stages = []
        for index in range(len(STAGES)):
            after = Axis(f"stage{index}", spec.sizes[f"stage{index}"])
            stages.append(_stage(spec, index, before, after))
            before = after
        last = Axis("last", spec.sizes["last"])
        body = PooledBody(*stages, last=convolution(before, last, options, kernel=1))
        return Net(convolution(options["input"][0], stem, options), body, Linear(last, options["classes"]))


def _stage(spec: Spec, index: int, before: Axis, after: Axis) -> nn.Sequential:
    assert isinstance(spec.depth, tuple)
    blocks = []
    for place in range(spec.depth[index]):
        entry = after if place else before
        group = _hidden_group(index, place)
        stride = 1 if place else STAGES[index].stride
        blocks.append(InvertedResidual(entry, Axis(group, spec.sizes[group]), after, stride, spec.options))
    return nn.Sequential(*blocks)


def _hidden_group(index: int, place: int) -> str:
    """The group of a block's depthwise convolution; the group of its input if nothing is expanded."""
    if STAGES[index].expansion > 1:
        return f"stage{index}.{place}"
    return f"stage{index}" if place else "stem"
