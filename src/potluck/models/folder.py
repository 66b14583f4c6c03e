"""A model in a folder: ``model.json`` says which network, ``model.safetensors`` holds its numbers. Never a pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from potluck.core import Arrays, InputError, Model, SettingsError, Spec, digest
from potluck.models.initialise import check_arrays, load_net
from potluck.models.pretrained import NUMBERS, PICKLES
from potluck.models.specs import complete

HEAD = "model.json"
FORMAT = 1


def save(folder: str | os.PathLike[str], model: Model) -> None:
    """Write a model that has arrays into a folder, which is made if need be."""
    if model.arrays is None:
        raise ValueError("a model without arrays cannot be saved")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    arrays = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.arrays.items()}
    head = {"format": FORMAT, "spec": complete(model.spec).plain(), "sha256": digest(arrays)}
    _write(place / NUMBERS, safetensors.torch.save(arrays))
    _write(place / HEAD, (json.dumps(head, indent=2) + "\n").encode())


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """The network of a folder that `save` wrote, in evaluation mode; `InputError` for any other."""
    place = Path(folder)
    if place.is_file():
        raise InputError(_no_folder(place))
    head = _head(place / HEAD)
    arrays = _numbers(place / NUMBERS)
    try:
        spec = complete(Spec.of(head["spec"]))
        check_arrays(spec, arrays)
    except (SettingsError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise InputError(f"{place}: {HEAD} and {NUMBERS} do not describe a network: {fault}") from None
    if digest(arrays) != head.get("sha256"):
        raise InputError(f"{place / NUMBERS} does not match the checksum in {HEAD}: one was altered. Export it again.")
    return load_net(spec, arrays).eval()


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(data)
    os.replace(aside, path)


def _head(path: Path) -> dict[str, Any]:
    _need(path)
    try:
        head = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON. Export the model again.") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise InputError(f"{path} is not a model of format {FORMAT}, the one that is read here.")
    return head


def _numbers(path: Path) -> Arrays:
    _need(path)
    try:
        arrays: Arrays = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as fault:
        if _looks_pickled(path):
            raise InputError(f"{path} refused: pickle. Only safetensors files are read.") from None
        raise InputError(f"{path} is not a safetensors file: {fault}") from None
    return arrays


def _need(path: Path) -> None:
    if path.is_file():
        return
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not there; name a folder with {HEAD} and {NUMBERS}.")
    pickles = sorted(each.name for each in path.parent.iterdir() if each.suffix in PICKLES)
    refused = f" {pickles[0]} refused: pickle." if pickles else ""
    raise InputError(f"{path.parent} holds no {path.name}.{refused}")


def _no_folder(path: Path) -> str:
    if path.suffix in PICKLES or _looks_pickled(path):
        return f"{path} refused: pickle. Name a folder with {HEAD} and {NUMBERS}."
    return f"{path} is a file; name the folder with {HEAD} and {NUMBERS}."


def _looks_pickled(path: Path) -> bool:
    """Whether a file that is no safetensors file begins as a pickle does, bare or in torch's archive."""
    with path.open("rb") as file:
        start = file.read(4)
    return start == b"PK\x03\x04" or (start[:1] == b"\x80" and start[1:2] <= b"\x05")
