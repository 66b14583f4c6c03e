"""A model in a folder: ``model.json`` holds its spec, ``model.safetensors`` its arrays. Pickles are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from potluck.core import EMPTY, Arrays, InputError, Model, Newborn, SettingsError, Spec, digest
from potluck.models.initialise import check_arrays, load_net
from potluck.models.pretrained import PICKLES, WEIGHTS_FILE
from potluck.models.specs import complete

HEADER_FILE = "model.json"
FORMAT = 1


def save(folder: str | os.PathLike[str], model: Model, more: Mapping[str, Any] = EMPTY) -> None:
    """Write a model that has arrays into a folder; makes the folder if it does not exist.

    `more` is what ``model.json`` says besides the spec, as plain values.
    """
    arrays = _arrays(model)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    _write(place / WEIGHTS_FILE, safetensors.torch.save(arrays))
    write_header(place, model, more)


def write_header(folder: Path, model: Model, more: Mapping[str, Any] = EMPTY) -> None:
    """Write ``model.json`` alone, for formats that keep the weights elsewhere."""
    arrays = _arrays(model)
    header = {"format": FORMAT, "spec": complete(model.spec).plain(), "sha256": digest(arrays), **more}
    _write(folder / HEADER_FILE, (json.dumps(header, indent=2) + "\n").encode())


def _arrays(model: Model) -> dict[str, Tensor]:
    if isinstance(model, Newborn):
        raise ValueError("a model without arrays cannot be saved")
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.arrays.items()}


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """The network of a folder that `save` wrote, in evaluation mode; raises `InputError` for any other folder."""
    place = Path(folder)
    if place.is_file():
        raise InputError(_not_a_folder(place))
    header = _read_header(place / HEADER_FILE)
    arrays = _read_weights(place / WEIGHTS_FILE)
    try:
        spec = complete(Spec.of(header["spec"]))
        check_arrays(spec, arrays)
    except (SettingsError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise InputError(f"{place}: {HEADER_FILE} and {WEIGHTS_FILE} do not describe a network: {fault}") from None
    if digest(arrays) != header.get("sha256"):
        raise InputError(
            f"{place / WEIGHTS_FILE} does not match the checksum in {HEADER_FILE}: one was altered. Export it again."
        )
    return load_net(spec, arrays).eval()


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(data)
    os.replace(aside, path)


def _read_header(path: Path) -> dict[str, Any]:
    _refuse_missing(path)
    try:
        header = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON. Export the model again.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{path} is not a model of format {FORMAT}, the only one that can be read here.")
    return header


def _read_weights(path: Path) -> Arrays:
    _refuse_missing(path)
    try:
        arrays: Arrays = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as fault:
        if _is_pickle(path):
            raise InputError(f"{path} refused: pickle. Only safetensors files are read.") from None
        raise InputError(f"{path} is not a safetensors file: {fault}") from None
    return arrays


def _refuse_missing(path: Path) -> None:
    if path.is_file():
        return
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} does not exist; name a folder with {HEADER_FILE} and {WEIGHTS_FILE}.")
    pickles = sorted(each.name for each in path.parent.iterdir() if each.suffix in PICKLES)
    refused = f" {pickles[0]} refused: pickle." if pickles else ""
    graphs = [name for name in ("model.pt2", "model.onnx", "model.pte") if (path.parent / name).is_file()]
    refused += f" Its {graphs[0]} is run by predict.py; to load it here, export it as safetensors." if graphs else ""
    raise InputError(f"{path.parent} holds no {path.name}.{refused}")


def _not_a_folder(path: Path) -> str:
    if path.suffix in PICKLES or _is_pickle(path):
        return f"{path} refused: pickle. Name a folder with {HEADER_FILE} and {WEIGHTS_FILE}."
    return f"{path} is a file; name the folder with {HEADER_FILE} and {WEIGHTS_FILE}."


def _is_pickle(path: Path) -> bool:
    """Whether a file that is not safetensors begins like a pickle, or like the archive that ``torch.save`` writes."""
    with path.open("rb") as file:
        start = file.read(4)
    return start == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] <= b"\x05")
