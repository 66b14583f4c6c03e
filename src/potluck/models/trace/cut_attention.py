"""``nn.MultiheadAttention`` whose heads may be fewer or narrower than the stream that it reads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CutAttention(nn.MultiheadAttention):
    """The same tensors under the same names, for any number and width of heads.

    A module becomes one by its class (`cut_attention`). PyTorch's own forward wants as many units in all heads together
    as the stream has.
    """

    scale: float | None = None
    """What the scores are multiplied by; None: one by the square root of a head's width in this network."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single = query.dim() == 2
        inputs = [each[None] if single else each for each in (query, key, value)]
        if not self.batch_first and not single:
            inputs = [each.transpose(0, 1) for each in inputs]
        queries, keys, values = self._project(inputs)
        mask = self._mask(key_padding_mask, attn_mask, queries)
        rate = self.dropout if self.training else 0.0
        scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale
        weights = None
        if need_weights:
            scores = queries @ keys.transpose(-2, -1) * scale
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), rate)
            mixed = weights @ values
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask, rate, scale=scale)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if single:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, inputs: list[Tensor]) -> list[Tensor]:
        """Query, key and value as [batch, head, position, unit]."""
        assert self.in_proj_weight is not None
        last = self.out_proj.weight.shape[1]
        first = (self.in_proj_weight.shape[0] - last) // 2
        pieces = [first, first, last]
        weights = torch.split(self.in_proj_weight, pieces)
        biases = [None] * 3 if self.in_proj_bias is None else torch.split(self.in_proj_bias, pieces)
        found = [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]
        return [each.view(*each.shape[:2], self.num_heads, -1).transpose(1, 2) for each in found]

    def _mask(self, padding: Tensor | None, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """Both masks as numbers to add to the scores."""
        if mask is not None and mask.dim() == 3:
            mask = mask.view(like.shape[0], -1, *mask.shape[1:])
        if padding is not None:
            padding = padding[None, None, None] if padding.dim() == 1 else padding[:, None, None]
        found = [_as_numbers(each, like) for each in (mask, padding) if each is not None]
        return sum(found[1:], found[0]) if found else None


def _as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
    return mask.to(like.dtype)


def cut_attention(module: nn.MultiheadAttention) -> CutAttention:
    """The module itself, with a forward that allows for heads that were cut."""
    module.__class__ = CutAttention
    module._qkv_same_embed_dim = False  # so that no encoder layer around it computes it another way
    assert isinstance(module, CutAttention)
    return module
