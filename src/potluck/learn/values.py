"""Functions on the tensors inside losses, edits and states: find them, move them, map them, compare their structure."""

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
    """The tensors and the networks inside losses and edits, each once."""
    tensors: dict[int, Tensor] = {}
    nets: dict[int, nn.Module] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value is None or isinstance(value, str | int | float):
            continue
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, nn.Module):
            nets[id(value)] = value
        elif isinstance(value, tuple | list):
            waiting.extend(value)
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif _has_fields(value):
            waiting.extend(vars(value).values())
    return list(tensors.values()), list(nets.values())


def to_device(value: Any, hardware: torch.device) -> Any:
    """The value with its tensors moved to this hardware."""
    if hardware.type == "cpu":
        return value
    return map_tensors(value, lambda tensor: tensor.to(hardware))


def map_tensors(
    value: Any, change: Callable[[Tensor], Tensor], change_net: Callable[[nn.Module], nn.Module] | None = None
) -> Any:
    """The value with `change` applied to every tensor, and `change_net` to every live network; all else stays."""

    def map_inner(inner: Any) -> Any:
        return map_tensors(inner, change, change_net)

    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, nn.Module):
        return value if change_net is None else change_net(value)
    if isinstance(value, tuple | list):
        return type(value)(map_inner(item) for item in value)
    if isinstance(value, Newborn):
        return value
    if isinstance(value, Model):
        return Model(value.spec, map_inner(value.arrays))
    if isinstance(value, Mapping):
        return {name: map_inner(item) for name, item in value.items()}
    if _has_fields(value):
        return replace(value, **{field.name: map_inner(getattr(value, field.name)) for field in fields(value)})
    return value


def tensor_leaves(value: Any) -> list[Tensor]:
    """The tensors of a value, in an order that depends only on its structure."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensor_leaves(item)]
    if isinstance(value, Mapping):
        return [tensor for name in sorted(value) for tensor in tensor_leaves(value[name])]
    if _has_fields(value):
        return [tensor for field in fields(value) for tensor in tensor_leaves(getattr(value, field.name))]
    return []


def structure_key(value: Any, net_key: Callable[[nn.Module], Hashable] = id) -> Hashable:
    """A key of everything in a value but the contents of its tensors. Equal keys: same operations, other numbers.

    Raises `TypeError` for an object of unknown type, which may hold hidden numbers.
    """
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, tuple | list):
        return tuple(structure_key(item, net_key) for item in value)
    if isinstance(value, Mapping):
        return tuple((name, structure_key(value[name], net_key)) for name in sorted(value))
    if isinstance(value, nn.Module):
        return net_key(value)
    if isinstance(value, Part):
        return id(value)
    if _has_fields(value):
        return (type(value), *(structure_key(getattr(value, field.name), net_key) for field in fields(value)))
    if value is None or isinstance(value, bool | int | float | str | Spec):
        return cast("Hashable", value)
    raise TypeError(f"a {type(value).__name__} in a loss or edit may hold hidden numbers; use a frozen dataclass")


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Part | Spec)
