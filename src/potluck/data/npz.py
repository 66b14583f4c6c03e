"""One NumPy file, as ``numpy.savez`` writes it. Arrays of Python objects are refused. The arrays:

- `x`: the inputs, (rows, ...). Bytes (uint8) become floats in [0, 1] unless data.scale says otherwise; floats are used
  as float32 and must be finite; other whole numbers are tokens.
- `y`: the labels, (rows,): whole numbers from 0 are classes; floats are numbers to regress on. (rows, tokens) for a
  label on every token; -100 there means none.
- `user` (or `subject`, `speaker`), optional: the user of each row, (rows,), of any type that can be sorted; an empty
  text means no user. If the file also has the plural (`users`, ...), a list of names, the column holds indices into
  it.
- `classes`, optional: the names of the classes, (classes,), as text.
- `x_test`, `y_test`, optional, both or neither: test rows, of the same type and shape. Else data.test holds out rows.
- `off`, optional: where recordings of different lengths begin in `x`, which then is (samples, channels): recording i
  is ``x[off[i]:off[i + 1]]``. It rises from 0 to the samples of `x`. `y` and `user` then have one value for each
  recording, and data.window cuts recordings into rows of (channels, window).

Other arrays in the file are not read. ``data.shape`` reshapes each row of `x`, and ``data.size`` resizes images.
"""

from __future__ import annotations

import errno
import math
import struct
import zipfile
import zlib
from io import BufferedReader, FileIO
from pathlib import Path

import numpy as np

from potluck.core import InputError, SettingsError
from potluck.data.safe_reading import (
    PIECE,
    check_expansion,
    existing_path,
    file_error,
    npy_header,
    pickle_error,
    read_array,
)
from potluck.data.settings import Data
from potluck.data.source import Array, Source, from_arrays

USERS = ("user", "subject", "speaker")
"""Names of the user column; the first one present counts. If the file also has the plural (`users`), the column holds
indices into that list of names, where an empty name means no user."""

_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""What `zipfile` raises for a damaged file; OSError with EINVAL if an offset points before the start of the file."""


def read(data: Data) -> Source:
    """Reads one npz file with x, y and optionally user (or subject, speaker), classes (names), x_test, y_test, off."""
    path = existing_path(data.path, data.name)
    if path.is_dir():
        raise InputError(f"{data.path}: a folder; set data.path to the npz file")
    try:
        with _LimitedReader(FileIO(path)) as raw, zipfile.ZipFile(raw) as file:
            arrays = _arrays(file, path)
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # an error of the disk, not of the file
            raise
        reason = str(error) or type(error).__name__
        raise file_error(path, f"not a complete npz file ({reason}); save it again with numpy.savez") from None
    return _source(arrays, data, str(path))


class _LimitedReader(BufferedReader):
    """A file that reads at most PIECE bytes at once, so that a huge zip directory cannot fill the memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size if size is not None and 0 <= size <= PIECE else PIECE + 1)
        if len(piece) > PIECE:
            raise zipfile.BadZipFile(f"its directory takes more than {PIECE:,} bytes")
        return piece


def _arrays(file: zipfile.ZipFile, path: Path) -> dict[str, Array]:
    if any(name.endswith((".pkl", ".pickle")) for name in file.namelist()):
        raise pickle_error(path)
    known = {*USERS, *(f"{name}s" for name in USERS), "off", "x", "y", "x_test", "y_test", "classes"}
    members = [entry for entry in file.infolist() if entry.filename.removesuffix(".npy") in known]
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in members):
        raise file_error(path, "compressed in a way that NumPy does not write; save it again with numpy.savez")
    check_expansion(path, sum(entry.file_size for entry in members))
    return {entry.filename.removesuffix(".npy"): _member(file, entry, path) for entry in members}


