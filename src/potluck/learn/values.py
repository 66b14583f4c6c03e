"""What losses and edits are made of: tensors, numbers, other such values, and networks that they ask, never teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from potluck.parts import Part


@dataclass(frozen=True, eq=False)
class Frozen:
    """A live network that only answers: as in evaluation, without gradients."""

    net: nn.Module

    def __post_init__(self) -> None:
        self.net.eval()

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer: Tensor = self.net(x)
        return answer


def kept(*values: Any) -> tuple[list[Tensor], list[nn.Module]]:
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
        elif is_dataclass(value) and not isinstance(value, type | Part):
            waiting.extend(vars(value).values())
    return list(tensors.values()), list(nets.values())


def located(value: Any, hardware: torch.device) -> Any:
    """A loss or an edit with its tensors where the networks are."""
    if hardware.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(hardware)
    if isinstance(value, tuple):
        return tuple(located(item, hardware) for item in value)
    if isinstance(value, Mapping):
        return {name: located(item, hardware) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type | Part):
        return replace(value, **{field.name: located(getattr(value, field.name), hardware) for field in fields(value)})
    return value
