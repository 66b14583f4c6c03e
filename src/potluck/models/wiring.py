"""Which channels of a module belong together, read from the dependency graph of ``torch-pruning``.

The graph knows layers and, from autograd, what lies between them; for each connection it says which entry of one
layer's side becomes which entry of the next one's. Entries that are connected are one unit.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from potluck.core import SettingsError
from potluck.models.carving import lengths, straight
from potluck.models.graph import Entry, Probe, dependencies, is_output, mapped

Side: TypeAlias = "tuple[str, str]"
"""A layer's path (or the name of a parameter that no layer owns) and ``in`` or ``out``."""

Labels: TypeAlias = "dict[Side, list[int | None]]"
"""For each entry of a side the unit that it belongs to; None: an entry that is never cut."""


class Units:
    """Entries that were found to belong together: a forest whose trees are units."""

    def __init__(self) -> None:
        self.parents: dict[Hashable, Hashable] = {}

    def root(self, entry: Hashable) -> Hashable:
        self.parents.setdefault(entry, entry)
        while self.parents[entry] != entry:
            self.parents[entry] = entry = self.parents[self.parents[entry]]
        return entry

    def join(self, one: Hashable, other: Hashable) -> None:
        self.parents[self.root(one)] = self.root(other)


def raw(net: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that a module uses by itself instead of through one of torch's layers."""
    owned = {
        id(parameter)
        for layer in net.modules()
        if lengths(layer) is not None
        for parameter in layer.parameters(recurse=False)
    }
    return {name: parameter for name, parameter in net.named_parameters() if id(parameter) not in owned}


def wire(net: nn.Module, example: tuple[Tensor, ...]) -> Labels:
    """Read from the graph which entries of which sides are one unit."""
    probe = Probe(copy.deepcopy(net), example).eval()
    for parameter in probe.parameters():
        parameter.requires_grad_()  # the graph sees only what autograd does
    graph, units = dependencies(probe, example), Units()
    layers = {path: layer for path, layer in probe.net.named_modules() if lengths(layer) is not None}
    loose = {name: parameter for name, parameter in raw(probe.net).items() if parameter in graph.module2node}
    _refuse_unused(graph, layers)
    fixed = _walk(graph, units, [*layers.values(), *probe.entries, *loose.values()])
    _refuse_overflow(graph, units, layers, loose)
    found: dict[Side, list[Hashable]] = {}
    for path, layer in layers.items():
        found |= _layer_entries(graph, units, path, layer)
    for name, parameter in loose.items():
        found[name, "out"] = _entries(graph, parameter, "out", parameter.shape[raw_dim(parameter)])
    made = {units.root(entry) for (_, side), entries in found.items() if side == "out" for entry in entries}
    return _numbered(units, found, made - {units.root(entry) for entry in fixed})


def raw_dim(parameter: nn.Parameter) -> int:
    """The dimension of a loose parameter that counts channels, as the graph has it: the last that is longer than 1."""
    return max((dim for dim, length in enumerate(parameter.shape) if length > 1), default=0)


def _numbered(units: Units, found: Mapping[Side, list[Hashable]], cut: set[Hashable]) -> Labels:
    numbers: dict[Hashable, int] = {}

    def number(entry: Hashable) -> int | None:
        root = units.root(entry)
        return numbers.setdefault(root, len(numbers)) if root in cut else None

    return {side: [number(entry) for entry in entries] for side, entries in found.items()}


def _walk(graph: Any, units: Units, roots: Iterable[Any]) -> set[Hashable]:
    """Join whatever is connected; returns the entries that are tied to the input or the output."""
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
            fresh = [entry for entry in entries if entry not in seen[node, way]]
            seen[node, way].update(fresh)
            if isinstance(node.module, Entry) or is_output(node):
                fixed |= {(node, way, entry) for entry in fresh}
            for dep in node.dependencies if fresh else ():
                if dep.is_triggered_by(way):
                    pairs = list(mapped(dep, fresh))
                    for before, after in pairs:
                        units.join((node, way, before), (dep.target, dep.handler, after))
                    todo.append((dep.target, dep.handler, [after for _, after in pairs]))
    return fixed


def _entries(graph: Any, layer: nn.Module | nn.Parameter, side: str, length: int) -> list[Hashable]:
    pruner = graph.get_pruner_of_module(layer)
    way = pruner.prune_in_channels if side == "in" else pruner.prune_out_channels
    return [(graph.module2node[layer], way, entry) for entry in range(length)]


def _layer_entries(graph: Any, units: Units, path: str, layer: nn.Module) -> dict[Side, list[Hashable]]:
    """The entries of a layer's two sides, joined as its kind wants it."""
    inside, outside = (_entries(graph, layer, side, length) for side, length in _sides(layer))
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        _join_groups(units, layer, inside, outside)
    return {(path, "in"): inside, (path, "out"): outside}


def _sides(layer: nn.Module) -> tuple[tuple[str, int], tuple[str, int]]:
    found = lengths(layer)
    assert found is not None
    return ("in", found[0]), ("out", found[1])


def _refuse_unused(graph: Any, layers: Mapping[str, nn.Module]) -> None:
    for path, layer in layers.items():
        if layer not in graph.module2node:
            raise SettingsError(
                f"layer '{path}' ({type(layer).__name__}) has no part in the output on the example, so its units "
                "cannot be traced. Take it out, or use it in evaluation too."
            )


def _refuse_overflow(
    graph: Any, units: Units, layers: Mapping[str, nn.Module], loose: Mapping[str, nn.Parameter]
) -> None:
    """The graph takes what it does not know for element-wise; it shows where a layer would have too many channels."""
    for path, layer in layers.items():
        for side, length in _sides(layer):
            if _entries(graph, layer, side, length + 1)[-1] in units.parents:
                cause = f"'{next(iter(loose))}', used without a layer" if loose else "a reshape, or a matrix product"
                raise SettingsError(
                    f"layer '{path}' ({type(layer).__name__}) has {length} channels where those around it have more: "
                    f"what lies between them cannot be traced ({cause})."
                )


def _join_groups(units: Units, layer: _ConvNd, inside: list[Hashable], outside: list[Hashable]) -> None:
    """Depthwise: a channel and what is made of it are one unit. Grouped: all groups keep the same positions."""
    if straight(layer):
        each = len(outside) // len(inside)
        for place, entry in enumerate(outside):
            units.join(entry, inside[place // each])
        return
    for side in (inside, outside):
        each = len(side) // layer.groups
        for place, entry in enumerate(side):
            units.join(entry, side[place % each])
