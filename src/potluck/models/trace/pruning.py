"""Structured pruning of PyTorch's own layers: what their tensors count, and how a layer becomes narrow."""

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

SideEntries: TypeAlias = "tuple[str, int] | None"
"""One dimension of a tensor: the first so many entries of a layer's side ``in`` or ``out``; None: never pruned."""


@dataclass(frozen=True)
class LayerAxes:
    """The axes of a layer's inputs and of its outputs; they are the same for norms and other channel-wise layers."""

    inputs: Dimension
    outputs: Dimension

    def __getitem__(self, side: str) -> Dimension:
        return self.inputs if side == "in" else self.outputs


def channel_counts(layer: nn.Module) -> tuple[int, int] | None:
    """Input and output channels (or features) of a layer that can be pruned; None for any other module."""
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


def is_channelwise(layer: nn.Module) -> bool:
    """Whether each output channel is made of one input channel alone, as in norms and depthwise convolutions."""
    return not isinstance(layer, nn.Linear) and (
        not isinstance(layer, _ConvNd) or layer.groups == layer.in_channels > 1
    )


def tensor_sides(layer: nn.Module) -> dict[str, tuple[SideEntries, ...]]:
    """The side of the layer that each dimension of each tensor counts; trailing dimensions (kernels) are left out."""
    found = channel_counts(layer)
    if found is None:
        return {}
    inputs, outputs = ("in", found[0]), ("out", found[1])
    if isinstance(layer, _ConvNd):
        return {"weight": _kernel_sides(layer), "bias": (outputs,)}
    if isinstance(layer, nn.Linear):
        return {"weight": (outputs, inputs), "bias": (outputs,)}
    if isinstance(layer, nn.Embedding):
        return {"weight": (None, outputs)}
    return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (outputs,))


def _kernel_sides(layer: _ConvNd) -> tuple[SideEntries, ...]:
    first, second = ("in", "out") if isinstance(layer, _ConvTransposeNd) else ("out", "in")
    if is_channelwise(layer):
        return ((first, layer.weight.shape[0]), None)
    return ((first, layer.weight.shape[0]), (second, layer.weight.shape[1]))


def first_entries(dimension: Dimension, entries: int) -> Dimension:
    """The first entries of a dimension; the kernel of a grouped convolution sees one group of the channels only."""
    found: list[Axis] = []
    for axis in dimension if isinstance(dimension, tuple) else (dimension,):
        if axis is None or entries == 0:
            break
        count = min(axis.length, entries)
        copies, rest = divmod(count, axis.size * axis.inner)
        if rest:
            raise ValueError(f"{entries} entries end inside {axis}")
        found.append(Axis(axis.group, axis.size, copies, axis.inner))
        entries -= count
    return found[0] if len(found) == 1 else tuple(found) or None


def entry_count(dimension: Dimension, sizes: Mapping[str, int], full: int) -> int:
    """Entries of a dimension when its groups have these sizes; `full` for a dimension that is never pruned."""
    if dimension is None:
        return full
    axes = dimension if isinstance(dimension, tuple) else (dimension,)
    return sum(axis.outer * sizes[axis.group] * axis.inner for axis in axes)


def prune(
    net: nn.Module, axes: Mapping[str, Dimensions], layers: Mapping[str, LayerAxes], sizes: Mapping[str, int]
) -> nn.Module:
    """Prune a network in place: it keeps the first units of each group."""
    full: dict[str, Tensor] = net.state_dict()
    with torch.no_grad():
        for name, small in part(axes, lambda axis: range(sizes[axis.group])).take(full).items():
            if small.shape != full[name].shape:
                _replace_tensor(net, name, small.detach().clone())
    for path, each in layers.items():
        layer = net.get_submodule(path)
        found = channel_counts(layer)
        assert found is not None
        _set_channel_counts(
            layer, entry_count(each.inputs, sizes, found[0]), entry_count(each.outputs, sizes, found[1])
        )
    return net


def _replace_tensor(net: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = net.get_submodule(path)
    old = owner._parameters.get(last)
    if old is not None:
        owner._parameters[last] = nn.Parameter(tensor, requires_grad=old.requires_grad)
    else:
        owner._buffers[last] = tensor


def _set_channel_counts(layer: nn.Module, inputs: int, outputs: int) -> None:
    """Set the numbers that a layer stores besides its tensors."""
    if isinstance(layer, _ConvNd):
        if is_channelwise(layer):
            layer.groups = inputs
        layer.in_channels, layer.out_channels = inputs, outputs
    elif isinstance(layer, nn.Linear):
        layer.in_features, layer.out_features = inputs, outputs
    elif isinstance(layer, _NormBase):
        layer.num_features = outputs
    elif isinstance(layer, nn.GroupNorm):
        layer.num_groups = norm_groups(layer.num_groups, layer.num_channels, outputs)
        layer.num_channels = outputs
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = (outputs,)
    elif isinstance(layer, nn.Embedding):
        layer.embedding_dim = outputs
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = outputs


def norm_groups(groups: int, channels: int, left: int) -> int:
    """Groups of a group norm that has only `left` of its channels: as before, or the next smaller number that divides.

    >>> norm_groups(8, 64, 64), norm_groups(8, 64, 20), norm_groups(64, 64, 20)
    (8, 5, 20)
    """
    if groups == channels:
        return left
    return max(count for count in range(1, groups + 1) if left % count == 0)
