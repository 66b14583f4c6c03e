"""Networks of the library ``transformers``, as factories: by the name of an architecture, or from a folder.

.. code-block:: toml

    [model]
    name = "potluck.models.huggingface:text_classifier"
    kind = "bert"                      # or folder = "bert-tiny", as save_pretrained wrote it
    hidden_size = 128                  # settings of the architecture's configuration
    blocks = "net.bert.encoder.layer"  # what depth counts

A `folder` that is not on this machine is the name of a network on the hub.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import ResourceError, SettingsError
from potluck.models.options import error_line

MISSING = "networks of transformers need that library: pip install 'potluck[text]'"


class ImageScores(nn.Module):
    """A network of ``transformers`` that returns its scores alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x).logits
        return scores


class TextScores(ImageScores):
    """The same for rows of tokens; no position attends to padding, nor in a causal network to later ones."""

    def __init__(self, net: nn.Module, pad: int) -> None:
        super().__init__(net)
        self.pad = pad
        self.causal = any(getattr(module, "is_causal", False) for module in net.modules())
        self.plain_mask = not self.causal and not _takes_mask_of_pairs(net)

    def forward(self, x: Tensor) -> Tensor:
        if self.plain_mask:
            found: Tensor = self.net(x, attention_mask=(x != self.pad).long()).logits
            return found
        here = torch.arange(x.shape[1], device=x.device)
        allowed = (x != self.pad)[:, None, None]
        if self.causal:
            allowed = allowed & (here <= here[:, None])
        # Every position attends to itself, so that none is without any.
        scores: Tensor = self.net(x, attention_mask=allowed | (here == here[:, None])).logits
        return scores


def _takes_mask_of_pairs(net: nn.Module) -> bool:
    """Whether the network takes a mask of [row, head, from, to]. Some, such as DeBERTa, take one of [row, to] only."""
    if any(parameter.is_meta for parameter in net.parameters()):
        return True
    tokens, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 1, 3, 3, dtype=torch.bool)
    modes = {module: module.training for module in net.modules()}
    try:
        with torch.no_grad():
            net.eval()(tokens, attention_mask=mask)
    except (RuntimeError, ValueError, IndexError):
        return False
    finally:
        for module, mode in modes.items():
            module.training = mode
    return True


def text_classifier(
    input: tuple[int, ...], classes: int, kind: str = "", folder: str = "", vocab: int = 0, pad: int = 0, **config: Any
) -> nn.Module:
    """A network that classifies rows of token ids. `config`: settings of the architecture, such as ``hidden_size``.

    `vocab` and `pad` (the number of tokens, and which of them is padding) follow from the data.
    """
    known = {"vocab_size": vocab} if vocab and not folder else {}
    plain = {"pad_token_id": pad} if folder else {"pad_token_id": pad, "bos_token_id": None, "eos_token_id": None}
    net = _classifier("AutoModelForSequenceClassification", classes, kind, folder, {**known, **plain, **config})
    if net.config.vocab_size < vocab:
        raise SettingsError(
            f"the network in '{folder}' knows {net.config.vocab_size} tokens, and the data has {vocab}."
        )
    return TextScores(net, pad)


text_classifier.tokens = True  # type: ignore[attr-defined]


def image_classifier(
    input: tuple[int, ...], classes: int, kind: str = "", folder: str = "", **config: Any
) -> nn.Module:
    """A network that classifies pictures; their size and channels follow from the data."""
    sizes = {"image_size": input[-1], "num_channels": input[0]}
    return ImageScores(_classifier("AutoModelForImageClassification", classes, kind, folder, {**sizes, **config}))


def _classifier(auto: str, classes: int, kind: str, folder: str, config: dict[str, Any]) -> Any:
    if bool(kind) == bool(folder):
        raise SettingsError('it needs either a kind, such as kind = "bert", or a folder, such as folder = "bert-tiny".')
    try:
        library = importlib.import_module("transformers")
    except ImportError:
        raise ResourceError(MISSING) from None
    settings = {"num_labels": classes, **config}
    try:
        if folder:
            settings |= {"local_files_only": os.path.isdir(folder), "ignore_mismatched_sizes": True}
            return getattr(library, auto).from_pretrained(folder, **settings)
        return getattr(library, auto).from_config(library.AutoConfig.for_model(kind, **settings))
    except Exception as fault:  # the library raises many kinds of errors
        raise SettingsError(f"transformers cannot make '{kind or folder}': {error_line(fault)}") from fault
