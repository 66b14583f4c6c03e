"""Multi-head attention whose heads can be cut: every head keeps the same units, the number of heads stays."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from potluck.core import Axis, SettingsError, Spec
from potluck.models.layers import Embedding, Linear
from potluck.models.options import Option

HEADS = Option(8, "attention heads, among which the units are divided", high=1 << 10)
INITIAL_STD = 0.02
"""Spread of newborn weights, as in BERT."""


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, seen: Tensor, dropout: nn.Module) -> Tensor:
    """What each position gathers from those it may see: [batch, length, units] in and out, head after head.

    `seen` is true where a position (second to last dimension) may look at another (last dimension). The temperature is
    the root of a head's width in *this* network, so it follows a narrow one, as in HeteroFL's code.
    """
    query, key, value = (_apart(each, heads) for each in (query, key, value))
    likeness = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    # The least number instead of minus infinity: a position that may see nothing then looks everywhere, without NaN.
    likeness = likeness.masked_fill(~seen, torch.finfo(likeness.dtype).min)
    gathered: Tensor = dropout(likeness.softmax(-1)) @ value
    return gathered.transpose(1, 2).flatten(2)


def _apart(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def head_axes(spec: Spec, layer: int) -> tuple[Axis, Axis]:
    """The units of a layer's heads: those that query and key compare, and those that value hands on."""
    heads = int(str(spec.options["heads"]))
    compared, carried = (Axis(name, spec.sizes[name], outer=heads) for name in head_groups(layer))
    return compared, carried


def head_groups(layer: int) -> tuple[str, str]:
    """The groups of a layer's heads."""
    return f"layer{layer}.qk", f"layer{layer}.v"


def layer_groups(depth: int, hidden: int, ffn: int, heads: int) -> dict[str, int]:
    """Units of a residual stream and of so many layers along it."""
    found = {"stream": hidden}
    for layer in range(depth):
        found |= dict.fromkeys(head_groups(layer), -(-hidden // heads))
        found[f"layer{layer}.ffn"] = ffn
    return found


def check_heads(family: str, hidden: int, heads: int) -> None:
    """Turn away units that cannot be divided among the heads."""
    if hidden % heads:
        raise SettingsError(f"{family}: hidden = {hidden} cannot be divided among heads = {heads}.")


def initialise_as_bert(net: nn.Module) -> nn.Module:
    """BERT's birth: small weights, no biases."""
    for layer in net.modules():
        if isinstance(layer, Linear | Embedding):
            nn.init.normal_(layer.weight, std=INITIAL_STD)
        if isinstance(layer, Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net
