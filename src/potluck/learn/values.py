"""What losses and edits are made of: tensors, numbers, other such values, and frozen networks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from potluck.core import Model, Newborn, Spec
from potluck.parts import Part


@dataclass(frozen=True, eq=False)
class Frozen:
    """A live network that is not trained: evaluation mode, no gradients."""

    net: nn.Module

    def __post_init__(self) -> None:
        self.net.eval()

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer: Tensor = self.net(x)
        return answer


def held_tensors(*values: Any) -> tuple[list[Tensor], list[nn.Module]]:
    """The tensors and the frozen networks that losses and edits hold while they train, each once."""
    tensors: dict[int, Tensor] = {}
    nets: dict[int, nn.Module] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, Frozen):
            nets[id(value.net)] = value.net
        elif isinstance(value, tuple | list):
            waiting.extend(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif _has_fields(value):
            waiting.extend(vars(value).values())
    return list(tensors.values()), list(nets.values())


def to_device(value: Any, hardware: torch.device) -> Any:
    """A loss or an edit with its tensors where the networks are."""
    if hardware.type == "cpu":
        return value
    return map_tensors(value, lambda tensor: tensor.to(hardware))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with other tensors in the same places; networks and what is no tensor stay."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, Newborn):
        return value
    if isinstance(value, Model):
        return Model(value.spec, map_tensors(value.arrays, change))
    if isinstance(value, Mapping):
        return {name: map_tensors(item, change) for name, item in value.items()}
    if _has_fields(value):
        return replace(
            value, **{field.name: map_tensors(getattr(value, field.name), change) for field in fields(value)}
        )
    return value


def tensor_leaves(value: Any) -> list[Tensor]:
    """The tensors of a value, in an order that is the same for all values of one structure."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensor_leaves(item)]
    if isinstance(value, Mapping):
        return [tensor for name in sorted(value) for tensor in tensor_leaves(value[name])]
    if _has_fields(value):
        return [tensor for field in fields(value) for tensor in tensor_leaves(getattr(value, field.name))]
    return []


def structure_key(value: Any) -> Hashable:
    """All of a value but its tensors' numbers: values with equal keys do the same operations, on other numbers.

    A `TypeError` names a value that may hold numbers which cannot be seen from here.
    """
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, tuple | list):
        return tuple(structure_key(item) for item in value)
    if isinstance(value, Mapping):
        return tuple((name, structure_key(value[name])) for name in sorted(value))
    if isinstance(value, nn.Module | Part):
        return id(value)
    if _has_fields(value):
        return (type(value), *(structure_key(getattr(value, field.name)) for field in fields(value)))
    if value is None or isinstance(value, bool | int | float | str | Spec):
        return cast("Hashable", value)
    raise TypeError(f"a {type(value).__name__} is no value that can be looked into")


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Part | Spec)
