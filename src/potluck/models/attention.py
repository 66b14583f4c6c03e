"""Multi-head attention that can be cut in width: every head keeps the same units, and no head is removed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from potluck.core import Axis, SettingsError, Spec
from potluck.models.layers import Embedding, Linear
from potluck.models.options import Option

HEADS = Option(8, "attention heads, which share the units equally", high=1 << 10)
INITIAL_STD = 0.02
"""Standard deviation of initial weights, as in BERT."""


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor, dropout: nn.Module) -> Tensor:
    """Scaled dot-product attention; inputs and output are [batch, length, units], one head after the other.

    `mask` is true where a position (second to last dimension) may attend to another (last dimension). The scale is
    the square root of a head's width in *this* network, narrow or full, as in HeteroFL's code.
    """
    query, key, value = (_split_heads(each, heads) for each in (query, key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    # The least number instead of minus infinity: a position that may attend to none attends to all, without NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    attended: Tensor = dropout(scores.softmax(-1)) @ value
    return attended.transpose(1, 2).flatten(2)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def head_axes(spec: Spec, layer: int) -> tuple[Axis, Axis]:
    """The axes of a layer's heads: the units of query and key, and those of value."""
    heads = int(str(spec.options["heads"]))
    query_key, value = (Axis(name, spec.sizes[name], outer=heads) for name in head_groups(layer))
    return query_key, value


def head_groups(layer: int) -> tuple[str, str]:
    """The groups of a layer's heads: of query and key, and of value."""
    return f"layer{layer}.qk", f"layer{layer}.v"


def layer_groups(depth: int, hidden: int, ffn: int, heads: int) -> dict[str, int]:
    """Units of the groups of a residual stream and of this many layers."""
    found = {"stream": hidden}
    for layer in range(depth):
        found |= dict.fromkeys(head_groups(layer), -(-hidden // heads))
        found[f"layer{layer}.ffn"] = ffn
    return found


def check_heads(family: str, hidden: int, heads: int) -> None:
    """Refuse hidden units that cannot be divided among the heads."""
    if hidden % heads:
        raise SettingsError(f"{family}: hidden = {hidden} cannot be divided among heads = {heads}.")


def initialise_as_bert(net: nn.Module) -> nn.Module:
    """BERT's initialisation: normal weights of a small standard deviation, zero biases."""
    for layer in net.modules():
        if isinstance(layer, Linear | Embedding):
            nn.init.normal_(layer.weight, std=INITIAL_STD)
        if isinstance(layer, Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net
