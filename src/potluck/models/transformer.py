"""A small Transformer that predicts the next token, in the form in which HeteroFL and FedRolex use it.

FedRolex (Alam et al., NeurIPS 2022), https://arxiv.org/abs/2212.01548: 3 layers, 128 units, 2048 in the feed-forward
part, 8 heads. The paper's activation is ReLU, its code's GELU: we follow the paper, ``activation = "gelu"`` the code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.attention import HEADS, attend, check_heads, head_axes, initialise_as_bert, layer_groups
from potluck.models.family import Base, Family
from potluck.models.layers import Embedding, Linear, Net, scaler
from potluck.models.norm import LayerNorm
from potluck.models.options import DROPOUT, LAYER_NORM, SCALER, Option, Options

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "gelu": functional.gelu}


class TokenEmbedding(nn.Module):
    """Embeddings of tokens and positions: from token ids to vectors."""

    def __init__(self, stream: Axis, options: Options) -> None:
        super().__init__()
        (length,) = options["input"]
        self.token = Embedding(options["classes"], stream)
        self.position = Embedding(length, stream)
        self.norm = _norm(stream, options)
        self.scaler = scaler(options, stream) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        vectors: Tensor = self.dropout(self.norm(self.scaler(self.token(ids) + self.position(positions))))
        return vectors


class CausalSelfAttention(nn.Module):
    """Self-attention of each position to itself and to those before it."""

    def __init__(self, stream: Axis, query_key: Axis, value: Axis, options: Options) -> None:
        super().__init__()
        self.heads: int = options["heads"]
        self.query = Linear(stream, query_key)
        self.key = Linear(stream, query_key)
        self.value = Linear(stream, value)
        self.output = Linear(value, stream)
        self.scaler = scaler(options, query_key) or nn.Identity()
        self.value_scaler = scaler(options, value) or nn.Identity()
        self.output_scaler = scaler(options, stream) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, x: Tensor) -> Tensor:
        query, key = (self.scaler(layer(x)) for layer in (self.query, self.key))
        value = self.value_scaler(self.value(x))
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        attended = attend(query, key, value, self.heads, causal, self.dropout)
        out: Tensor = self.output_scaler(self.output(attended))
        return out


class TransformerLayer(nn.Module):
    """Attention and a feed-forward part; each is added to the residual stream, which is then normalised."""

    def __init__(self, stream: Axis, query_key: Axis, value: Axis, inner: Axis, options: Options) -> None:
        super().__init__()
        self.attention = CausalSelfAttention(stream, query_key, value, options)
        self.norm1 = _norm(stream, options)
        self.first = Linear(stream, inner)
        self.second = Linear(inner, stream)
        self.norm2 = _norm(stream, options)
        self.activation = ACTIVATIONS[options["activation"]]
        self.scaler = scaler(options, inner) or nn.Identity()
        self.output_scaler = scaler(options, stream) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        hidden = self.dropout(self.activation(self.scaler(self.first(x))))
        out: Tensor = self.norm2(x + self.dropout(self.output_scaler(self.second(hidden))))
        return out


class Decoder(nn.Module):
    """A hidden layer, a norm, and a linear layer to one score per token of the vocabulary."""

    def __init__(self, stream: Axis, hidden: Axis, options: Options) -> None:
        super().__init__()
        self.hidden = Linear(stream, hidden)
        self.norm = _norm(hidden, options)
        self.output = Linear(hidden, options["classes"])
        self.activation = ACTIVATIONS[options["activation"]]
        self.scaler = scaler(options, hidden) or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.norm(self.activation(self.scaler(self.hidden(x)))))
        return scores


class Transformer(Family):
    """Embeddings, `depth` layers of causal attention and feed-forward, a decoder. The norm follows each sum.

    Input: token ids [batch, length], at most as long as the spec's ``input``. Output: scores [batch, length, tokens];
    those at position t are for the token at t + 1. ``classes`` is the size of the vocabulary.
    Groups: ``stream`` (embeddings, norms, inputs and outputs of every layer), ``layer0.qk`` (units of query and key, in
    *each* head), ``layer0.v`` (units of value, in *each* head), ``layer0.ffn``, and so on; ``decoder``.
    """

    name = "transformer"
    about = "Small causal Transformer for the next token (FedRolex)"
    depth = 3
    base = FrozenDict(
        {"hidden": Option(128, "units of the residual stream"), "ffn": Option(2048, "feed-forward units")}
    )
    options = FrozenDict(
        {
            "norm": LAYER_NORM,
            "scaler": SCALER,
            "heads": HEADS,
            "activation": Option("relu", "between linear layers", choices=tuple(ACTIVATIONS)),
            "dropout": DROPOUT,
        }
    )
    maps = False
    tokens = True
    class_layers = ("head.output", "stem.token")

    def check_base(self, base: Base, options: Options) -> None:
        check_heads(self.name, base["hidden"], options["heads"])

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, int)
        return layer_groups(depth, base["hidden"], base["ffn"], options["heads"]) | {"decoder": base["hidden"]}

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, int)
        stream, decoder = (Axis(group, spec.sizes[group]) for group in ("stream", "decoder"))
        layers = []
        for layer in range(spec.depth):
            inner = Axis(f"layer{layer}.ffn", spec.sizes[f"layer{layer}.ffn"])
            layers.append(TransformerLayer(stream, *head_axes(spec, layer), inner, options))
        net = Net(TokenEmbedding(stream, options), nn.Sequential(*layers), Decoder(stream, decoder, options))
        return initialise_as_bert(net)


def _norm(units: Axis, options: Options) -> nn.Module:
    return LayerNorm(units) if options["norm"] == "layer" else nn.Identity()
