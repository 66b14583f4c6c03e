"""The layers that all families share. They are built from axes, so their lengths always match their axes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor, nn

from potluck.core import Axis, Dimension, Dimensions
from potluck.models.norm import norm
from potluck.models.options import Options

Side: TypeAlias = "Axis | int"
"""The inputs or outputs of a layer: an axis that may be cut, or a number that never is (input channels, classes)."""


class Net(nn.Module):
    """A network of three parts: ``stem`` -> ``body`` of blocks -> ``head``. It returns scores."""

    def __init__(self, stem: nn.Module, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.stem(x)))
        return scores


class PooledBody(nn.Sequential):
    """A body of convolutions that ends in global average pooling: from maps to one vector per example.

    A module between the blocks and the pooling is named ``last``; it is there at every depth.
    """

    def __init__(self, *blocks: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__(*blocks)
        if last is not None:
            self.add_module("last", last)

    def forward(self, x: Tensor) -> Tensor:
        for step in self:
            x = step(x)
        return x.mean((2, 3))


class Linear(nn.Linear):
    """A linear layer whose features may be cut."""

    def __init__(self, inputs: Side, outputs: Side, bias: bool = True) -> None:
        super().__init__(_length(inputs), _length(outputs), bias)
        self.weight_axes: Dimensions = (_dimension(outputs), _dimension(inputs))


class Embedding(nn.Embedding):
    """An embedding into the group's units, for tokens or positions; their number is never cut."""

    def __init__(self, count: int, units: Axis) -> None:
        super().__init__(count, units.length)
        self.weight_axes: Dimensions = (None, units)


class Conv(nn.Conv2d):
    """A convolution whose channels may be cut; the default padding keeps the map's size at stride 1."""

    def __init__(
        self, inputs: Side, outputs: Side, kernel: int, stride: int = 1, padding: int | None = None, bias: bool = True
    ) -> None:
        padding = kernel // 2 if padding is None else padding
        super().__init__(_length(inputs), _length(outputs), kernel, stride, padding, bias=bias)
        self.weight_axes: Dimensions = (_dimension(outputs), _dimension(inputs))


class DepthwiseConv(nn.Conv2d):
    """A depthwise convolution: its inputs and outputs are the same units."""

    def __init__(self, channels: Axis, kernel: int, stride: int = 1, bias: bool = True) -> None:
        length = channels.length
        super().__init__(length, length, kernel, stride, kernel // 2, groups=length, bias=bias)
        self.weight_axes: Dimensions = (channels, None)


class Scaler(nn.Module):
    """HeteroFL's scaler: divides by the ratio of widths in training, so narrow and full layers have equal scale.

    In evaluation it does nothing: there the weights are those of the full network (HeteroFL, FedRolex).
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return x / self.ratio if self.training else x


def convolution(
    inputs: Side,
    outputs: Axis,
    options: Options,
    kernel: int = 3,
    stride: int = 1,
    padding: int | None = None,
    relu: bool = True,
    pool: bool = False,
) -> nn.Sequential:
    """Convolution, scaler, norm, ReLU and 2x2 max-pooling, as far as they are asked for."""
    bare = options["norm"] == "none"
    conv = Conv(inputs, outputs, kernel, stride, padding, bias=bare)
    return _layer("conv", conv, outputs, options, relu=relu, pool=pool)


def depthwise(channels: Axis, options: Options, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Depthwise convolution, scaler, norm, ReLU."""
    conv = DepthwiseConv(channels, kernel, stride, bias=options["norm"] == "none")
    return _layer("conv", conv, channels, options)


def activation(channels: Axis, options: Options) -> nn.Sequential:
    """Scaler, norm and ReLU without a layer before them, as pre-activation networks have them."""
    return _sequence({"scaler": scaler(options, channels), "norm": norm(options["norm"], channels), "relu": nn.ReLU()})


def scaler(options: Options, units: Axis) -> Scaler | None:
    """The scaler that the options ask for at a layer with these outputs; None if it would do nothing."""
    ratio = options["scaler"]
    ratio = ratio.get(units.group, 1.0) if isinstance(ratio, Mapping) else ratio
    return Scaler(ratio) if ratio != 1 else None


def dense(inputs: Side, outputs: Axis, options: Options, flatten: bool = False) -> nn.Sequential:
    """Linear layer, scaler, norm and ReLU, on flattened inputs if asked for."""
    linear = Linear(inputs, outputs, bias=options["norm"] == "none")
    return _layer("linear", linear, outputs, options, flatten=flatten)


def _layer(
    name: str,
    layer: nn.Linear | nn.Conv2d,
    outputs: Axis,
    options: Options,
    flatten: bool = False,
    relu: bool = True,
    pool: bool = False,
) -> nn.Sequential:
    if relu:
        he_initialise(layer)
    steps = {
        "flatten": nn.Flatten() if flatten else None,
        name: layer,
        "scaler": scaler(options, outputs),
        "norm": norm(options["norm"], outputs),
        "relu": nn.ReLU() if relu else None,
        "pool": nn.MaxPool2d(2) if pool else None,
    }
    return _sequence(steps)


def _sequence(steps: Mapping[str, nn.Module | None]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((name, step) for name, step in steps.items() if step is not None))


def he_initialise(layer: nn.Linear | nn.Conv2d) -> None:
    """He initialisation for a layer in front of a ReLU.

    PyTorch's default halves the signal at every layer, and deep networks do not train.
    """
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _length(side: Side) -> int:
    return side.length if isinstance(side, Axis) else side


def _dimension(side: Side) -> Dimension:
    return side if isinstance(side, Axis) else None


def layer_axes(net: nn.Module) -> dict[str, Dimensions]:
    """What each dimension of each tensor of the state dict counts, from the axes of its layers."""
    axes: dict[str, Dimensions] = {}
    for name, tensor in net.state_dict().items():
        path = name.rpartition(".")[0]
        weight_axes: Dimensions | None = getattr(net.get_submodule(path), "weight_axes", None)
        if weight_axes is None:
            raise TypeError(f"the layer '{path}' declares no axes for its '{name}'")
        axes[name] = weight_axes[: tensor.dim()]
    return axes
