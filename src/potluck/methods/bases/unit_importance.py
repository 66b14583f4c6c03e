"""Unit importance: which units matter most to a client (Hermes, TailorFL, FedMask, FedSkel, LotteryFL)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.core import (
    Arrays,
    Axis,
    Device,
    Dimension,
    Dimensions,
    Fit,
    FitRequest,
    Grads,
    Local,
    Model,
    Spec,
    Zoo,
)


def top_units(scores: Tensor, count: int) -> Tensor:
    """True for the `count` units with the highest scores; among equal scores, the first."""
    found = torch.zeros_like(scores, dtype=torch.bool)
    found[scores.argsort(descending=True, stable=True)[:count]] = True
    return found


def validation_score(model: Model, device: Device) -> float:
    """A model's accuracy on the client's validation split or, if it has none, on its training examples.

    Never on its test split. If the problem's main metric is not accuracy, that metric. It counts as the client's work.
    """
    examples = device.validation if len(device.validation) else device.data
    scores = device.problem.scores([device.problem.tally(device.build(model), examples)])
    work = device.zoo.cost(model.spec, 1)
    device.charge(work.forward_flops * len(examples), work.parameter_bytes)
    return float(scores[device.problem.metric] or 0.0)


def taylor_importance(model: Model, device: Device) -> Generator[FitRequest, Fit, dict[str, Tensor]]:
    """First-order Taylor importance: the rise of the loss without each unit, as |sum of weight x gradient|."""
    still = Local(lr=0.0, steps=1, batch=max(len(device.data), 1))
    fit = yield FitRequest(model, device.data, still, want_gradient=True)
    values = {name: model.arrays[name] * gradient for name, gradient in (fit.gradient or {}).items()}
    return unit_scores(values, device.zoo.axes(model.spec), model.spec)


def unit_scores(values: Arrays, axes: Mapping[str, Dimensions], spec: Spec) -> dict[str, Tensor]:
    """For each unit of each group: |sum of its rows' values|, added over all tensors with the group's units as rows."""
    where = next((value.device for value in values.values()), None)
    totals = {group: torch.zeros(size, device=where) for group, size in spec.sizes.items()}
    for name, value in values.items():
        for group, found in sum_by_unit(row_axis(axes[name]), value).items():
            totals[group] = totals[group] + found.abs()
    return totals


def row_axis(dimensions: Dimensions) -> Dimension:
    """The axis of a tensor's rows; None: these rows are never cut."""
    return dimensions[0] if dimensions else None


def sum_by_unit(dimension: Dimension, values: Tensor) -> dict[str, Tensor]:
    """Sums a tensor over everything but the units of its first dimension."""
    found: dict[str, Tensor] = {}
    at = 0
    for axis in _axes(dimension):
        piece = values[at : at + axis.length].reshape(axis.outer, axis.size, axis.inner, -1).sum((0, 2, 3))
        found[axis.group] = found[axis.group] + piece if axis.group in found else piece
        at += axis.length
    return found


def unit_entries(dimension: Dimension, units: Arrays) -> Tensor:
    """A mask over a dimension: true for the entries that belong to these units."""
    return torch.cat([units[axis.group].repeat_interleave(axis.inner).repeat(axis.outer) for axis in _axes(dimension)])


def prunable_weights(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """The names of weights, in forward order, without biases, norms and buffers."""
    fixed = zoo.buffers(spec)
    return tuple(name for name, (shape, _) in zoo.shapes(spec).items() if len(shape) > 1 and name not in fixed)


def _axes(dimension: Dimension) -> tuple[Axis, ...]:
    if dimension is None:
        return ()
    return dimension if isinstance(dimension, tuple) else (dimension,)


def layer_of(name: str) -> str:
    """The layer that a tensor belongs to."""
    return name.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class MaskedGradients:
    """Sets gradients to zero outside these masks; a tensor without a mask trains whole."""

    masks: Arrays

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {
            name: torch.where(self.masks[name], grad, 0.0) if name in self.masks else grad
            for name, grad in grads.items()
        }
