"""What clients hold, as bits: counting it, cutting it out, packing it for the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from potluck.core import Arrays, Client, Shapes, Spec, Task, Zoo
from potluck.parts import Choose


def carried_by(client: Client, zoo: Zoo, share: float) -> Mapping[str, int]:
    """Units that a client can carry of each group: by its tier's width or, where it has none, this share of them."""
    sizes = client.tier.spec.sizes
    fits = client.tier.width is not None and sizes.keys() == zoo.full.sizes.keys()
    return sizes if fits else zoo.narrow(zoo.full, share).sizes


def asked_for(task: Task) -> dict[str, int]:
    """The units of each group that a task's config asks for."""
    sizes = task.config["sizes"]
    assert isinstance(sizes, Mapping)
    return {group: int(str(size)) for group, size in sizes.items()}


def counts(units: Arrays, groups: Mapping[str, int]) -> dict[str, int]:
    """How many units are held of each of these groups."""
    return {group: int(units[group].sum()) for group in groups}


def holding(units: Arrays, zoo: Zoo) -> Spec:
    """The full network with only these units."""
    return replace(zoo.full, sizes=counts(units, zoo.full.sizes))


def chosen(units: Arrays) -> Choose:
    """The units that are held, ascending."""
    return lambda axis: units[axis.group].nonzero().flatten()


def newcomer(masks: Arrays) -> bool:
    """Whether a client holds nothing yet."""
    return not any(bool(mask.any()) for mask in masks.values())


def filled(masks: Arrays) -> Arrays:
    """A newcomer's masks: everything; any other's as they are."""
    return {name: torch.ones_like(mask) for name, mask in masks.items()} if newcomer(masks) else masks


def as_sent(task: Task) -> Shapes:
    """What the model that was sent holds: less than its network does."""
    return {name: (tuple(t.shape), t.dtype) for name, t in (task.models["model"].arrays or {}).items()}


def packed(arrays: Arrays, masks: Arrays) -> Arrays:
    """Only the entries under the masks, one after the other; other tensors entire."""
    return {name: tensor[masks[name]] if name in masks else tensor for name, tensor in arrays.items()}


def unpacked(arrays: Arrays, masks: Arrays) -> Arrays:
    """The tensors of which these are the entries under the masks, with zeros elsewhere."""
    return {name: spread(tensor, masks[name]) if name in masks else tensor for name, tensor in arrays.items()}


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values put where the mask is on; zero, or no, elsewhere."""
    return torch.zeros_like(mask, dtype=values.dtype).masked_scatter_(mask, values)
