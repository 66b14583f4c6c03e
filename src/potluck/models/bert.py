"""BERT-type encoders: BERT, RoBERTa, MiniLM (Devlin et al., NAACL 2019, https://arxiv.org/abs/1810.04805).

Tensors are named as in Hugging Face's ``BertModel`` and ``RobertaModel``, but for the prefixes of `PREFIXES`, so
weights stored under those names can be read under ours. Inputs are token ids alone: the attention mask is where an id
is not the padding's. Tokens of a second text, those after the first separator, have type 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import Arrays, Axis, Depth, FrozenDict, SettingsError, Spec
from potluck.models.attention import attend, check_heads, head_axes, initialise_as_bert, layer_groups
from potluck.models.family import Base, Family
from potluck.models.layers import Embedding, Linear, Net, scaler
from potluck.models.norm import LayerNorm
from potluck.models.options import DROPOUT, LAYER_NORM, MOST_UNITS, SCALER, Option, Options
from potluck.models.pretrained import check_source, read_config, read_weights

PREFIXES = (
    ("embeddings.", "stem."),
    ("encoder.layer.", "body."),
    ("pooler.", "head.pooler."),
    ("classifier.dense.", "head.pooler.dense."),
    ("classifier.out_proj.", "head.classifier."),
    ("classifier.", "head.classifier."),
)
"""How Hugging Face's names begin, and how ours do. RoBERTa's two-layer classifier is a pooler and a classifier here."""

NO_TOKEN = -1
"""In place of a token's id: there is none."""


def tensor_name(name: str) -> str:
    """Our name for a tensor of a Hugging Face model; names that no BERT has stay as they are.

    >>> tensor_name("bert.encoder.layer.3.attention.self.query.weight")
    'body.3.attention.self.query.weight'
    """
    bare = name.removeprefix("bert.").removeprefix("roberta.")
    for theirs, ours in PREFIXES:
        if bare.startswith(theirs):
            return ours + bare.removeprefix(theirs)
    return name


class BertEmbeddings(nn.Module):
    """Embeddings of tokens, positions and types. Those of padding are zero; the encoder makes its mask from that."""

    def __init__(self, stream: Axis, options: Options) -> None:
        super().__init__()
        self.pad: int = options["pad"]
        self.sep: int = options["sep"]
        self.words_only = options["count"] == "words"
        self.word_embeddings = Embedding(options["vocab"], stream)
        self.position_embeddings = Embedding(options["positions"], stream)
        self.token_type_embeddings = Embedding(options["types"], stream)
        self.LayerNorm = _norm(stream, options)
        self.scaler = scaler(options, stream) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == self.pad
        vectors = self.word_embeddings(ids) + self.position_embeddings(self._positions(padding))
        vectors = vectors + self._type_embeddings(ids)
        vectors = self.dropout(self.LayerNorm(self.scaler(vectors)))
        masked: Tensor = vectors.masked_fill(padding.unsqueeze(-1), 0.0)
        return masked

    def _type_embeddings(self, ids: Tensor) -> Tensor:
        """The embeddings of the tokens' types."""
        if self.sep == NO_TOKEN:
            return self.token_type_embeddings.weight[0]
        # A row may begin with the separator's id; that one ends no text.
        second = (ids[:, 1:-1] == self.sep).cumsum(1) > 0
        vectors: Tensor = self.token_type_embeddings(functional.pad(second, (min(2, ids.shape[1]), 0)).long())
        return vectors

    def _positions(self, padding: Tensor) -> Tensor:
        if self.words_only:
            return (~padding).cumsum(1) * ~padding + self.pad
        return torch.arange(padding.shape[1], device=padding.device)


class BertSelfAttention(nn.Module):
    """Self-attention of each position to all that are not padding."""

    def __init__(self, stream: Axis, query_key: Axis, value: Axis, options: Options) -> None:
        super().__init__()
        self.heads: int = options["heads"]
        self.query = Linear(stream, query_key)
        self.key = Linear(stream, query_key)
        self.value = Linear(stream, value)
        self.scaler = scaler(options, query_key) or nn.Identity()
        self.value_scaler = scaler(options, value) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key = (self.scaler(layer(x)) for layer in (self.query, self.key))
        value = self.value_scaler(self.value(x))
        return attend(query, key, value, self.heads, mask, self.dropout)


