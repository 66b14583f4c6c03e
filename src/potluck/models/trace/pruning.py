"""Structured pruning of PyTorch's own layers: what their tensors count, and how a layer becomes narrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from potluck.core import EMPTY, Axis, Dimension, Dimensions
from potluck.models.trace.cut_attention import cut_attention
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


@dataclass(frozen=True)
class HeadCut:
    """The heads of a module that attends, at full width, and how they are cut."""

    cut: str
    """``whole``: heads stay or go whole. ``width``: all heads keep the same units."""
    heads: int
    width: int
    """Units of query and key in one head."""
    query_key: str
    """The group of their units; empty: they are never cut."""
    value: str

    def left(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The number and the width of heads at these sizes."""
        if self.cut == "whole":
            return sizes.get(self.query_key, self.heads), self.width
        return self.heads, sizes.get(self.query_key, self.width)


HEAD_COUNTS = ("num_heads", "heads", "n_heads", "n_head", "nhead", "num_attention_heads", "h")
HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size", "d_head", "dim_head", "head_width", "d_k")
ALL_HEADS = ("embed_dim", "all_head_size", "split_size", "inner_dim", "hidden_size", "d_model", "n_embd", "embed_size")
"""Names under which modules that attend store the number of heads, a head's units, and the units of all heads."""


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
    if isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None:
        return layer.in_proj_weight.shape[1], layer.in_proj_weight.shape[0]
    return (layer.nx, layer.nf) if is_transposed_linear(layer) else None


def is_transposed_linear(layer: Any) -> TypeGuard[Any]:
    """Whether a layer is the linear one of GPT-2 in ``transformers``, whose weight is [inputs, outputs]."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__.startswith("transformers.")


def is_channelwise(layer: nn.Module) -> bool:
    """Whether each output channel is made of one input channel alone, as in norms and depthwise convolutions."""
    if isinstance(layer, nn.Linear | nn.MultiheadAttention) or is_transposed_linear(layer):
        return False
    return not isinstance(layer, _ConvNd) or layer.groups == layer.in_channels > 1


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
    if is_transposed_linear(layer):
        return {"weight": (inputs, outputs), "bias": (outputs,)}
    if isinstance(layer, nn.MultiheadAttention):
        return {"in_proj_weight": (outputs, inputs), "in_proj_bias": (outputs,)}
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
    net: nn.Module,
    axes: Mapping[str, Dimensions],
    layers: Mapping[str, LayerAxes],
    sizes: Mapping[str, int],
    heads: Mapping[str, HeadCut] = EMPTY,
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
    for layer in net.modules():
        if isinstance(layer, nn.RNNBase):
            _set_recurrent(layer)
    for path, cut in heads.items():
        _set_heads(net.get_submodule(path), cut, sizes)
    return net


def _set_recurrent(layer: nn.RNNBase) -> None:
    """Set the numbers of a recurrent layer by its tensors, and the list of them that it keeps."""
    inputs, hidden = layer.weight_ih_l0, layer.weight_hh_l0
    assert isinstance(inputs, Tensor)
    assert isinstance(hidden, Tensor)
    layer.input_size, layer.hidden_size = inputs.shape[1], hidden.shape[1]
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


def _set_heads(module: nn.Module, cut: HeadCut, sizes: Mapping[str, int]) -> None:
    """Set the numbers of heads and units that a module which attends stores, under the names in use for them."""
    heads, width = cut.left(sizes)
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight.shape != (3 * module.embed_dim, module.embed_dim):
            cut_attention(module).num_heads = heads
        return
    for names, old, new in (
        (HEAD_COUNTS, cut.heads, heads),
        (HEAD_WIDTHS, cut.width, width),
        (ALL_HEADS, cut.heads * cut.width, heads * width),
    ):
        for name in names:
            if vars(module).get(name) == old:
                setattr(module, name, new)


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
    elif is_transposed_linear(layer):
        layer.nx, layer.nf = inputs, outputs


def norm_groups(groups: int, channels: int, left: int) -> int:
    """Groups of a group norm that has only `left` of its channels: as before, or the next smaller number that divides.

    >>> norm_groups(8, 64, 64), norm_groups(8, 64, 20), norm_groups(64, 64, 20)
    (8, 5, 20)
    """
    if groups == channels:
        return left
    return max(count for count in range(1, groups + 1) if left % count == 0)
