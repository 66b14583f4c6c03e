"""How much units matter to a client, and which of them it keeps (Hermes, TailorFL, FedMask, FedSkel, LotteryFL)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """Whether each unit is among the `count` with the highest scores; of equal ones the first."""
    found = torch.zeros_like(scores, dtype=torch.bool)
    found[scores.argsort(descending=True, stable=True)[:count]] = True
    return found


def validation_score(net: nn.Module, device: Device) -> float:
    """On the client's validation split or, where it has none, on the examples it trains on; never on its test split.

    Of a problem that is not scored by accuracy, its own main score.
    """
    examples = device.validation if len(device.validation) else device.data
    scores = device.problem.scores([device.problem.tally(net, examples)])
    return float(scores[device.problem.metric] or 0.0)


def taylor_importance(model: Model, device: Device) -> Generator[FitRequest, Fit, dict[str, Tensor]]:
    """How much the loss on a client's data would rise without each unit, to first order: |sum of weight x gradient|."""
    still = Local(lr=0.0, steps=1, batch=max(len(device.data), 1))
    fit = yield FitRequest(model, device.data, still, want_gradient=True)
    values = {name: model.arrays[name] * gradient for name, gradient in (fit.gradient or {}).items()}
    return unit_scores(values, device.zoo.axes(model.spec), model.spec)


def unit_scores(values: Arrays, axes: Mapping[str, Dimensions], spec: Spec) -> dict[str, Tensor]:
    """For each unit of each group: |sum of its rows' values|, added over all tensors whose rows are its group's."""
    where = next((value.device for value in values.values()), None)
    totals = {group: torch.zeros(size, device=where) for group, size in spec.sizes.items()}
    for name, value in values.items():
        for group, found in sum_by_unit(row_axis(axes[name]), value).items():
            totals[group] = totals[group] + found.abs()
    return totals


def row_axis(dimensions: Dimensions) -> Dimension:
    """What the rows of a tensor count; None: nothing that is ever cut."""
    return dimensions[0] if dimensions else None


def sum_by_unit(dimension: Dimension, values: Tensor) -> dict[str, Tensor]:
    """A tensor summed over all but the units that its first dimension counts."""
    found: dict[str, Tensor] = {}
    at = 0
    for axis in _axes(dimension):
        piece = values[at : at + axis.length].reshape(axis.outer, axis.size, axis.inner, -1).sum((0, 2, 3))
        found[axis.group] = found[axis.group] + piece if axis.group in found else piece
        at += axis.length
    return found


def unit_entries(dimension: Dimension, units: Arrays) -> Tensor:
    """The entries of a dimension that belong to these units, as truth values."""
    return torch.cat([units[axis.group].repeat_interleave(axis.inner).repeat(axis.outer) for axis in _axes(dimension)])


def prunable_weights(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """Weights proper, in forward order: no biases, norms or buffers."""
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
    """Lets gradients through to the entries of these masks alone; a tensor without one trains entire."""

    masks: Arrays

    def __call__(self, grads: Grads, weights: Mapping[str, Tensor]) -> Grads:
        return {
            name: torch.where(self.masks[name], grad, 0.0) if name in self.masks else grad
            for name, grad in grads.items()
        }
