"""The channel groups of a module: which channels must be pruned together, read from its dependency graph.

For each connection between two layers the graph says which output entry of one is which input entry of the other.
Entries that are connected form one unit. Units that occur in the same places form one axis group.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import groupby
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from potluck.core import Axis, Dimension, Dimensions, SettingsError
from potluck.models.trace.dependency_graph import (
    InputMarker,
    MarkedNetwork,
    connected_entries,
    dependency_graph,
    is_output,
)
from potluck.models.trace.pruning import LayerAxes, channel_counts, first_entries, is_channelwise, tensor_sides

FIXED = ":fixed"
"""The group of entries that are never pruned but share a dimension with some that are; one unit holds them all."""

LayerSide: TypeAlias = "tuple[str, str]"
"""A layer's path (or the name of a parameter that no layer owns) and ``in`` or ``out``."""

UnitLabels: TypeAlias = "dict[LayerSide, list[int | None]]"
"""The unit of each entry of a layer's side; None: an entry that is never pruned."""


class UnionFind:
    """Disjoint sets of entries: each set is one unit."""

    def __init__(self) -> None:
        self.parents: dict[Hashable, Hashable] = {}

    def root(self, entry: Hashable) -> Hashable:
        self.parents.setdefault(entry, entry)
        while self.parents[entry] != entry:
            self.parents[entry] = entry = self.parents[self.parents[entry]]
        return entry

    def join(self, one: Hashable, other: Hashable) -> None:
        self.parents[self.root(one)] = self.root(other)


def channel_axes(net: nn.Module, example: tuple[Tensor, ...]) -> tuple[dict[str, Dimensions], dict[str, LayerAxes]]:
    """The axes of each tensor of the state dict, and those of each layer that can be pruned."""
    free = {name: _channel_dim(parameter) for name, parameter in free_parameters(net).items()}
    axes, layers, _ = axes_of_labels(net, unit_labels(net, example), free)
    return axes, layers


def axes_of_labels(
    net: nn.Module, labels: UnitLabels, free_dims: Mapping[str, int]
) -> tuple[dict[str, Dimensions], dict[str, LayerAxes], dict[int, str]]:
    """The axes of each tensor and of each layer, and the group of each unit; `free_dims`: see `_channel_dim`."""
    groups, positions = _unit_groups(labels)
    dimensions = {side: _side_axes(side, entries, groups, positions) for side, entries in labels.items()}
    layers = {
        path: LayerAxes(dimensions[path, "in"], dimensions[path, "out"])
        for path, layer in net.named_modules()
        if channel_counts(layer) is not None
    }
    return _tensor_axes(net, layers, dimensions, free_dims), layers, groups


