"""Axes that a user declares for a module that cannot be traced; they are checked by numbers like traced ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from potluck.core import Axis, Dimension, Dimensions, SettingsError
from potluck.models.options import error_line, refuse_unknown
from potluck.models.trace.pruning import LayerAxes, channel_counts, tensor_sides
from potluck.models.trace.traced_module import TracedModule, declared_sizes


def declared_axes(factory: Any, net: nn.Module) -> Mapping[str, Dimensions] | None:
    """What ``axes`` returns, a function of the factory (called with the network) or a method of the network.

    None: neither declares axes.
    """
    function = getattr(factory, "axes", None)
    given = (net,) if callable(function) else ()
    function = function if callable(function) else getattr(net, "axes", None)
    if not callable(function):
        return None
    try:
        found = dict(function(*given))
    except Exception as fault:  # a user's code may raise anything
        raise SettingsError(f"axes fails: {error_line(fault)}") from fault
    return {name: _as_tuple(name, each) for name, each in found.items()}


def declared_module(net: nn.Module, example: Tensor, axes: Mapping[str, Dimensions]) -> TracedModule:
    """The module with these axes; a tensor that is not named is never cut. Refused unless the numbers agree."""
    tensors = net.state_dict()
    refuse_unknown("the network", "tensor", axes, tensors)
    for name, dimensions in axes.items():
        _check_lengths(name, tensors[name], dimensions)
    declared_sizes(axes)
    every = {name: axes.get(name, ()) for name in tensors}
    layers = {
        path: _layer_axes(path, layer, every)
        for path, layer in net.named_modules()
        if channel_counts(layer) is not None
    }
    traced = TracedModule(net, (example,), MappingProxyType(every), MappingProxyType(layers))
    traced.check([0.5])
    return traced


def _as_tuple(name: str, dimensions: Any) -> Dimensions:
    found = dimensions if isinstance(dimensions, tuple) else (dimensions,)
    for each in found:
        parts = each if isinstance(each, tuple) else (each,)
        if not all(part is None or isinstance(part, Axis) for part in parts):
            raise SettingsError(f"axes of '{name}': {each!r} is not an Axis, several Axis in a tuple, or None.")
    return found


def _check_lengths(name: str, tensor: Tensor, dimensions: Dimensions) -> None:
    if len(dimensions) > tensor.dim():
        raise SettingsError(f"axes of '{name}': {len(dimensions)} dimensions, and the tensor has {tensor.dim()}.")
    for dim, each in enumerate(dimensions):
        parts = each if isinstance(each, tuple) else () if each is None else (each,)
        if parts and sum(axis.length for axis in parts) != tensor.shape[dim]:
            lengths = " + ".join(f"{axis.outer} x {axis.size} x {axis.inner}" for axis in parts)
            raise SettingsError(
                f"axes of '{name}': dimension {dim} has {tensor.shape[dim]} entries, and the axes {lengths} "
                "(outer x size x inner)."
            )


def _layer_axes(path: str, layer: nn.Module, axes: Mapping[str, Dimensions]) -> LayerAxes:
    """The axes of a layer's inputs and outputs, by those of its tensors."""
    counts = channel_counts(layer)
    assert counts is not None
    found: dict[str, Dimension] = {}
    for last, sides in tensor_sides(layer).items():
        dimensions = axes.get(f"{path}.{last}" if path else last, ())
        for side, dimension in zip(sides, dimensions, strict=False):
            if side is not None and dimension is not None:
                copies = counts[side[0] == "out"] // side[1]
                found[side[0]] = _repeat(dimension, copies)
    both = tensor_sides(layer).get("weight", ())
    alike = not any(side is not None and side[0] == "in" for side in both)
    outputs = found.get("out", found.get("in") if alike else None)
    return LayerAxes(found.get("in", outputs if alike else None), outputs)


def _repeat(dimension: Dimension, copies: int) -> Dimension:
    if copies == 1 or not isinstance(dimension, Axis):
        return dimension
    return Axis(dimension.group, dimension.size, dimension.outer * copies, dimension.inner)
