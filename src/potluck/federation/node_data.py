"""A node's own data: read from its file, compared with the charter, and split into train, validation and test."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import torch

from potluck.core import NOTHING, Examples, InputError
from potluck.data import UNDIVIDED, Data, Federation, Source, load
from potluck.federation.charter import Charter, CharterError, OwnDatasets, describe_source
from potluck.run.assemble import Splits
from potluck.run.settings import Experiment, Nodes

PIECE = 8192
"""Rows that are read at once."""


def read_source(path: Path, data: Data) -> Source:
    """The data set in a file. What kind of file it is follows from its name, else from the settings."""
    if not path.exists():
        raise InputError(f"{path}: no such file.")
    kind = "npz" if path.suffix == ".npz" else "npy" if path.is_dir() and any(path.glob("*.npy")) else data.name
    return load(replace(data, name=kind, path=str(path)))


def read_node_data(id: str, path: Path, public: Path | None, charter: Charter) -> OwnDatasets:
    """The data of a node; an error of one line if it is not what the charter says."""
    experiment = charter.experiment
    source = read_source(path, experiment.data)
    compare_source(source, experiment.nodes, str(path))
    return OwnDatasets(id, split(source, experiment), read_public(public, charter))


def split(source: Source, experiment: Experiment) -> Splits:
    """Splits a node's rows: data.test and data.validation are the shares that are held out of training."""
    alone = replace(experiment.data, clients=1, **UNDIVIDED, public=0, held_out="rows")
    alone = replace(alone, public_from=type(alone.public_from)())
    rows = Federation(source, alone, experiment.seed)
    own, floor = rows.shard(0), experiment.nodes.floor
    held = [examples if len(examples) >= floor else NOTHING for examples in (rows.validation, rows.test)]
    if not len(own.train):
        raise InputError(f"{source.name}: no rows are left to train on.")
    if len(own.train) > experiment.nodes.most_samples:
        raise CharterError(
            f"{source.name}: {len(own.train)} rows to train on; the charter allows {experiment.nodes.most_samples}."
        )
    return Splits(own.train, held[0], held[1], own.labels)


def read_public(path: Path | None, charter: Charter) -> Examples:
    """A node's copy of the public rows, which must be the same as the server's."""
    wanted = str(charter.plain["public"])
    if not wanted:
        return NOTHING
    if path is None:
        raise CharterError("the charter needs public rows: give this node's copy of them with --public FILE.")
    found = read_source(path, charter.experiment.data)
    if public_checksum(found) != wanted:
        raise CharterError(
            f"{path}: not the public rows of the charter (checksum {public_checksum(found)}, not {wanted})."
        )
    return found.train


def public_checksum(source: Source) -> str:
    """A checksum of public rows."""
    return hashlib.sha256(source.fingerprint.encode()).hexdigest()[:16]


def compare_source(source: Source, nodes: Nodes, where: str) -> None:
    """Refuses data of another shape, with other labels, or with other tokens than the charter says."""
    if source.shape != nodes.shape:
        wanted = "x".join(map(str, nodes.shape))
        raise CharterError(f"{where}: inputs of {'x'.join(map(str, source.shape))}; the charter says {wanted}.")
    _compare_labels(source, nodes, where)
    _compare_tokens(source, nodes, where)


def _compare_labels(source: Source, nodes: Nodes, where: str) -> None:
    classes = nodes.classes or 0
    if bool(source.classes) != bool(classes):
        kinds = ("numbers to regress on", f"{source.classes} classes")
        wanted = kinds[0] if not classes else f"{classes} classes"
        raise CharterError(f"{where}: its labels are {kinds[bool(source.classes)]}; the charter says {wanted}.")
    if source.classes > classes:
        raise CharterError(f"{where}: a label {source.classes - 1}; the charter has the classes 0 to {classes - 1}.")
    if source.names and not nodes.names:  # another node may have them in another order
        raise CharterError(f"{where}: its classes have names ({source.names[0]}, ...); the charter needs nodes.names.")
    if source.names and source.names != nodes.names:
        odd = next((a, b) for a, b in zip_longest(source.names, nodes.names) if a != b)
        raise CharterError(f"{where}: a class is called {odd[0]!r} where the charter has {odd[1]!r}.")
    each = "row" if source.train.columns["y"].dim() == 1 else "token"
    if each != ("row" if nodes.labels == "row" else "token") or (source.tagged and nodes.labels != "tags"):
        raise CharterError(f'{where}: a label for each {each}; the charter says nodes.labels = "{nodes.labels}".')


def _compare_tokens(source: Source, nodes: Nodes, where: str) -> None:
    """Texts that were read with a tokenizer must have the same vocabulary; those in arrays, tokens that are in it."""
    whole = source.train.columns["x"].dtype is torch.int64
    size = nodes.tokens or (nodes.classes or 0 if nodes.labels == "tokens" else 0)
    if whole != bool(size):
        kind = "whole numbers, which count as tokens" if whole else "no tokens (whole numbers)"
        raise CharterError(f"{where}: inputs that are {kind}; the charter says nodes.tokens = {nodes.tokens}.")
    found = describe_source(source)
    if source.tokens or source.tagged:
        for name in ("tokens", "pad", "sep"):
            if found[name] != getattr(nodes, name):
                told = f"nodes.{name} would be {found[name]!r} here, and the charter says {getattr(nodes, name)!r}"
                raise CharterError(f"{where}: {told}. The tokenizer must be the same.")
    elif whole:
        low, high = _token_range(source)
        if low < 0 or high >= size:
            odd = low if low < 0 else high
            raise CharterError(f"{where}: a token {odd}; the charter has the tokens 0 to {size - 1}.")


def _token_range(source: Source) -> tuple[int, int]:
    """The smallest and the largest token, read piece by piece: inputs may be in files."""
    column = source.train.columns["x"]
    ends = [column[start : start + PIECE].aminmax() for start in range(0, len(column), PIECE)]
    return min(int(low) for low, _ in ends), max(int(high) for _, high in ends)
