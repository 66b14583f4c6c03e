"""Axis groups of any module: traced once, frozen, and checked by numbers before anyone relies on them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from potluck.core import Axis, Dimension, Dimensions, SettingsError
from potluck.models import silence, suitable
from potluck.models.carving import Sides, carve, counts, head, lengths
from potluck.models.options import whole
from potluck.models.wiring import Labels, Side, raw, raw_dim, wire

FIXED = ":fixed"
"""The group of entries that are never cut but share a dimension with some that are: one unit that holds them all."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A module whose axis groups are known: what its tensors count, and how to make it narrow."""

    net: nn.Module = field(repr=False)
    """The full network, untouched."""
    example: tuple[Tensor, ...] = field(repr=False)
    axes: Mapping[str, Dimensions]
    """What each dimension of each tensor of the state dict counts."""
    layers: Mapping[str, Sides] = field(repr=False)
    """What goes in and out of each layer that can be cut."""

    @property
    def sizes(self) -> dict[str, int]:
        """Units of each group at full width."""
        return {
            axis.group: axis.size for sides in self.layers.values() for axis in _axes((sides.inside, sides.outside))
        } | {axis.group: axis.size for dimensions in self.axes.values() for axis in _axes(dimensions)}

    def build(self, sizes: Mapping[str, int]) -> nn.Module:
        """A copy of the network with the first units of each group; groups that are not named stay whole."""
        return self.carve(copy.deepcopy(self.net), sizes)

    def carve(self, net: nn.Module, sizes: Mapping[str, int]) -> nn.Module:
        """Cut down, in place, another network that the same code made."""
        full = self.sizes
        suitable.refuse_unknown_groups(sizes, full)
        left = {group: whole(f"size of '{group}'", sizes.get(group, units), 1, units) for group, units in full.items()}
        return carve(net, self.axes, self.layers, left)

    def check(self, widths: Iterable[float | Mapping[str, float]], draws: int = 2) -> None:
        """Refuse widths at which the narrow network does not compute what the whole does with the rest silenced."""
        for width in widths:
            for draw in range(draws):
                silence.check(self, width, seed=draw)

    def plain(self) -> dict[str, Any]:
        """The axes as JSON; equal on two machines exactly when both cut the same way."""
        shapes = {name: list(tensor.shape) for name, tensor in self.net.state_dict().items()}
        return {
            "axes": {name: [_plain(each) for each in dimensions] for name, dimensions in self.axes.items()},
            "layers": {path: [_plain(sides.inside), _plain(sides.outside)] for path, sides in self.layers.items()},
            "shapes": shapes,
        }

    @property
    def checksum(self) -> str:
        """SHA-256 of the frozen axes, for device and server to compare."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()


def frozen_axes(plain: Mapping[str, Any]) -> Mapping[str, Dimensions]:
    """The axes that `Traced.plain` wrote."""
    return {name: tuple(_dimension(each) for each in dimensions) for name, dimensions in plain["axes"].items()}


def trace(net: nn.Module, example: Tensor | tuple[Tensor, ...]) -> Traced:
    """The axis groups of a module, from what it does with an example (a batch of inputs, or one batch per argument).

    Nothing is declared and the module is not changed. Input channels and outputs are never cut. A module that cannot
    be covered fully is refused: `SettingsError` names the layer and the reason.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    suitable.refuse(net)
    suitable.run(net, inputs)
    labels = wire(net, inputs)
    names, places = _groups(labels)
    dimensions = {side: _read(side, entries, names, places) for side, entries in labels.items()}
    layers = {
        path: Sides(dimensions[path, "in"], dimensions[path, "out"])
        for path, layer in net.named_modules()
        if lengths(layer) is not None
    }
    traced = Traced(net, inputs, MappingProxyType(_tensor_axes(net, layers, dimensions)), MappingProxyType(layers))
    traced.check([0.5])
    return traced


def _groups(labels: Labels) -> tuple[dict[int, str], dict[int, int]]:
    """The group of each unit, and its place there. Units that occur on the same sides equally often are a group."""
    sides: dict[int, Counter[Side]] = defaultdict(Counter)
    for side, entries in labels.items():
        for unit in entries:
            if unit is not None:
                sides[unit][side] += 1
    members: dict[frozenset[tuple[Side, int]], list[int]] = defaultdict(list)
    for unit, places in sides.items():
        members[frozenset(places.items())].append(unit)
    names: dict[int, str] = {}
    places_of: dict[int, int] = {}
    taken: Counter[str] = Counter()
    for units in members.values():
        base = min((side for side in sides[units[0]] if side[1] == "out"), key=list(labels).index)[0]
        name = f"{base}:{taken[base]}" if taken[base] else base
        taken[base] += 1
        names |= dict.fromkeys(units, name)
        places_of |= {unit: place for place, unit in enumerate(units)}
    return names, places_of


def _read(side: Side, entries: list[int | None], names: Mapping[int, str], places: Mapping[int, int]) -> Dimension:
    """A side's units as axes: for each run of one group, the copies, units and entries per unit that make it up."""
    sizes = Counter(names.values())
    segments: list[Axis] = []
    for group, run in groupby(entries, key=lambda unit: FIXED if unit is None else names[unit]):
        units = list(run)
        if units[0] is None:
            segments.append(Axis(FIXED, 1, inner=len(units)))
            continue
        inner = next((place for place, unit in enumerate(units) if unit != units[0]), len(units))
        copies = len(units) // (sizes[group] * inner)
        meant = [unit for _ in range(copies) for unit in range(sizes[group]) for _ in range(inner)]
        if [places[unit] for unit in units if unit is not None] != meant:
            raise SettingsError(
                f"layer '{side[0]}' has its {'inputs' if side[1] == 'in' else 'outputs'} in an order that cannot be "
                f"cut: the units of '{group}' are shuffled, or used in different places at once."
            )
        segments.append(Axis(group, sizes[group], copies, inner))
    if [axis.group for axis in segments] == [FIXED]:
        return None
    return segments[0] if len(segments) == 1 else tuple(segments)


def _tensor_axes(
    net: nn.Module, layers: Mapping[str, Sides], dimensions: Mapping[Side, Dimension]
) -> dict[str, Dimensions]:
    axes: dict[str, Dimensions] = dict.fromkeys(net.state_dict(), ())
    for path, sides in layers.items():
        for last, dims in counts(net.get_submodule(path)).items():
            name = f"{path}.{last}" if path else last
            if name in axes:
                axes[name] = tuple(None if each is None else _part_of(path, sides[each[0]], each[1]) for each in dims)
    for name, parameter in raw(net).items():
        if (dimension := dimensions.get((name, "out"))) is not None:
            axes[name] = (*[None] * raw_dim(parameter), dimension)
    return axes


def _part_of(path: str, dimension: Dimension, entries: int) -> Dimension:
    try:
        return head(dimension, entries)
    except ValueError as fault:
        raise SettingsError(f"layer '{path}' cannot be cut group by group: {fault}.") from None


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
