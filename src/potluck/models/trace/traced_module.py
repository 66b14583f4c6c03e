"""A module with traced axis groups: found once, then fixed, and checked by numbers before they are used."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from potluck.core import EMPTY, Axis, Dimension, Dimensions, SettingsError
from potluck.models.options import check_integer, error_line, refuse_unknown
from potluck.models.trace.channel_groups import channel_axes
from potluck.models.trace.equivalence import check_equivalence
from potluck.models.trace.pruning import HeadCut, LayerAxes, prune
from potluck.models.trace.unit_labels import attention_axes, has_attention

UNTRACEABLE = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.EmbeddingBag)
"""Layers of PyTorch whose units cannot be traced."""


@dataclass(frozen=True, eq=False)
class TracedModule:
    """A module whose axis groups are known: what its tensors count, and how it becomes narrow."""

    net: nn.Module = field(repr=False)
    """The full network; it is never changed."""
    example: tuple[Tensor, ...] = field(repr=False)
    axes: Mapping[str, Dimensions]
    """What each dimension of each tensor of the state dict counts."""
    layers: Mapping[str, LayerAxes] = field(repr=False)
    """The input and output axes of each layer that can be pruned."""
    uncut: str = ""
    """Why the module cannot be cut; empty: it can. A module that cannot be cut has no groups."""
    heads: Mapping[str, HeadCut] = field(default=EMPTY, repr=False)
    """The heads of each module that attends."""
    needs_numbers: bool = False
    """Whether forward fails on the meta device, as one does that depends on its data."""

    @property
    def sizes(self) -> dict[str, int]:
        """Units of each group at full width."""
        return {
            axis.group: axis.size for each in self.layers.values() for axis in _axes((each.inputs, each.outputs))
        } | {axis.group: axis.size for dimensions in self.axes.values() for axis in _axes(dimensions)}

    def build(self, sizes: Mapping[str, int]) -> nn.Module:
        """A copy of the network with the first units of each group; groups that are not named keep all units."""
        return self.prune(copy.deepcopy(self.net), sizes)

    def prune(self, net: nn.Module, sizes: Mapping[str, int]) -> nn.Module:
        """Prune, in place, another network that the same code made."""
        full = self.sizes
        refuse_unknown("the traced module", "axis group", sizes, full)
        left = {
            group: check_integer(f"size of '{group}'", sizes.get(group, units), 1, units)
            for group, units in full.items()
        }
        return prune(net, self.axes, self.layers, left, self.heads)

    def of_tensors(self, net: nn.Module) -> TracedModule:
        """The axes of another network, whose tensors are some of this one's."""
        names, paths = net.state_dict().keys(), {path for path, _ in net.named_modules()}
        axes = {name: dimensions for name, dimensions in self.axes.items() if name in names}
        layers = {path: each for path, each in self.layers.items() if path in paths}
        heads = {path: each for path, each in self.heads.items() if path in paths}
        return replace(
            self, net=net, axes=MappingProxyType(axes), layers=MappingProxyType(layers), heads=MappingProxyType(heads)
        )

    def check(self, widths: Iterable[float | Mapping[str, float]], draws: int = 2) -> None:
        """Refuse widths at which the narrow network is not equivalent to the full one with the other units zero."""
        for width in widths:
            for draw in range(draws):
                check_equivalence(self, width, seed=draw)

    def plain(self) -> dict[str, Any]:
        """The axes as JSON; equal on two machines exactly when both prune the same way."""
        shapes = {name: list(tensor.shape) for name, tensor in self.net.state_dict().items()}
        return {
            "axes": {name: [_plain(each) for each in dimensions] for name, dimensions in self.axes.items()},
            "layers": {path: [_plain(each.inputs), _plain(each.outputs)] for path, each in self.layers.items()},
            "shapes": shapes,
            **({"heads": {path: list(astuple(each)) for path, each in self.heads.items()}} if self.heads else {}),
        }

    @property
    def checksum(self) -> str:
        """SHA-256 of the axes; device and server compare it."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()


def declared_sizes(axes: Mapping[str, Dimensions]) -> dict[str, int]:
    """The units of each group; refused if tensors disagree on them."""
    found: dict[str, int] = {}
    for name, dimensions in axes.items():
        for axis in _axes(dimensions):
            if found.setdefault(axis.group, axis.size) != axis.size:
                raise SettingsError(
                    f"axes of '{name}': the group '{axis.group}' has {axis.size} units here, and "
                    f"{found[axis.group]} elsewhere."
                )
    return found


def axes_from_plain(plain: Mapping[str, Any]) -> Mapping[str, Dimensions]:
    """The axes that `TracedModule.plain` wrote."""
    return {name: tuple(_dimension(each) for each in dimensions) for name, dimensions in plain["axes"].items()}


def trace(
    net: nn.Module, example: Tensor | tuple[Tensor, ...], cut_heads: Literal["width", "whole"] = "width"
) -> TracedModule:
    """Find the axis groups of a module by running an example (a batch of inputs, or one batch per argument).

    The user declares nothing, and the module is not changed. Input channels and outputs are never pruned. A module
    that cannot be traced fully is refused: `SettingsError` names the layer and the reason.

    `cut_heads`: how attention is cut. ``width``: every head keeps the same units. ``whole``: heads stay or go whole.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    refuse_untraceable(net)
    run_example(net, inputs)
    if has_attention(net, inputs):
        try:
            axes, layers, heads = attention_axes(net, inputs, cut_heads)
        except RuntimeError as fault:  # operations that label no more than they can
            raise SettingsError(
                f"{type(net).__name__} attends in a way that cannot be traced: {error_line(fault)}"
            ) from fault
    else:
        (axes, layers), heads = channel_axes(net, inputs), {}
    traced = TracedModule(net, inputs, MappingProxyType(axes), MappingProxyType(layers), heads=MappingProxyType(heads))
    traced.check([0.5])
    return traced


