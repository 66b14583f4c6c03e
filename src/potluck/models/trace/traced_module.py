"""A module with traced axis groups: found once, then fixed, and checked by numbers before they are used."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from potluck.core import Axis, Dimension, Dimensions, SettingsError
from potluck.models.options import check_integer, error_line, refuse_unknown
from potluck.models.trace.channel_groups import channel_axes
from potluck.models.trace.equivalence import check_equivalence
from potluck.models.trace.pruning import LayerAxes, prune

UNTRACEABLE = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.EmbeddingBag)
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
        return prune(net, self.axes, self.layers, left)

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
        }

    @property
    def checksum(self) -> str:
        """SHA-256 of the axes; device and server compare it."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()


def axes_from_plain(plain: Mapping[str, Any]) -> Mapping[str, Dimensions]:
    """The axes that `TracedModule.plain` wrote."""
    return {name: tuple(_dimension(each) for each in dimensions) for name, dimensions in plain["axes"].items()}


def trace(net: nn.Module, example: Tensor | tuple[Tensor, ...]) -> TracedModule:
    """Find the axis groups of a module by running an example (a batch of inputs, or one batch per argument).

    The user declares nothing, and the module is not changed. Input channels and outputs are never pruned. A module
    that cannot be traced fully is refused: `SettingsError` names the layer and the reason.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    refuse_untraceable(net)
    run_example(net, inputs)
    axes, layers = channel_axes(net, inputs)
    traced = TracedModule(net, inputs, MappingProxyType(axes), MappingProxyType(layers))
    traced.check([0.5])
    return traced


def run_example(net: nn.Module, example: tuple[Tensor, ...]) -> object:
    """Run a copy of the network on the example, in evaluation mode."""
    try:
        with torch.no_grad():
            return copy.deepcopy(net).eval()(*example)
    except Exception as fault:  # a user's code may raise anything
        raise SettingsError(f"{type(net).__name__} cannot run on the example: {error_line(fault)}") from fault


def refuse_untraceable(net: nn.Module) -> None:
    """Refuse a module with layers or tensors that cannot be traced."""
    _refuse_shared(net)
    for path, module in net.named_modules():
        where = f"layer '{path}' ({type(module).__name__})" if path else type(module).__name__
        if isinstance(module, UNTRACEABLE):
            raise SettingsError(f"{where} cannot be traced: its units are not channels of one layer. Declare a family.")
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


def _refuse_shared(net: nn.Module) -> None:
    names: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            raise SettingsError(
                f"'{names[id(parameter)]}' and '{name}' are one parameter under two names, which would be averaged "
                "separately. Call one layer twice instead."
            )


def _refuse_hidden_tensors(where: str, module: nn.Module) -> None:
    """Refuse tensors outside the state dict: they would not be sent to a device."""
    hidden = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
    if hidden:
        raise SettingsError(f"{where} has the buffer '{hidden[0]}' with persistent=False. Make it persistent.")
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