class BertOutput(nn.Module):
    """A linear layer to the residual stream, the sum with it, and a norm."""

    def __init__(self, inputs: Axis, stream: Axis, options: Options) -> None:
        super().__init__()
        self.dense = Linear(inputs, stream)
        self.LayerNorm = _norm(stream, options)
        self.scaler = scaler(options, stream) or nn.Identity()
        self.dropout = nn.Dropout(options["dropout"])

    def forward(self, x: Tensor, stream: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(stream + self.dropout(self.scaler(self.dense(x))))
        return out


class BertAttention(nn.Module):
    """Self-attention, and its output added to the residual stream."""

    def __init__(self, stream: Axis, query_key: Axis, value: Axis, options: Options) -> None:
        super().__init__()
        self.self = BertSelfAttention(stream, query_key, value, options)
        self.output = BertOutput(value, stream, options)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.output(self.self(x, mask), x)
        return out


class BertDense(nn.Module):
    """A linear layer under the name ``dense``, with its scaler."""

    def __init__(self, inputs: Axis, outputs: Axis, options: Options) -> None:
        super().__init__()
        self.dense = Linear(inputs, outputs)
        self.scaler = scaler(options, outputs) or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scaler(self.dense(x))
        return out


class BertLayer(nn.Module):
    """Attention, then two linear layers with GELU between them."""

    def __init__(self, stream: Axis, query_key: Axis, value: Axis, inner: Axis, options: Options) -> None:
        super().__init__()
        self.attention = BertAttention(stream, query_key, value, options)
        self.intermediate = BertDense(stream, inner, options)
        self.output = BertOutput(inner, stream, options)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        out: Tensor = self.output(functional.gelu(self.intermediate(x)), x)
        return out


class BertEncoder(nn.Sequential):
    """The layers, with an attention mask: padding is where the embeddings are zero."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x.ne(0).any(-1)[:, None, None, :]
        for layer in self:
            x = layer(x, mask)
        return x


class BertHead(nn.Module):
    """A classifier of the whole text, read at its first token, or of every token."""

    def __init__(self, stream: Axis, pooled: Axis | None, options: Options) -> None:
        super().__init__()
        self.every_token = options["output"] == "tokens"
        self.pooler = None if pooled is None else BertDense(stream, pooled, options)
        self.dropout = nn.Dropout(options["dropout"])
        self.classifier = Linear(stream if pooled is None else pooled, options["classes"])

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.every_token else x[:, 0]
        if self.pooler is not None:
            x = torch.tanh(self.pooler(x))
        scores: Tensor = self.classifier(self.dropout(x))
        return scores


class Bert(Family):
    """Embeddings, `depth` layers of attention and feed-forward (the norm follows each sum), a classifier.

    Input: token ids [batch, length]. Output: scores [batch, classes]; with ``output = "tokens"``, scores of every token
    [batch, length, classes]. Groups: ``stream`` (embeddings, norms, inputs and outputs of every layer),
    ``layer0.qk`` (units of query and key, in *each* head), ``layer0.v`` (units of value, in *each* head),
    ``layer0.ffn``, and so on; ``pooled``, if there is a pooler. The defaults are those of BERT-tiny.

    With ``pretrained = "folder"`` the sizes come from a folder in Hugging Face's layout, and so do the weights of the
    embeddings and of as many bottom layers as the network has.
    """

    name = "bert"
    about = "BERT-type encoder with a classifier"
    depth = 2
    aliases = FrozenDict(
        {
            "bert-base": {"depth": 12, "hidden": 768, "heads": 12, "ffn": 3072},
            "minilm-l6": {"depth": 6, "hidden": 384, "heads": 12, "ffn": 1536},
            "roberta-base": {
                "depth": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50265, "positions": 514, "types": 1,
                "pad": 1, "count": "words", "eps": 1e-5,
            },
        }
    )  # fmt: skip
    base = FrozenDict({"hidden": Option(128, "units of the residual stream"), "ffn": Option(512, "feed-forward units")})
    options = FrozenDict(
        {
            "norm": LAYER_NORM,
            "scaler": SCALER,
            "heads": Option(2, "attention heads, which share the units equally", high=1 << 10),
            "vocab": Option(30522, "tokens in the vocabulary"),
            "positions": Option(512, "positions that have an embedding"),
            "types": Option(2, "token types that have an embedding: a first text, and a second"),
            "pad": Option(0, "id of the padding", low=0, high=MOST_UNITS - 1),
            "sep": Option(NO_TOKEN, "id that ends a first text; -1: one text only", low=NO_TOKEN, high=MOST_UNITS - 1),
            "count": Option(
                "all", "which tokens have positions: all, or words (after the padding's)", choices=("all", "words")
            ),
            "output": Option("pooled", "what the classifier reads", choices=("pooled", "first", "tokens")),
            "eps": Option(1e-12, "number that layer norms add to the variance", low=0.0, high=1.0),
            "dropout": DROPOUT,
        }
    )
    read_first = FrozenDict(
        {"pretrained": "A folder in Hugging Face's layout: sizes and weights come from it; depth may be smaller"}
    )
    maps = False
    tokens = True
    class_layers = ("head.classifier",)

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        options = dict(given)
        if "pretrained" not in options:
            return super().spec(options, depth, sizes)
        source = options.pop("pretrained")
        if isinstance(source, str):
            options, depth, source = read_config(source, options, depth)
        found = super().spec(options, depth, sizes)
        return replace(found, options={**found.options, "pretrained": check_source(source)})

    def initial_weights(self, spec: Spec) -> Arrays:
        """Pre-trained embeddings and bottom layers, if the spec names some; the head is always random."""
        if "pretrained" not in spec.options:
            return {}
        needed = [name for name in self.meta_net(spec).state_dict() if not name.startswith("head.")]
        return read_weights(check_source(spec.options["pretrained"]), tensor_name, needed)

    def resolve_options(self, options: dict[str, Any]) -> dict[str, Any]:
        (length,) = options["input"]
        needed = length + (options["pad"] + 1 if options["count"] == "words" else 0)
        if needed > options["positions"]:
            raise SettingsError(
                f"bert: input = [{length}] needs positions = {needed}; there are {options['positions']}."
            )
        if options["pad"] >= options["vocab"]:
            raise SettingsError(f"bert: pad = {options['pad']} is not a token of vocab = {options['vocab']}.")
        if options["sep"] >= options["vocab"]:
            raise SettingsError(f"bert: sep = {options['sep']} is not a token of vocab = {options['vocab']}.")
        return options if options["types"] > 1 else {**options, "sep": NO_TOKEN}

    def check_base(self, base: Base, options: Options) -> None:
        check_heads(self.name, base["hidden"], options["heads"])

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, int)
        found = layer_groups(depth, base["hidden"], base["ffn"], options["heads"])
        return found | ({"pooled": base["hidden"]} if options["output"] == "pooled" else {})

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        assert isinstance(spec.depth, int)
        stream = Axis("stream", spec.sizes["stream"])
        pooled = Axis("pooled", spec.sizes["pooled"]) if "pooled" in spec.sizes else None
        layers = []
        for layer in range(spec.depth):
            inner = Axis(f"layer{layer}.ffn", spec.sizes[f"layer{layer}.ffn"])
            layers.append(BertLayer(stream, *head_axes(spec, layer), inner, options))
        net = Net(BertEmbeddings(stream, options), BertEncoder(*layers), BertHead(stream, pooled, options))
        return initialise_as_bert(net)


def _norm(units: Axis, options: Options) -> nn.Module:
    return LayerNorm(units, options["eps"]) if options["norm"] == "layer" else nn.Identity()