def uncut_module(net: nn.Module, example: Tensor, reason: str, needs_numbers: bool = False) -> TracedModule:
    """A module that takes part whole: no dimension of its tensors can be cut, for this reason."""
    axes: dict[str, Dimensions] = dict.fromkeys(net.state_dict(), ())
    return TracedModule(
        net, (example,), MappingProxyType(axes), MappingProxyType({}), reason, needs_numbers=needs_numbers
    )


def meta_copy(net: nn.Module) -> nn.Module:
    """A copy of a network on the meta device; the network's tensors are not copied."""
    tensors = [*net.parameters(), *net.buffers()]
    memo = {id(tensor): _meta_tensor(tensor) for tensor in tensors}
    return copy.deepcopy(net, memo)


def _meta_tensor(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def refuse_data_dependence(net: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Refuse a forward that needs the numbers of its input, not only their shape."""
    try:
        with torch.no_grad():
            meta_copy(net).eval()(*(tensor.to("meta") for tensor in example))
    except Exception as fault:  # a user's code may raise anything
        raise SettingsError(
            f"forward of {type(net).__name__} depends on its data, or fails where there are shapes and no numbers "
            f"({error_line(fault)})"
        ) from fault


def run_example(net: nn.Module, example: tuple[Tensor, ...]) -> object:
    """Run a copy of the network on the example, in evaluation mode."""
    try:
        with torch.no_grad():
            return copy.deepcopy(net).eval()(*example)
    except Exception as fault:  # a user's code may raise anything
        raise SettingsError(f"{type(net).__name__} cannot run on the example: {error_line(fault)}") from fault


def refuse_untraceable(net: nn.Module) -> None:
    """Refuse a module with layers or tensors that cannot be traced."""
    refuse_shared(net)
    for path, module in net.named_modules():
        where = f"layer '{path}' ({type(module).__name__})" if path else type(module).__name__
        if any(is_lazy(each) for each in module.parameters(recurse=False)):
            raise SettingsError(f"{where} has no size yet: run the network once before it is traced.")
        if isinstance(module, UNTRACEABLE):
            raise SettingsError(f"{where} cannot be traced: its units are not channels of one layer. Declare its axes.")
        if isinstance(module, nn.MultiheadAttention) and (
            module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn
        ):
            raise SettingsError(f"{where} has kdim, vdim, add_bias_kv or add_zero_attn, which cannot be cut.")
        if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
            raise SettingsError(
                f"{where} normalises over {list(module.normalized_shape)}; only one dimension can be cut."
            )
        if (
            isinstance(module, _ConvNd)
            and module.groups == module.out_channels != module.in_channels > 1 < module.groups
        ):
            raise SettingsError(f"{where} has groups of several inputs and one output, which cannot be cut.")
        _refuse_hidden_tensors(where, module)


def refuse_shared(net: nn.Module) -> None:
    """Refuse a parameter under two names."""
    names: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            raise SettingsError(
                f"'{names[id(parameter)]}' and '{name}' are one parameter under two names, which would be averaged "
                "separately. Call one layer twice instead."
            )


def hidden_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Buffers outside the state dict: they are never sent, and every device has those that its factory made."""
    sent = net.state_dict().keys()
    return {name: tensor for name, tensor in net.named_buffers() if name not in sent}


def _refuse_hidden_tensors(where: str, module: nn.Module) -> None:
    """Refuse tensors that are attributes: they do not move with the network."""
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            raise SettingsError(
                f"{where} keeps the tensor '{name}' as an attribute. Use register_buffer('{name}', ...)."
            )


def _axes(dimensions: Iterable[Dimension]) -> list[Axis]:
    return [axis for each in dimensions for axis in (each if isinstance(each, tuple) else (each,)) if axis is not None]


def _plain(dimension: Dimension) -> Any:
    if isinstance(dimension, Axis):
        return [dimension.group, dimension.size, dimension.outer, dimension.inner]
    return None if dimension is None else {"segments": [_plain(axis) for axis in dimension]}


def _dimension(plain: Any) -> Dimension:
    if isinstance(plain, Mapping):
        return tuple(Axis(*axis) for axis in plain["segments"])
    return None if plain is None else Axis(*plain)