def free_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that a module's forward uses directly, not through one of PyTorch's layers."""
    owned = {
        id(parameter)
        for layer in net.modules()
        if channel_counts(layer) is not None
        for parameter in layer.parameters(recurse=False)
    }
    return {name: parameter for name, parameter in net.named_parameters() if id(parameter) not in owned}


def _channel_dim(parameter: nn.Parameter) -> int:
    """The dimension of a free parameter that counts channels. The graph takes the last one that is longer than 1."""
    return max((dim for dim, length in enumerate(parameter.shape) if length > 1), default=0)


def unit_labels(net: nn.Module, example: tuple[Tensor, ...]) -> UnitLabels:
    """The unit of each entry of each layer, numbered over the whole network."""
    marked = MarkedNetwork(copy.deepcopy(net), example).eval()
    for parameter in marked.parameters():
        parameter.requires_grad_()  # the graph sees only what autograd does
    graph, units = dependency_graph(marked, example), UnionFind()
    layers = {path: layer for path, layer in marked.net.named_modules() if channel_counts(layer) is not None}
    free = {name: each for name, each in free_parameters(marked.net).items() if each in graph.module2node}
    _refuse_unused(graph, layers)
    fixed = _join_connected(graph, units, [*layers.values(), *marked.inputs, *free.values()])
    _refuse_overflow(graph, units, layers, free)
    found: dict[LayerSide, list[Hashable]] = {}
    for path, layer in layers.items():
        found |= _layer_entries(graph, units, path, layer)
    for name, parameter in free.items():
        found[name, "out"] = _entries(graph, parameter, "out", parameter.shape[_channel_dim(parameter)])
    outputs = {units.root(entry) for (_, side), entries in found.items() if side == "out" for entry in entries}
    return _number_units(units, found, outputs - {units.root(entry) for entry in fixed})


def _number_units(units: UnionFind, found: Mapping[LayerSide, list[Hashable]], prunable: set[Hashable]) -> UnitLabels:
    numbers: dict[Hashable, int] = {}

    def number(entry: Hashable) -> int | None:
        root = units.root(entry)
        return numbers.setdefault(root, len(numbers)) if root in prunable else None

    return {side: [number(entry) for entry in entries] for side, entries in found.items()}


def _join_connected(graph: Any, units: UnionFind, roots: Iterable[Any]) -> set[Hashable]:
    """Join all entries that are connected. Returns those that are tied to the network's inputs or outputs."""
    seen: dict[Hashable, set[int]] = defaultdict(set)
    fixed: set[Hashable] = set()
    for root in roots:
        node = graph.module2node.get(root)
        count = None if node is None else graph.get_out_channels(node)
        todo: list[tuple[Any, Any, Iterable[int]]] = []
        if count is not None:
            todo.append((node, graph.get_pruner_of_module(root).prune_out_channels, range(count)))
        while todo:
            node, way, entries = todo.pop()
            new = [entry for entry in entries if entry not in seen[node, way]]
            seen[node, way].update(new)
            if isinstance(node.module, InputMarker) or is_output(node):
                fixed |= {(node, way, entry) for entry in new}
            for dep in node.dependencies if new else ():
                if dep.is_triggered_by(way):
                    pairs = list(connected_entries(dep, new))
                    for before, after in pairs:
                        units.join((node, way, before), (dep.target, dep.handler, after))
                    todo.append((dep.target, dep.handler, [after for _, after in pairs]))
    return fixed


def _entries(graph: Any, layer: nn.Module | nn.Parameter, side: str, length: int) -> list[Hashable]:
    pruner = graph.get_pruner_of_module(layer)
    way = pruner.prune_in_channels if side == "in" else pruner.prune_out_channels
    return [(graph.module2node[layer], way, entry) for entry in range(length)]


def _layer_entries(graph: Any, units: UnionFind, path: str, layer: nn.Module) -> dict[LayerSide, list[Hashable]]:
    """The input and output entries of a layer; those of a grouped convolution are joined."""
    inputs, outputs = (_entries(graph, layer, side, length) for side, length in _side_lengths(layer))
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        join_convolution_groups(units, layer, inputs, outputs)
    return {(path, "in"): inputs, (path, "out"): outputs}


def _side_lengths(layer: nn.Module) -> tuple[tuple[str, int], tuple[str, int]]:
    found = channel_counts(layer)
    assert found is not None
    return ("in", found[0]), ("out", found[1])


