"""Attention is traced by heads: every head keeps the same units, or heads stay and go whole."""

from dataclasses import replace

import pytest
import torch
from own_networks import Encoder, OwnViT, ViT
from torch import nn
from traced_examples import MODULES

from potluck.core import Axis, SettingsError
from potluck.models.trace import trace
from potluck.models.trace.channel_groups import channel_axes
from potluck.models.trace.cut_attention import cut_attention
from potluck.models.trace.unit_labels import attention_axes

MAPS = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))

NETWORKS = {
    "vit": lambda: ViT(1, 10),
    "vit-weights": lambda: ViT(1, 10, need_weights=True),
    "encoder": lambda: Encoder(8, 10),
    "separate": lambda: OwnViT(1, 10),
    "packed": lambda: OwnViT(1, 10, packed="chunks"),
    "timm": lambda: OwnViT(1, 10, packed="timm"),
    "by-hand": lambda: OwnViT(1, 10, by_hand=True),
    "by-hand-root": lambda: OwnViT(1, 10, by_hand="root"),
    "by-hand-masked": lambda: OwnViT(1, 10, by_hand="masked"),
    "by-hand-einsum": lambda: OwnViT(1, 10, packed="timm", by_hand="einsum"),
    "timm-by-hand": lambda: OwnViT(1, 10, packed="timm", by_hand=True),
}


