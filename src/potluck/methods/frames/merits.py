"""What units are worth to a client, and which of them it keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import Arrays, Axis, Device, Dimension, Dimensions, Local, Model, Spec, Zoo
from potluck.methods.frames.through import hooked

SIMILAR = 3
"""Devices whose units are recommended to one."""


def top(scores: Tensor, count: int) -> Tensor:
    """Truth values: whether each is among the `count` highest; of equal ones the first."""
    found = torch.zeros_like(scores, dtype=torch.bool)
    found[scores.argsort(descending=True, stable=True)[:count]] = True
    return found


def accuracy(net: nn.Module, device: Device) -> float:
    """On the client's validation split or, where it has none, on the examples it trains on; never on its test split.

    Of a problem that is not scored by accuracy, its own main score.
    """
    examples = device.validation if len(device.validation) else device.data
    scores = device.problem.scores([device.problem.tally(net, examples)])
    return float(scores[device.problem.metric] or 0.0)


def taylor(model: Model, device: Device) -> dict[str, Tensor]:
    """How much the loss on a client's data would miss each unit, to first order: |sum of weight x gradient|."""
    still = Local(lr=0.0, steps=1, batch=max(len(device.data), 1))
    found = device.fit(device.build(model), device.data, still, want_gradient=True).gradient or {}
    arrays = model.arrays or {}
    values = {name: arrays[name] * gradient for name, gradient in found.items()}
    return unit_scores(values, device.zoo.axes(model.spec), model.spec)


def unit_scores(values: Arrays, axes: Mapping[str, Dimensions], spec: Spec) -> dict[str, Tensor]:
    """For each unit of each group: |sum of its rows' values|, added over all tensors whose rows are its group's."""
    where = next((value.device for value in values.values()), None)
    totals = {group: torch.zeros(size, device=where) for group, size in spec.sizes.items()}
    for name, value in values.items():
        for group, found in by_unit(rows(axes[name]), value).items():
            totals[group] = totals[group] + found.abs()
    return totals


def rows(dimensions: Dimensions) -> Dimension:
    """What the rows of a tensor count; None: nothing that is ever cut."""
    return dimensions[0] if dimensions else None


def by_unit(dimension: Dimension, values: Tensor) -> dict[str, Tensor]:
    """A tensor summed over all but the units that its first dimension counts."""
    found: dict[str, Tensor] = {}
    at = 0
    for axis in _axes(dimension):
        piece = values[at : at + axis.length].reshape(axis.outer, axis.size, axis.inner, -1).sum((0, 2, 3))
        found[axis.group] = found[axis.group] + piece if axis.group in found else piece
        at += axis.length
    return found


def entries(dimension: Dimension, units: Arrays) -> Tensor:
    """The entries of a dimension that belong to these units, as truth values."""
    return torch.cat([units[axis.group].repeat_interleave(axis.inner).repeat(axis.outer) for axis in _axes(dimension)])


def prunable(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """Weights proper, in forward order: no biases, norms or buffers."""
    fixed = zoo.buffers(spec)
    return tuple(name for name, (shape, _) in zoo.shapes(spec).items() if len(shape) > 1 and name not in fixed)


def _axes(dimension: Dimension) -> tuple[Axis, ...]:
    if dimension is None:
        return ()
    return dimension if isinstance(dimension, tuple) else (dimension,)


def activity(net: nn.Module, device: Device, batch: int) -> dict[str, Tensor]:
    """For each unit, the sum of |what its layers say| over a client's data."""
    zoo = device.zoo
    axes, where = zoo.axes(zoo.full), next(net.parameters()).device
    totals = {group: torch.zeros(size, device=where) for group, size in zoo.full.sizes.items()}

    def heard(name: str, _: nn.Module, __: Any, said: Tensor) -> None:
        units = -1 if len(zoo.shapes(zoo.full)[name][0]) == 2 else 1
        for group, found in by_unit(rows(axes[name]), said.abs().movedim(units, 0)).items():
            totals[group] += found

    with hooked(net, {layer(name): partial(heard, name) for name in prunable(zoo.full, zoo) if rows(axes[name])}):
        device.observe(net, device.data, batch)
    return totals


def layer(name: str) -> str:
    """The layer that a tensor belongs to."""
    return name.rpartition(".")[0]


def popular(id: str, held: Mapping[str, Arrays]) -> Arrays:
    """How many of the devices most similar to this one hold each unit."""
    others = sorted(
        (other for other in held if other != id), key=lambda other: (-jaccard(held[id], held[other]), other)
    )
    return {
        group: sum((held[other][group].to(torch.uint8) for other in others[:SIMILAR]), torch.zeros_like(units.byte()))
        for group, units in held[id].items()
    }


def jaccard(ours: Arrays, theirs: Arrays) -> float:
    """Units that both hold, of those that either holds."""
    both = sum(int((units & theirs[group]).sum()) for group, units in ours.items())
    return both / max(1, sum(int((units | theirs[group]).sum()) for group, units in ours.items()))


def swapped(units: Tensor, importance: Tensor, wanted: Tensor, share: float) -> Tensor:
    """These units, with this share of them, the least important, given for others: the most wanted."""
    count = min(math.ceil(share * int(units.sum()) - 1e-9), int(((wanted > 0) & ~units).sum()))
    leaving = top(torch.where(units, -importance, -torch.inf), count)
    return (units & ~leaving) | top(torch.where(units, -1.0, wanted.float()), count)


def alike(ours: Arrays, theirs: Arrays) -> bool:
    """Whether both hold equally many units of every group."""
    return all(int(units.sum()) == int(theirs[group].sum()) for group, units in ours.items())
