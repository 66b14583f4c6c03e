"""Writes a folder of .npy files that `data.name = "npy"` reads, whole arrays or piece by piece."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from potluck.core import InputError
from potluck.data.npy import shard_name
from potluck.data.source import as_input_type
from potluck.data.stored import Array

SHARD_BYTES = 256 << 20
"""About the size of a file of inputs, unless the number of rows is given."""

Piece: TypeAlias = dict[str, Array]
"""Some rows of every column."""

Values: TypeAlias = ArrayLike | Iterator[Sequence[ArrayLike]]
"""An array, or an iterator of pieces."""

_COLUMNS = ("x", "y", "user")


def write_npy_folder(
    folder: str | Path,
    x: Values,
    y: ArrayLike | None = None,
    user: ArrayLike | None = None,
    x_test: Values | None = None,
    y_test: ArrayLike | None = None,
    *,
    classes: Sequence[str] = (),
    shard_rows: int | None = None,
) -> Path:
    """Writes rows to a new folder of .npy files and returns its path: ``name = "npy"``, ``path = folder`` in [data].

    x, y and user are as in `from_arrays`. For more rows than fit into memory, x is an iterator of pieces, each (x, y)
    or (x, y, user), and y and user are left out; x_test likewise, of (x, y). Write the rows of a user one after
    another: a client's rows are then read from one place. `classes` are the names of the classes. A file holds
    `shard_rows` rows, by default so many that one of x has about 256 MB. The folder appears when all is written.
    """
    if shard_rows is not None and shard_rows < 1:
        raise InputError(f"shard_rows = {shard_rows} is below 1")
    whole = Path(folder)
    if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
        raise InputError(f"{folder}: exists and is not an empty folder; choose another name")
    splits = {"": _pieces(x, y, user)}
    if x_test is not None or y_test is not None:
        splits["_test"] = _pieces(x_test, y_test, None)
    part = whole.with_name(f".{whole.name}.{os.getpid()}.partial")
    part.mkdir(parents=True)
    try:
        for suffix, pieces in splits.items():
            _write_shards(part, pieces, suffix, shard_rows)
        if classes:
            np.save(part / "classes.npy", np.array([str(name) for name in classes]), allow_pickle=False)
        os.replace(part, whole)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return whole


def _pieces(x: Values | None, y: ArrayLike | None, user: ArrayLike | None) -> Iterator[Piece]:
    """The rows of one split, piece by piece; arrays are one piece."""
    streamed = isinstance(x, Iterator)
    if x is None or (y is not None) == streamed or (streamed and user is not None):
        raise InputError("give x and y as arrays, or x as an iterator of (x, y) or (x, y, user); x_test and y_test too")
    given = x if isinstance(x, Iterator) else [(x, y) if user is None else (x, y, user)]
    return ({name: np.asarray(each) for name, each in zip(_COLUMNS, piece, strict=False)} for piece in given)


def _write_shards(folder: Path, pieces: Iterator[Piece], suffix: str, shard_rows: int | None) -> None:
    first = next(pieces, {})
    start = 0
    for number, shard in enumerate(_shards(chain([first], pieces), first, suffix, shard_rows)):
        rows = np.arange(start, start + len(shard["x"]))
        as_input_type(shard["x"], f"x{suffix}", rows)
        start += len(rows)
        for name, values in shard.items():
            np.save(folder / shard_name(name + suffix, number), values, allow_pickle=False)
    if not start:
        raise InputError(f"x{suffix} holds no rows; give at least one")


def _shards(pieces: Iterable[Piece], first: Piece, suffix: str, shard_rows: int | None) -> Iterator[Piece]:
    """The same rows, so many at a time that each piece fills a file."""
    waiting: list[Piece] = []
    held = most = 0
    for piece in pieces:
        rows = _check_piece(piece, first, suffix)
        if not rows:
            continue
        most = most or shard_rows or max(1, SHARD_BYTES * rows // max(1, piece["x"].nbytes))
        at = 0
        while at < rows:
            end = min(rows, at + most - held)
            waiting.append({name: values[at:end] for name, values in piece.items()})
            held, at = held + end - at, end
            if held == most:
                yield _join(waiting)
                waiting, held = [], 0
    if waiting:
        yield _join(waiting)


def _join(pieces: list[Piece]) -> Piece:
    return {name: np.ascontiguousarray(np.concatenate([piece[name] for piece in pieces])) for name in pieces[0]}


def _check_piece(piece: Piece, first: Piece, suffix: str) -> int:
    """The number of rows of a piece; an error unless its columns are of equal length and like those of the first."""
    if not {"x", "y"} <= piece.keys() or piece.keys() != first.keys():
        raise InputError(
            f"a piece of x{suffix} holds {', '.join(piece) or 'nothing'}; give (x, y) or (x, y, user) in all"
        )
    rows = len(piece["x"]) if piece["x"].ndim else 0
    for name, values in piece.items():
        kind = first[name]
        if values.dtype.hasobject or not values.ndim or len(values) != rows:
            raise InputError(
                f"{name}{suffix} holds {values.dtype} of {values.shape}; give numbers, one for each of {rows} rows of x"
            )
        same = values.dtype == kind.dtype or values.dtype.kind == kind.dtype.kind == "U"
        if not same or values.shape[1:] != kind.shape[1:]:
            raise InputError(
                f"{name}{suffix} holds {values.dtype} of {values.shape[1:]} in one piece and {kind.dtype} of "
                f"{kind.shape[1:]} in the first; give all pieces the same type and shape"
            )
    return rows
