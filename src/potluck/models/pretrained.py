"""Pre-trained encoders, read from a folder in Hugging Face's layout without its library. Pickles are refused.

The folder holds ``config.json``, from which the network's sizes follow, and ``model.safetensors``. A spec holds the
folder's name and the checksum of its weights, so runs that start from different weights have different specs. Only the
server reads the weights, when it initialises a network: a device is sent what it trains and needs no such folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from potluck.core import Arrays, Depth, FrozenDict, InputError, SettingsError
from potluck.models.options import MOST_BLOCKS, check_integer

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PICKLES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
MODEL_TYPES = {"bert": "all", "roberta": "words", "xlm-roberta": "words", "camembert": "words"}
"""The model types that can be read, and which of their tokens have a position."""
SIZES = {
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "eps": "layer_norm_eps",
    "pad": "pad_token_id",
}
"""Options that must agree with the folder: our name, and the name in its config."""


def read_config(folder: str, given: Mapping[str, Any], depth: Depth) -> tuple[dict[str, Any], Depth, FrozenDict[str]]:
    """A network's options and depth, completed from a folder, and the source of its weights for the spec.

    The given options must agree with the folder. The depth may be smaller (the bottom layers), the dropout may differ.
    """
    place = Path(folder)
    if not folder or not place.is_dir():
        raise InputError(f"pretrained = {folder!r} is not a folder. Name one with {CONFIG_FILE} and {WEIGHTS_FILE}.")
    config = _load_config(place)
    layers = check_integer(f"{place / CONFIG_FILE}: num_hidden_layers", config["num_hidden_layers"], 1, MOST_BLOCKS)
    if isinstance(depth, int) and depth > layers:
        raise SettingsError(f"depth = {depth} is deeper than the {layers} layers of pretrained = {folder!r}.")
    fixed = {ours: config[theirs] for ours, theirs in SIZES.items()} | {"count": MODEL_TYPES[config["model_type"]]}
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise SettingsError(f"{name} = {given[name]!r}, but pretrained = {folder!r} has {value!r}. Leave it out.")
    options = {"dropout": config.get("hidden_dropout_prob", 0.1), **given, **fixed}
    return (
        options,
        layers if depth is None else depth,
        FrozenDict({"folder": folder, "sha256": _checksum(_weights_path(place))}),
    )


def check_source(source: Any) -> FrozenDict[str]:
    """The source of pre-trained weights, if it is one: a folder and the checksum of its weights."""
    if not isinstance(source, Mapping) or set(source) != {"folder", "sha256"}:
        raise SettingsError(f'pretrained = {source!r} must be a folder, such as pretrained = "models/minilm".')
    return FrozenDict({name: str(value) for name, value in source.items()})


def read_weights(source: Mapping[str, str], tensor_name: Callable[[str], str], needed: Iterable[str]) -> Arrays:
    """Read the weights of a folder under our names; their checksum must be the one in the spec."""
    found = _read_arrays(source["folder"], source["sha256"])
    arrays = {tensor_name(name): tensor for name, tensor in found.items()}
    for name in needed:
        if name not in arrays:
            raise InputError(
                f"{Path(source['folder']) / WEIGHTS_FILE} holds no tensor for '{name}'. Is it a BERT model?"
            )
    return {name: arrays[name] for name in needed}


@lru_cache(maxsize=1)
def _read_arrays(folder: str, sha256: str) -> Arrays:
    path = _weights_path(Path(folder))
    if _checksum(path) != sha256:
        raise InputError(
            f"{path} is not the file that this experiment was made with. Put that file back, or start a new run."
        )
    try:
        arrays: Arrays = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as fault:
        raise InputError(f"{path} is not a safetensors file: {fault}") from None
    return arrays


def _weights_path(place: Path) -> Path:
    path = place / WEIGHTS_FILE
    if path.is_file():
        return path
    pickles = sorted(each.name for each in place.iterdir() if each.suffix in PICKLES) if place.is_dir() else []
    refused = f" {pickles[0]} refused: pickle. Save the model again as safetensors." if pickles else ""
    raise InputError(f"{place} holds no {WEIGHTS_FILE}.{refused}")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_config(place: Path) -> dict[str, Any]:
    """The folder's config, if it describes a network that can be built here."""
    path = place / CONFIG_FILE
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{place} holds no {CONFIG_FILE}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON.") from None
    if not isinstance(config, dict) or str(config.get("model_type")) not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise InputError(
            f"{path}: model_type = {kind!r} is not one of those that can be read: {', '.join(MODEL_TYPES)}."
        )
    config = {"layer_norm_eps": 1e-12, "pad_token_id": 0, **config}
    if missing := sorted({*SIZES.values(), "num_hidden_layers"} - config.keys()):
        raise InputError(f"{path} does not say {missing[0]}.")
    for name, known in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(name, known) != known:
            raise InputError(f"{path}: {name} = {config[name]!r}; only {known!r} can be built here.")
    return config