def join_convolution_groups(units: UnionFind, layer: _ConvNd, inputs: list[Hashable], outputs: list[Hashable]) -> None:
    """Depthwise: an input channel and its outputs are one unit. Grouped: all groups keep the same positions."""
    if is_channelwise(layer):
        each = len(outputs) // len(inputs)
        for position, entry in enumerate(outputs):
            units.join(entry, inputs[position // each])
        return
    for side in (inputs, outputs):
        each = len(side) // layer.groups
        for position, entry in enumerate(side):
            units.join(entry, side[position % each])


def _refuse_unused(graph: Any, layers: Mapping[str, nn.Module]) -> None:
    for path, layer in layers.items():
        if layer not in graph.module2node:
            raise SettingsError(
                f"layer '{path}' ({type(layer).__name__}) has no part in the output on the example, so its units "
                "cannot be traced. Take it out, or use it in evaluation too."
            )


def _refuse_overflow(
    graph: Any, units: UnionFind, layers: Mapping[str, nn.Module], free: Mapping[str, nn.Parameter]
) -> None:
    """Refuse a layer with fewer channels than its neighbours: the graph took an unknown operation for element-wise."""
    for path, layer in layers.items():
        for side, length in _side_lengths(layer):
            if _entries(graph, layer, side, length + 1)[-1] in units.parents:
                cause = f"'{next(iter(free))}', used without a layer" if free else "a reshape, or a matrix product"
                raise SettingsError(
                    f"layer '{path}' ({type(layer).__name__}) has {length} channels where those around it have more: "
                    f"what lies between them cannot be traced ({cause})."
                )


def _unit_groups(labels: UnitLabels) -> tuple[dict[int, str], dict[int, int]]:
    """The group of each unit, and its position there. Units that occur on the same sides equally often are a group."""
    sides: dict[int, Counter[LayerSide]] = defaultdict(Counter)
    for side, entries in labels.items():
        for unit in entries:
            if unit is not None:
                sides[unit][side] += 1
    members: dict[frozenset[tuple[LayerSide, int]], list[int]] = defaultdict(list)
    for unit, counts in sides.items():
        members[frozenset(counts.items())].append(unit)
    groups: dict[int, str] = {}
    positions: dict[int, int] = {}
    taken: Counter[str] = Counter()
    for units in members.values():
        first = min((side for side in sides[units[0]] if side[1] == "out"), key=list(labels).index)[0]
        name = f"{first}:{taken[first]}" if taken[first] else first
        taken[first] += 1
        groups |= dict.fromkeys(units, name)
        positions |= {unit: position for position, unit in enumerate(units)}
    return groups, positions


def _side_axes(
    side: LayerSide, entries: list[int | None], groups: Mapping[int, str], positions: Mapping[int, int]
) -> Dimension:
    """The units of a layer's side as axes: the copies, units and entries per unit of each run of one group."""
    sizes = Counter(groups.values())
    segments: list[Axis] = []
    for group, run in groupby(entries, key=lambda unit: FIXED if unit is None else groups[unit]):
        units = list(run)
        if units[0] is None:
            segments.append(Axis(FIXED, 1, inner=len(units)))
            continue
        inner = next((position for position, unit in enumerate(units) if unit != units[0]), len(units))
        copies = len(units) // (sizes[group] * inner)
        expected = [unit for _ in range(copies) for unit in range(sizes[group]) for _ in range(inner)]
        if [positions[unit] for unit in units if unit is not None] != expected:
            raise SettingsError(
                f"layer '{side[0]}' has its {'inputs' if side[1] == 'in' else 'outputs'} in an order that cannot be "
                f"cut: the units of '{group}' are shuffled, or used in different places at once."
            )
        segments.append(Axis(group, sizes[group], copies, inner))
    if [axis.group for axis in segments] == [FIXED]:
        return None
    return segments[0] if len(segments) == 1 else tuple(segments)


def _tensor_axes(
    net: nn.Module,
    layers: Mapping[str, LayerAxes],
    dimensions: Mapping[LayerSide, Dimension],
    free_dims: Mapping[str, int],
) -> dict[str, Dimensions]:
    axes: dict[str, Dimensions] = dict.fromkeys(net.state_dict(), ())
    for path, sides in layers.items():
        for last, dims in tensor_sides(net.get_submodule(path)).items():
            name = f"{path}.{last}" if path else last
            if name in axes:
                axes[name] = tuple(None if each is None else _first(path, sides[each[0]], each[1]) for each in dims)
    for name, dim in free_dims.items():
        if (dimension := dimensions.get((name, "out"))) is not None:
            axes[name] = (*[None] * dim, dimension)
    return axes


def _first(path: str, dimension: Dimension, entries: int) -> Dimension:
    try:
        return first_entries(dimension, entries)
    except ValueError as fault:
        raise SettingsError(f"layer '{path}' cannot be cut group by group: {fault}.") from None
