"""What the tensors of torch's own layers count, and how a layer is told that it became narrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from potluck.core import Axis, Dimension, Dimensions
from potluck.parts import part

Count: TypeAlias = "tuple[str, int] | None"
"""One dimension of a tensor: the first so many entries of a layer's side ``in`` or ``out``; None: always whole."""


@dataclass(frozen=True)
class Sides:
    """What goes into a layer and what comes out of it; norms and the like have the same on both sides."""

    inside: Dimension
    outside: Dimension

    def __getitem__(self, side: str) -> Dimension:
        return self.inside if side == "in" else self.outside


def lengths(layer: nn.Module) -> tuple[int, int] | None:
    """Entries that go in and come out, for a layer that can be cut; None for any other module."""
    if isinstance(layer, _ConvNd):
        return layer.in_channels, layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, _NormBase):
        return layer.num_features, layer.num_features
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels, layer.num_channels
    if isinstance(layer, nn.LayerNorm):
        return layer.normalized_shape[-1], layer.normalized_shape[-1]
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim, layer.embedding_dim
    if isinstance(layer, nn.PReLU) and layer.num_parameters > 1:
        return layer.num_parameters, layer.num_parameters
    return None


def straight(layer: nn.Module) -> bool:
    """Whether what goes in comes out again, channel by channel."""
    return not isinstance(layer, nn.Linear) and (
        not isinstance(layer, _ConvNd) or layer.groups == layer.in_channels > 1
    )


def counts(layer: nn.Module) -> dict[str, tuple[Count, ...]]:
    """Of which side the dimensions of each tensor are; trailing dimensions (kernels) are left out."""
    found = lengths(layer)
    if found is None:
        return {}
    inside, outside = ("in", found[0]), ("out", found[1])
    if isinstance(layer, _ConvNd):
        return {"weight": _kernel(layer), "bias": (outside,)}
    if isinstance(layer, nn.Linear):
        return {"weight": (outside, inside), "bias": (outside,)}
    if isinstance(layer, nn.Embedding):
        return {"weight": (None, outside)}
    return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (outside,))


def _kernel(layer: _ConvNd) -> tuple[Count, ...]:
    first, second = ("in", "out") if isinstance(layer, _ConvTransposeNd) else ("out", "in")
    if straight(layer):
        return ((first, layer.weight.shape[0]), None)
    return ((first, layer.weight.shape[0]), (second, layer.weight.shape[1]))


def head(dimension: Dimension, entries: int) -> Dimension:
    """The first entries of a dimension: of a grouped convolution, a kernel sees one group of the channels only."""
    kept: list[Axis] = []
    for axis in dimension if isinstance(dimension, tuple) else (dimension,):
        if axis is None or entries == 0:
            break
        count = min(axis.length, entries)
        copies, left = divmod(count, axis.size * axis.inner)
        if left:
            raise ValueError(f"{entries} entries end inside {axis}")
        kept.append(Axis(axis.group, axis.size, copies, axis.inner))
        entries -= count
    return kept[0] if len(kept) == 1 else tuple(kept) or None


def entries(dimension: Dimension, sizes: Mapping[str, int], whole: int) -> int:
    """How many entries a dimension has when its groups have these sizes; `whole` where it is never cut."""
    if dimension is None:
        return whole
    axes = dimension if isinstance(dimension, tuple) else (dimension,)
    return sum(axis.outer * sizes[axis.group] * axis.inner for axis in axes)


def carve(
    net: nn.Module, axes: Mapping[str, Dimensions], layers: Mapping[str, Sides], sizes: Mapping[str, int]
) -> nn.Module:
    """Cut a network down in place to the first units of each group."""
    whole: dict[str, Tensor] = net.state_dict()
    with torch.no_grad():
        for name, small in part(axes, lambda axis: range(sizes[axis.group])).take(whole).items():
            if small.shape != whole[name].shape:
                _replace(net, name, small.detach().clone())
    for path, sides in layers.items():
        layer = net.get_submodule(path)
        found = lengths(layer)
        assert found is not None
        _tell(layer, entries(sides.inside, sizes, found[0]), entries(sides.outside, sizes, found[1]))
    return net


def _replace(net: nn.Module, name: str, tensor: Tensor) -> None:
    place, _, last = name.rpartition(".")
    owner = net.get_submodule(place)
    old = owner._parameters.get(last)
    if old is not None:
        owner._parameters[last] = nn.Parameter(tensor, requires_grad=old.requires_grad)
    else:
        owner._buffers[last] = tensor


def _tell(layer: nn.Module, inside: int, outside: int) -> None:
    """Set the numbers that a layer keeps besides its tensors."""
    if isinstance(layer, _ConvNd):
        if straight(layer):
            layer.groups = inside
        layer.in_channels, layer.out_channels = inside, outside
    elif isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = inside, outside
    elif isinstance(layer, _NormBase):
        layer.num_features = outside
    elif isinstance(layer, nn.GroupNorm):
        layer.num_groups = norm_groups(layer.num_groups, layer.num_channels, outside)
        layer.num_channels = outside
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = (outside,)
    elif isinstance(layer, nn.Embedding):
        layer.embedding_dim = outside
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = outside


def norm_groups(groups: int, channels: int, left: int) -> int:
    """Groups of a group norm with fewer channels: as many as before or the next number that divides them.

    >>> norm_groups(8, 64, 64), norm_groups(8, 64, 20), norm_groups(64, 64, 20)
    (8, 5, 20)
    """
    if groups == channels:
        return left
    return max(count for count in range(1, groups + 1) if left % count == 0)