@pytest.mark.parametrize("cut_heads", ["width", "whole"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_narrow_network_computes_what_the_full_one_does_without_the_other_units(make, cut_heads):
    traced = trace(make(), MAPS, cut_heads)
    assert len(traced.sizes) >= 2
    traced.check([0.25, 0.5, 0.75], draws=1)


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_labels_find_the_same_axes_as_the_graph_where_nothing_attends(kind):
    pytest.importorskip("torch_pruning")
    net, example = kind(), MODULES[kind][0]
    axes, layers, heads = attention_axes(net, (example,), "width")
    assert (axes, layers) == channel_axes(net, (example,))
    assert heads == {}


def test_only_the_scale_of_a_softmax_is_forgiven_and_the_remedy_is_told():
    with pytest.raises(SettingsError, match=r"does not compute what the full one.*cut_heads = .whole. under \[model\]"):
        trace(OwnViT(1, 10, by_hand="counted"), MAPS)
    trace(OwnViT(1, 10, by_hand="counted"), MAPS, "whole")


class SharedKeys(nn.Module):
    """More heads of queries than of keys and values."""

    def __init__(self):
        super().__init__()
        self.read, self.head = nn.Linear(8, 16), nn.Linear(16, 10)
        self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = x.flatten(1, 2)
        q, k, v = (each(x).view(2, 8, -1, 4).transpose(1, 2) for each in (self.read, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (SharedKeys(), "SharedKeys attends in a way that cannot be traced"),
        (
            nn.Sequential(nn.MultiheadAttention(8, 2, add_zero_attn=True)),
            "'0' .MultiheadAttention. has kdim, vdim, add",
        ),
    ],
)
def test_attention_that_cannot_be_cut_is_refused_with_the_reason(net, why):
    with pytest.raises(SettingsError, match=why):
        trace(net, MAPS)


def test_units_of_query_and_key_are_one_group_and_those_of_values_another():
    traced = trace(ViT(1, 10, depth=1), MAPS)
    assert traced.sizes == {"patch": 16, "blocks.0.attend": 4, "blocks.0.attend:1": 4, "blocks.0.up": 20}
    query_key, value = Axis("blocks.0.attend", 4, outer=8), Axis("blocks.0.attend:1", 4, outer=4)
    assert traced.axes["blocks.0.attend.in_proj_weight"] == ((query_key, value), Axis("patch", 16))
    assert traced.axes["blocks.0.attend.out_proj.weight"] == (Axis("patch", 16), value)
    assert traced.axes["first"] == traced.axes["place"] == (None, None, Axis("patch", 16))


def test_heads_that_stay_or_go_whole_are_the_units():
    traced = trace(ViT(1, 10, depth=1), MAPS, "whole")
    assert traced.sizes == {"patch": 16, "blocks.0.attend": 4, "blocks.0.up": 20}
    heads = Axis("blocks.0.attend", 4, outer=3, inner=4)
    assert traced.axes["blocks.0.attend.in_proj_weight"] == (heads, Axis("patch", 16))
    narrow = traced.build({"patch": 5, "blocks.0.attend": 3})
    assert narrow.blocks[0].attend.num_heads == 3
    assert narrow.blocks[0].attend.in_proj_weight.shape == (3 * 3 * 4, 5)


def test_the_numbers_that_a_module_stores_follow_its_heads():
    narrow = trace(OwnViT(1, 10), MAPS, "whole").build({"patch": 8, "attend.q": 2})
    assert narrow.attend.heads == 2
    assert narrow(MAPS).shape == (2, 10)


def test_heads_that_are_cut_in_the_wrong_places_are_refused_by_the_numbers():
    traced = trace(ViT(1, 10, depth=1), MAPS)
    axes = dict(traced.axes)
    value = Axis("blocks.0.attend:1", 4, inner=4)  # the first heads, where its inputs are the first units of all
    axes["blocks.0.attend.out_proj.weight"] = (Axis("patch", 16), value)
    with pytest.raises(SettingsError, match=r"does not compute what the full one computes.*'blocks.0.attend.out_proj'"):
        replace(traced, axes=axes).check([0.5])


class Mixed(OwnViT):
    """A softmax over units: what one of them is depends on all the others."""

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2).softmax(-1)
        return self.head((x + self.attend(self.norm(x))).mean(1))


class Extended(OwnViT):
    """A position of constants beside those of units."""

    def forward(self, x):
        x = torch.cat([self.patch(x).flatten(2).transpose(1, 2), torch.ones(len(x), 1, 16, dtype=x.dtype)], 1)
        return self.head((x + self.attend(self.norm(x))).mean(1))


@pytest.mark.parametrize("kind", [Mixed, Extended])
@pytest.mark.parametrize("cut_heads", ["width", "whole"])
def test_units_that_an_operation_mixes_or_that_lie_beside_constants_stay_uncut(kind, cut_heads):
    traced = trace(kind(1, 10), MAPS, cut_heads)
    assert traced.sizes == {"width": {"attend.q": 4, "attend.v": 4}, "whole": {"attend.q": 4}}[cut_heads]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal", "numbers", "each-head", "padding", "both"])
def test_at_full_width_it_is_pytorchs_attention(need_weights, batch_first, mask):
    rng = torch.Generator().manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    query, key = torch.randn(3, 5, 8, generator=rng), torch.randn(3, 4, 8, generator=rng)
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    causal = torch.triu(torch.ones(5, 4, dtype=torch.bool), 1)
    masks = {"causal": causal, "both": causal, "numbers": torch.randn(5, 4, generator=rng)}
    masks["each-head"] = torch.randn(6, 5, 4, generator=rng)
    padding = torch.zeros(3, 4, dtype=torch.bool)
    padding[1, 2:] = True
    given = {
        "attn_mask": masks.get(mask),
        "key_padding_mask": padding if mask in ("padding", "both") else None,
        "need_weights": need_weights,
    }
    expected = layer(query, key, key, **given)
    found = cut_attention(layer)(query, key, key, **given)
    assert torch.allclose(found[0], expected[0], atol=1e-6)
    assert (found[1] is None) == (expected[1] is None)
    assert expected[1] is None or torch.allclose(found[1], expected[1], atol=1e-6)


def test_a_single_sequence_without_a_batch_is_attended_too():
    layer, x = nn.MultiheadAttention(8, 2), torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    expected = layer(x, x, x)
    found = cut_attention(layer)(x, x, x)
    assert torch.allclose(found[0], expected[0], atol=1e-6)
    assert torch.allclose(found[1], expected[1], atol=1e-6)
