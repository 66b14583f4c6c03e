"""Networks without numbers: what can be known of a spec before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import nn

from potluck.core import Dimensions, Spec
from potluck.models.families import FAMILIES

Shape: TypeAlias = "tuple[tuple[int, ...], torch.dtype]"


def skeleton(spec: Spec) -> nn.Module:
    """A network on the meta device: shapes, no storage. The spec must be complete, here and below."""
    return FAMILIES[spec.family].meta_net(spec)


@lru_cache(maxsize=1024)
def shapes(spec: Spec) -> Mapping[str, Shape]:
    """Shape and dtype of each tensor of the state dict."""
    return MappingProxyType(
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in skeleton(spec).state_dict().items()}
    )


@lru_cache(maxsize=1024)
def axes(spec: Spec) -> Mapping[str, Dimensions]:
    """What each dimension of each tensor of the state dict counts."""
    return MappingProxyType(FAMILIES[spec.family].axes(spec, skeleton(spec)))


@lru_cache(maxsize=1024)
def buffers(spec: Spec) -> frozenset[str]:
    """Names of the state dict that are not trained."""
    return frozenset(shapes(spec)) - {name for name, _ in skeleton(spec).named_parameters()}


@lru_cache(maxsize=1024)
def places(spec: Spec) -> Mapping[str, int | None]:
    """The body block of each tensor, counted in forward order; None in stem and head."""
    blocks = {f"{name}.": index for index, name in enumerate(FAMILIES[spec.family].blocks(spec))}
    return MappingProxyType(
        {
            name: next((index for block, index in blocks.items() if name.startswith(block)), None)
            for name in shapes(spec)
        }
    )
