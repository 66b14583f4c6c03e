"""Pre-activation ResNet (He et al., ECCV 2016), in the form in which HeteroFL and FedRolex use it.

Norms are static by default, and a scaler stands before each norm. Where a block changes the shape, its 1x1 shortcut
reads the tensor after norm and ReLU; elsewhere the block's input is added as it is. With batch norm, convolutions have
PyTorch's default initialisation, as in the released code of both papers; otherwise those before a ReLU have that of
He et al. (2015).
"""

from __future__ import annotations

from torch import Tensor, nn

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Conv, Linear, Net, PooledBody, activation, he_initialise
from potluck.models.options import SCALER, Options, norm_option
from potluck.models.resnet import WIDTH, block_stride

BATCH_NORMS = ("static", "running", "counted")


class PreActivationBlock(nn.Module):
    """Norm, ReLU and convolution, twice, added to the residual stream."""

    def __init__(self, before: Axis, inner: Axis, after: Axis, stride: int, options: Options) -> None:
        super().__init__()
        bare = options["norm"] == "none"
        self.enter = activation(before, options)
        self.first = Conv(before, inner, 3, stride, bias=bare)
        self.between = activation(inner, options)
        self.second = Conv(inner, after, 3, bias=bare)
        self.shortcut = None if before.group == after.group else Conv(before, after, 1, stride, bias=bare)
        if options["norm"] not in BATCH_NORMS:
            he_initialise(self.first)

    def forward(self, x: Tensor) -> Tensor:
        active = self.enter(x)
        stream = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = stream + self.second(self.between(self.first(active)))
        return out


class PreResNet(Family):
    """A 3x3 convolution, four stages of blocks, a last norm and ReLU, global average pooling, a linear head.

    Groups are as in ``resnet``: ``stage0`` to ``stage3`` for the residual streams, ``stage0.0`` ... inside blocks.
    """

    name = "preresnet"
    about = "Pre-activation ResNet in four stages, with static batch norm (HeteroFL, FedRolex)"
    depth = (2, 2, 2, 2)
    aliases = FrozenDict({"preresnet18": {"depth": (2, 2, 2, 2)}})
    base = FrozenDict({"width": WIDTH})
    options = FrozenDict({"norm": norm_option("static"), "scaler": SCALER})

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, tuple)
        found: dict[str, int] = {}
        for stage, count in enumerate(depth):
            names = [f"stage{stage}", *(f"stage{stage}.{place}" for place in range(count))]
            found |= dict.fromkeys(names, base["width"] << stage)
        return found

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, tuple)
        streams = [Axis(f"stage{stage}", spec.sizes[f"stage{stage}"]) for stage in range(len(spec.depth))]
        stages = [_stage(spec, stage, streams[max(stage - 1, 0)], after) for stage, after in enumerate(streams)]
        stem = Conv(options["input"][0], streams[0], 3, bias=options["norm"] == "none")
        if options["norm"] not in BATCH_NORMS:
            he_initialise(stem)
        body = PooledBody(*stages, last=activation(streams[-1], options))
        return Net(stem, body, Linear(streams[-1], options["classes"]))


def _stage(spec: Spec, stage: int, before: Axis, after: Axis) -> nn.Sequential:
    assert isinstance(spec.depth, tuple)
    blocks = []
    for place in range(spec.depth[stage]):
        inner = Axis(f"stage{stage}.{place}", spec.sizes[f"stage{stage}.{place}"])
        entry, stride = after if place else before, block_stride(stage, place)
        blocks.append(PreActivationBlock(entry, inner, after, stride, spec.options))
    return nn.Sequential(*blocks)
