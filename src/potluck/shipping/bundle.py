"""Writes the folder of a model that ships. It appears whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from potluck.core import InputError, Model
from potluck.models.folder import save, write_header
from potluck.shipping import standalone
from potluck.shipping.device_training import TRAINING_FILE, batch_of, loss_of, write_training_graph
from potluck.shipping.figures import Figures
from potluck.shipping.formats import GRAPH_FILES, NoGraph, write_graph
from potluck.shipping.readme import readme

TOLERANCE = 1e-4
"""The largest difference of a graph's outputs from the network's; relative to the largest output if that is above 1."""
SAMPLE_ROWS = 8
TOKENIZER, SAMPLE, PREDICT = "tokenizer.json", "sample.npz", "predict.py"
OURS = {
    *("model.json", "model.safetensors", *GRAPH_FILES.values(), TRAINING_FILE, TOKENIZER, SAMPLE, PREDICT),
    *("README.md", "requirements.txt", "__pycache__"),
}

Array = NDArray[Any]


@dataclass(frozen=True)
class ModelCard:
    """What the folder says of its model: where it comes from, what it reads and what its outputs mean."""

    title: str
    """Whose model it is, such as "tier phone"."""
    method: str
    rounds: int
    score: str
    """The score in the run; empty: none is known."""
    problem: str
    """classify, regress, tag or nexttoken."""
    classes: int
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    kind: str = ""
    """What files the inputs came from, as `InputForm.kind`; empty: not known."""
    columns: tuple[str, ...] = ()
    dtype: str = ""
    """The type of inputs before they are scaled; empty: not known, so rows are the network's own inputs."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    tokenizer: Mapping[str, Any] | None = None
    missing: tuple[str, ...] = ()
    """What is not known of the inputs and outputs, one line each."""

    def plain(self) -> dict[str, Any]:
        """What ``model.json`` says besides the spec."""
        return {
            "run": {"model": self.title, "method": self.method, "rounds": self.rounds, "score": self.score},
            "input": {
                "kind": self.kind or "array",
                "shape": list(self.shape),
                "dtype": self.dtype,
                "mean": self.mean,
                "std": self.std,
                "columns": list(self.columns),
                "tokenizer": TOKENIZER if self.tokenizer else None,
            },
            "output": {"problem": self.problem, "classes": self.classes, "names": list(self.names)},
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Sample:
    """Rows on which a graph is compared with its network."""

    rows: Array
    """As stored, before scaling."""
    inputs: Tensor
    """The same rows as the run gave them to the network."""
    real: bool
    """Whether they are test rows of the run's data, and not made up."""
    labels: Tensor | None = None
    """Their labels, which a training graph needs."""


def write_bundle(
    to: Path | str,
    model: Model,
    net: nn.Module,
    card: ModelCard,
    sample: Sample,
    told: Figures,
    format: str,
    train: int = 0,
) -> tuple[str, ...]:
    """Writes the folder; returns what is to be said about it, one line each. `net` is in evaluation mode.

    With `train`, which goes with the format executorch, there is a training graph for batches of so many rows.
    """
    place = Path(to)
    fresh = not place.exists()
    _refuse_other_files(place)
    place.mkdir(parents=True, exist_ok=True)
    aside = place.parent / f".{place.name}.{os.getpid()}.part"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        notes = _fill(aside, model, net, card, sample, told, format, train)
        _replace(place, aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        if fresh and place.is_dir() and not any(place.iterdir()):
            place.rmdir()
        raise
    return notes


def _refuse_other_files(place: Path) -> None:
    if place.is_dir():
        other = sorted({each.name for each in place.iterdir()} - OURS)
        if other:
            raise InputError(f"{place} holds other files ({other[0]}), which would be lost; name a new folder.")


def _replace(place: Path, aside: Path) -> None:
    if not any(place.iterdir()):
        os.rename(aside, place)
        return
    old = place.parent / f".{place.name}.{os.getpid()}.old"
    os.rename(place, old)
    os.rename(aside, place)
    shutil.rmtree(old)


def _fill(
    folder: Path,
    model: Model,
    net: nn.Module,
    card: ModelCard,
    sample: Sample,
    told: Figures,
    format: str,
    train: int,
) -> tuple[str, ...]:
    family, kind = model.spec.family, "pt2" if format == "safetensors" else format
    more, notes = card.plain(), list(card.missing)
    graph = folder / GRAPH_FILES[kind]
    if train:
        more["training"] = _write_training(folder, net, family, card.problem, sample, train)
    try:
        write_graph(net, family, _example(sample.inputs), graph, kind)
        more["graph"] = {"format": kind, **_named(graph)}
    except NoGraph as fault:
        if format != "safetensors":
            raise
        notes.append(f"no graph and no {PREDICT}: {fault} Load the folder with potluck.models.load.")
        graph.unlink(missing_ok=True)
    if format == "safetensors" or train:
        save(folder, model, more)
    else:
        write_header(folder, model, more)
    if card.tokenizer:
        (folder / TOKENIZER).write_text(json.dumps(card.tokenizer) + "\n", "utf-8")
    if "graph" in more:
        (folder / PREDICT).write_text(Path(standalone.__file__).read_text("utf-8"), "utf-8")
        (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements(card, kind)), "utf-8")
        check(folder, net, sample, card.names)
    kept = sample.rows[:SAMPLE_ROWS]
    expected = outputs(net, sample.inputs[:SAMPLE_ROWS])
    arrays: dict[str, Any] = {"x": kept, "expected": expected, "real": np.array(sample.real)}
    if train and sample.labels is not None:
        arrays["y"] = sample.labels[:SAMPLE_ROWS].numpy()
    np.savez(folder / SAMPLE, **arrays)
    (folder / "README.md").write_text(readme(model.spec, more, told, sample.real), "utf-8")
    return tuple(notes)


def _write_training(
    folder: Path, net: nn.Module, family: str, problem: str, sample: Sample, rows: int
) -> dict[str, Any]:
    """Writes the training graph; returns what ``model.json`` says of it."""
    assert sample.labels is not None, "a training graph needs labels"
    path, loss = folder / TRAINING_FILE, loss_of(problem)
    x, y = batch_of(sample.inputs[:SAMPLE_ROWS], sample.labels[:SAMPLE_ROWS], rows)
    write_training_graph(net, family, loss, x, y, path)
    return {**_named(path), "rows": rows, "loss": type(loss).__name__}


def _named(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _example(inputs: Tensor) -> Tensor:
    """A few rows, always as many, so that a graph does not depend on the sample; more than one, so that it reads any
    number."""
    return inputs[:1].repeat(4, *(1 for _ in inputs.shape[1:]))


def requirements(card: ModelCard, kind: str) -> list[str]:
    """The packages that the folder's program needs, in the versions that it was checked with, or later ones."""
    found = []
    for runtime in {"onnx": ["onnxruntime"], "executorch": ["executorch", "torch"]}.get(kind, ["torch"]):
        major, minor = importlib.metadata.version(runtime).split("+")[0].split(".")[:2]
        found.append(f"{runtime}>={major}.{minor}")
    found.append("numpy")
    if len(card.shape) == 3 and card.dtype == "uint8":
        found.append("pillow")
    if card.tokenizer and card.tokenizer["kind"] in ("wordpiece", "byte_pairs"):
        found.append("tokenizers")
    if card.kind in ("table", "text", "tags", "stream"):
        found.append("# pyarrow, for .parquet files")
    return found


def outputs(net: nn.Module, x: Tensor) -> Array:
    """The outputs of a network."""
    with torch.inference_mode():
        found: Array = net(x).cpu().numpy()
    return found


def check(folder: Path, net: nn.Module, sample: Sample, names: tuple[str, ...] = ()) -> float:
    """The largest difference of the folder's outputs from the network's, over all rows and for a single one.

    A difference above `TOLERANCE` is an error that says where it is.
    """
    try:
        shipped = standalone.ShippedModel(folder)
        worst = 0.0
        for count in {len(sample.rows), 1}:
            wanted, found = outputs(net, sample.inputs[:count]), shipped.scores(sample.rows[:count])
            worst = max(worst, _compare(wanted, found, names, str(shipped.told["graph"]["file"])))
    except standalone.ModelError as fault:
        raise InputError(str(fault)) from None
    return worst


def _compare(wanted: Array, found: Array, names: tuple[str, ...], file: str) -> float:
    if wanted.shape != found.shape:
        raise InputError(f"{file} gives outputs of {found.shape}, its network {wanted.shape}; nothing was written.")
    off = np.where(np.isnan(wanted) & np.isnan(found) | (wanted == found), 0.0, np.abs(wanted - found))
    allowed = TOLERANCE * max(1.0, float(np.abs(np.nan_to_num(wanted)).max(initial=0.0)))
    wrong = ~(off <= allowed)
    if wrong.any():
        where = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        output = standalone.name_of(int(where[-1]), list(names))
        raise InputError(
            f"{file} says {found[where]:.6g} where its network says {wanted[where]:.6g} (row {int(where[0])}, output "
            f"'{output}'), a difference above {allowed:g}; nothing was written."
        )
    return float(off.max(initial=0.0))
