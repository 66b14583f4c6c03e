"""A folder of plain .npy files, possibly in shards. Inputs stay in the files and are read when a batch needs them.

- `x.npy`: the inputs, (rows, ...), bytes, whole numbers (tokens) or floats, in C order.
- `y.npy`: the labels, (rows,): whole numbers from 0, or floats to regress on.
- `user.npy`, optional: the user of each row, (rows,).
- `x_test.npy` and `y_test.npy`, optional, both or neither: test rows, of the same type and shape.
- `classes.npy`, optional: the names of the classes, as text.

Each means what it means in an npz file. Each may be cut into shards: ``x-00000.npy``, ``x-00001.npy`` and so on,
without a gap. All shards of `x` have the same type and row shape. `y` and `user` are one file each, or cut at the same
rows.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.npz import reshape
from potluck.data.safe_reading import existing_path, file_error, first_file, npy_header
from potluck.data.settings import Data
from potluck.data.source import Source, channels_first, from_arrays, input_rows
from potluck.data.stored import Array, NpyFile, Rows, StoredRows

Files = dict[str, list[NpyFile]]

_NAME = re.compile(r"(x|y|user|x_test|y_test|classes)(-\d+)?\.npy", re.ASCII)


def read(data: Data) -> Source:
    """Reads a folder with x.npy, y.npy and, if present, user.npy, x_test.npy, y_test.npy and classes.npy (names).

    Each may be cut into shards: x-00000.npy, x-00001.npy and so on. Labels and users are read at once.
    """
    folder = existing_path(data.path, data.name)
    if not folder.is_dir():
        raise InputError(f"{data.path}: a file; set data.path to the folder that holds x.npy or x-00000.npy")
    if data.window:
        raise InputError(f"{folder}: data.window = {data.window} is for npz files; leave it out")
    files = {name: [open_npy(path) for path in paths] for name, paths in _paths(folder).items()}
    for name, shards in files.items():
        _check_shards(shards, name)
        if name != "classes":
            _check_rows(shards, files.get("x_test" if name.endswith("_test") else "x", shards))
    columns = {name: _read_whole(shards) for name, shards in files.items() if name not in ("x", "x_test")}
    classes = columns.get("classes")
    return from_arrays(
        _stored(files["x"], data),
        columns["y"],
        columns.get("user"),
        _stored(files["x_test"], data) if "x_test" in files else None,
        columns.get("y_test"),
        names=tuple(map(str, classes.tolist())) if classes is not None and classes.ndim == 1 else (),
        scale=data.scale,
        layout=data.layout if data.layout == "auto" else "channels_first",
        name=str(folder),
    )


def shard_name(name: str, number: int) -> str:
    """The file name of a shard of a column."""
    return f"{name}-{number:05d}.npy"


def _paths(folder: Path) -> dict[str, list[Path]]:
    """The files of each column, in order."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        if match := _NAME.fullmatch(path.name):
            found[match[1]].add(path.name)
    for name in ("x", "y"):
        if name not in found:
            first_file(folder, f"{name}.npy", shard_name(name, 0))
    return {name: [folder / each for each in _in_order(names, name, folder)] for name, names in found.items()}


def _in_order(names: set[str], name: str, folder: Path) -> list[str]:
    """The names of a column's files in order: one file, or shards numbered from 0 without a gap."""
    whole = f"{name}.npy"
    if whole in names and len(names) > 1:
        raise InputError(f"{folder}: it has {whole} and {min(names - {whole})}; keep one file or the shards")
    wanted = [whole] if whole in names else [shard_name(name, number) for number in range(len(names))]
    for each in wanted:
        if each not in names:
            raise InputError(f"{folder / each}: no such file, but there is {max(names)}; number shards from 00000 on")
    return wanted


def open_npy(path: Path) -> NpyFile:
    """Reads and checks the header of a .npy file."""
    if not path.is_file():
        raise InputError(f"{path}: not a plain file; remove it")
    with path.open("rb") as file:
        shape, by_columns, dtype = npy_header(file, "the file", path)
        offset, held = file.tell(), os.fstat(file.fileno()).st_size
    size = math.prod(shape) * dtype.itemsize
    if offset + size != held:
        raise file_error(path, f"names {size:,} bytes in its header and holds {held - offset:,}; save it again")
    if not shape or not size:
        raise file_error(path, f"has the shape {shape} and holds no rows; give at least one")
    if by_columns and len(shape) > 1:
        raise file_error(path, "in Fortran order; save it again with numpy.save(path, numpy.ascontiguousarray(...))")
    return NpyFile(path, shape, dtype, offset)


def _check_shards(shards: list[NpyFile], name: str) -> None:
    """Raises an error unless all shards of a column hold the same. Names may be longer in one than in another."""
    first = shards[0]
    if name in ("x", "x_test") and len(first.shape) < 2:
        raise InputError(f"{first.path}: has the shape {first.shape}; give (rows, ...), one row per sample")
    for shard in shards:
        same = shard.dtype == first.dtype or shard.dtype.kind == first.dtype.kind == "U"
        if not same or shard.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{shard.path}: holds {shard.dtype} of {shard.shape[1:]}, {first.path.name} holds {first.dtype} of "
                f"{first.shape[1:]}; give all shards the same type and shape"
            )


def _check_rows(shards: list[NpyFile], inputs: list[NpyFile]) -> None:
    """Raises an error unless a column is one file, or has the same rows in each shard as the inputs."""
    if len(shards) == 1:
        return
    if len(shards) != len(inputs):
        raise InputError(
            f"{shards[-1].path}: the last of {len(shards)} files, and {inputs[-1].path.name} is the last of "
            f"{len(inputs)}; give as many, or one"
        )
    for shard, other in zip(shards, inputs, strict=True):
        if len(shard) != len(other):
            raise InputError(
                f"{shard.path}: holds {len(shard)} rows, {other.path.name} holds {len(other)}; they must match"
            )


def _read_whole(shards: list[NpyFile]) -> Array:
    return np.concatenate([shard.read(np.arange(len(shard))) for shard in shards])


def _stored(shards: list[NpyFile], data: Data) -> StoredRows:
    """The inputs in these files, which are reshaped and resized when they are read."""

    def edit(values: Array, what: str, rows: Rows) -> Array:
        return input_rows(channels_first(reshape(values, data, what), what, data.layout), what, data.size, rows)

    return StoredRows(shards, edit)
