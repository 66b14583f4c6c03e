"""LeNet-5 (LeCun et al., Proceedings of the IEEE 1998), with ReLU and max-pooling as is usual today."""

from __future__ import annotations

from typing import Any

from torch import nn

from potluck.core import Axis, Depth, FrozenDict, SettingsError, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Linear, Net, convolution, dense
from potluck.models.options import SCALER, Option, Options, norm_option

SHORTEST = {5: 12, 3: 4}
"""The shortest side of an input for each kernel size."""


class LeNet(Family):
    """Two convolutions with pooling (6 and 16 channels), two dense layers (120 and 84 units), a linear head.

    Kernels are 5x5. The first convolution pads by 2 if a side is shorter than 32, so 28x28 and 32x32 both become 16
    maps of 5x5. For inputs shorter than 12 the kernels are 3x3, with padding.
    Groups: ``conv0``, ``conv1``, ``dense0``, ``dense1``.
    """

    name = "lenet"
    about = "LeNet-5: two convolutions, two dense layers"
    options = FrozenDict(
        {
            "norm": norm_option("none"),
            "scaler": SCALER,
            "kernel": Option(0, "length of a kernel's side; 0: 5, or 3 on inputs shorter than 12", choices=(0, 3, 5)),
        }
    )

    def resolve_options(self, options: dict[str, Any]) -> dict[str, Any]:
        shortest = min(options["input"][1:])
        kernel = options["kernel"] or (5 if shortest >= SHORTEST[5] else 3)
        if shortest < SHORTEST[kernel]:
            remedy = "Use kernel = 3." if kernel == 5 and shortest >= SHORTEST[3] else "Use mlp."
            raise SettingsError(
                f"lenet with {kernel}x{kernel} kernels needs maps of {SHORTEST[kernel]}x{SHORTEST[kernel]} or more; "
                f"input = {list(options['input'])}. {remedy}"
            )
        return {**options, "kernel": kernel}

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        return {"conv0": 6, "conv1": 16, "dense0": 120, "dense1": 84}

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        channels, *sides = options["input"]
        kernel = options["kernel"]
        padding = kernel // 2 if kernel == 3 or min(sides) < 32 else 0
        height, width = (_map_side(side, kernel, padding) for side in sides)
        conv0, conv1, dense0, dense1 = (
            Axis(group, spec.sizes[group]) for group in ("conv0", "conv1", "dense0", "dense1")
        )
        flat = Axis("conv1", conv1.size, inner=height * width)
        second = convolution(conv0, conv1, options, kernel, padding=1 if kernel == 3 else 0, pool=True)
        return Net(
            stem=convolution(channels, conv0, options, kernel, padding=padding, pool=True),
            body=nn.Sequential(second, dense(flat, dense0, options, flatten=True), dense(dense0, dense1, options)),
            head=Linear(dense1, options["classes"]),
        )

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        return ("body.0", "body.1", "body.2")


def _map_side(side: int, kernel: int, padding: int) -> int:
    """The side of the map after two convolutions and two poolings."""
    first = (side + 2 * padding - kernel + 1) // 2
    return first // 2 if kernel == 3 else (first - kernel + 1) // 2