def _member(file: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Array:
    with file.open(entry) as body:
        shape, by_columns, dtype = npy_header(body, entry.filename, path)
        size = math.prod(shape) * dtype.itemsize
        held = entry.file_size - body.tell()
        if size != held:
            raise file_error(
                path, f"{entry.filename} names {size:,} bytes in its header and holds {held:,}; save it again"
            )
        flat = read_array(body, dtype, (math.prod(shape),), path)
        return flat.reshape(shape, order="F" if by_columns else "C")


def _source(arrays: dict[str, Array], data: Data, name: str) -> Source:
    for wanted in ("x", "y"):
        if wanted not in arrays:
            raise InputError(f"{name}: no array named {wanted}; save it with numpy.savez(path, x=..., y=...)")
    x, y, user = arrays["x"], arrays["y"], _user_column(arrays, name)
    if "off" in arrays:
        x, recording = cut_windows(x, arrays["off"], data.window, name)
        y = _repeat_for_windows(y, recording, arrays["off"], name)
        user = None if user is None else _repeat_for_windows(user, recording, arrays["off"], name)
    elif data.window:
        raise InputError(f"{name}: data.window = {data.window}, but no 'off' says where recordings begin; leave it out")
    classes = arrays.get("classes")
    names = tuple(map(str, classes.tolist())) if classes is not None and classes.ndim == 1 else ()
    return from_arrays(
        reshape(x, data, name),
        y,
        user,
        reshape(arrays["x_test"], data, name) if "x_test" in arrays else None,
        arrays.get("y_test"),
        names=names,
        size=data.size,
        scale=data.scale,
        layout=data.layout,
        name=name,
    )


def _user_column(arrays: dict[str, Array], name: str) -> Array | None:
    """The user of each row, by name if names are given."""
    key = next((key for key in USERS if key in arrays), None)
    if key is None or f"{key}s" not in arrays:
        return None if key is None else arrays[key]
    column, names = arrays[key], arrays[f"{key}s"]
    valid = np.issubdtype(column.dtype, np.integer) and names.ndim == 1
    if not valid or (column.size and not 0 <= column.min() <= column.max() < len(names)):
        raise InputError(f"{name}: {key} must hold indices into {key}s, whole numbers from 0 to {len(names) - 1}")
    return names[column]


def _repeat_for_windows(column: Array, recording: Array, off: Array, name: str) -> Array:
    """A column with one value per recording as one with one value per window."""
    if column.shape != (len(off) - 1,):
        raise InputError(
            f"{name}: a column of shape {column.shape}; give one value for each of {len(off) - 1} recordings"
        )
    return column[recording]


def reshape(x: Array, data: Data, name: str) -> Array:
    """Each sample in the shape that `data.shape` asks for."""
    if not data.shape:
        return x
    if x.ndim == 0 or math.prod(x.shape[1:]) != math.prod(data.shape):
        raise InputError(
            f"{name}: samples of shape {x.shape[1:]} cannot take data.shape = {list(data.shape)}; change it"
        )
    return x.reshape(len(x), *data.shape)


def cut_windows(x: Array, off: Array, length: int, name: str) -> tuple[Array, Array]:
    """Windows of (channels, length), and the recording of each window; recording i is ``x[off[i]:off[i + 1]]``.

    Windows do not overlap. The rest at the end of a recording is dropped; so is a recording shorter than a window.
    """
    if not length:
        raise SettingsError(f"{name}: recordings of different lengths (it has 'off'); set data.window to a length")
    _check_offsets(x, off, name)
    counts = np.diff(off) // length
    if not counts.sum():
        raise SettingsError(
            f"{name}: data.window = {length}, but the longest recording has {np.diff(off).max(initial=0)}; lower it"
        )
    recording = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(recording)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = off[recording].astype(np.int64) + number * length
    return x[starts[:, None] + np.arange(length)].transpose(0, 2, 1), recording


def _check_offsets(x: Array, off: Array, name: str) -> None:
    if x.ndim != 2:
        raise InputError(f"{name}: x has the shape {x.shape}; recordings need (samples, channels); reshape x")
    whole = off.ndim == 1 and len(off) > 1 and np.issubdtype(off.dtype, np.integer)
    if not whole or off[0] != 0 or off[-1] != len(x) or (off[1:] < off[:-1]).any():
        raise InputError(
            f"{name}: off must rise from 0 to the {len(x)} samples of x, one more than there are recordings"
        )
