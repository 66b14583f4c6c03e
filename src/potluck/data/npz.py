"""NumPy's npz files: x and y, and if there a column of users, names, a test set, or where recordings begin."""

from __future__ import annotations

import errno
import math
import struct
import zipfile
import zlib
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from potluck.core import InputError
from potluck.data.guard import PIECE, fault, fill, found, looks_pickled, pickled, unfolds
from potluck.data.settings import Data
from potluck.data.source import Array, Source, from_arrays
from potluck.data.windows import windows

USERS = ("user", "subject", "speaker")
"""Names under which a file may say whose row each is; the first one there counts. Where it has their plural too, the
column holds places in that list of names, in which an empty name is nobody's."""

_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""What a damaged zip file makes its reader raise; EINVAL when it points to before its own start."""


def read(data: Data) -> Source:
    """One npz file with x, y and optionally user (or subject, speaker), classes (names), x_test, y_test, off."""
    path = found(data.path, data.name)
    if path.is_dir():
        raise InputError(f"{data.path}: a folder; set data.path to the npz file")
    try:
        with _Sips(FileIO(path)) as raw, zipfile.ZipFile(raw) as file:
            arrays = _arrays(file, path)
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # the disk's fault, not the file's
            raise
        reason = str(error) or type(error).__name__
        raise fault(path, f"not a whole npz file ({reason}); save it again with numpy.savez") from None
    return _source(arrays, data, str(path))


class _Sips(BufferedReader):
    """A file that refuses to be read in large gulps: a zip directory of a million entries is not worth the memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        sip = super().read(size if size is not None and 0 <= size <= PIECE else PIECE + 1)
        if len(sip) > PIECE:
            raise zipfile.BadZipFile(f"its directory takes more than {PIECE:,} bytes")
        return sip


def _arrays(file: zipfile.ZipFile, path: Path) -> dict[str, Array]:
    if any(name.endswith((".pkl", ".pickle")) for name in file.namelist()):
        raise pickled(path)
    known = {*USERS, *(f"{name}s" for name in USERS), "off", "x", "y", "x_test", "y_test", "classes"}
    members = [entry for entry in file.infolist() if entry.filename.removesuffix(".npy") in known]
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in members):
        raise fault(path, "compressed in a way that NumPy does not write; save it again with numpy.savez")
    unfolds(path, sum(entry.file_size for entry in members))
    return {entry.filename.removesuffix(".npy"): _member(file, entry, path) for entry in members}


def _member(file: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Array:
    with file.open(entry) as body:
        shape, by_columns, dtype = _header(body, entry.filename, path)
        size = math.prod(shape) * dtype.itemsize
        held = entry.file_size - body.tell()
        if size != held:
            raise fault(path, f"{entry.filename} names {size:,} bytes in its header and holds {held:,}; save it again")
        flat = fill(body, dtype, (math.prod(shape),), path)
        return flat.reshape(shape, order="F" if by_columns else "C")


def _header(body: IO[bytes], name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = npy.read_magic(body)
        reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = reader(body)
        if any(length < 0 for length in shape):
            raise ValueError(f"a shape of {shape}")
    except Exception as error:  # a header is a Python literal: a hostile one fails in any way it likes
        body.seek(0)
        if looks_pickled(body.read(4096)):
            raise pickled(path, name) from None
        raise fault(path, f"{name} is no NumPy array ({type(error).__name__}); save it again") from None
    if dtype.hasobject:
        raise pickled(path, name)
    return shape, by_columns, dtype


def _source(arrays: dict[str, Array], data: Data, name: str) -> Source:
    for wanted in ("x", "y"):
        if wanted not in arrays:
            raise InputError(f"{name}: no array named {wanted}; save it with numpy.savez(path, x=..., y=...)")
    x, y, user = arrays["x"], arrays["y"], _who(arrays, name)
    if "off" in arrays:
        x, recording = windows(x, arrays["off"], data.window, name)
        y = _of(y, recording, arrays["off"], name)
        user = None if user is None else _of(user, recording, arrays["off"], name)
    elif data.window:
        raise InputError(f"{name}: data.window = {data.window}, but no 'off' says where recordings begin; leave it out")
    classes = arrays.get("classes")
    names = tuple(map(str, classes.tolist())) if classes is not None and classes.ndim == 1 else ()
    return from_arrays(
        _shaped(x, data, name),
        y,
        user,
        _shaped(arrays["x_test"], data, name) if "x_test" in arrays else None,
        arrays.get("y_test"),
        names=names,
        size=data.size,
        scale=data.scale,
        name=name,
    )


def _who(arrays: dict[str, Array], name: str) -> Array | None:
    """Whose each row is, by name where names are given."""
    key = next((key for key in USERS if key in arrays), None)
    if key is None or f"{key}s" not in arrays:
        return None if key is None else arrays[key]
    column, names = arrays[key], arrays[f"{key}s"]
    places = np.issubdtype(column.dtype, np.integer) and names.ndim == 1
    if not places or (column.size and not 0 <= column.min() <= column.max() < len(names)):
        raise InputError(f"{name}: {key} must hold places in the list {key}s, whole numbers from 0 to {len(names) - 1}")
    return names[column]


def _of(column: Array, recording: Array, off: Array, name: str) -> Array:
    """A column of recordings as one of windows."""
    if column.shape != (len(off) - 1,):
        raise InputError(f"{name}: a column of shape {column.shape}; off names {len(off) - 1} recordings")
    return column[recording]


def _shaped(x: Array, data: Data, name: str) -> Array:
    if not data.shape:
        return x
    if x.ndim == 0 or math.prod(x.shape[1:]) != math.prod(data.shape):
        raise InputError(f"{name}: samples of shape {x.shape[1:]} cannot take data.shape = {list(data.shape)}")
    return x.reshape(len(x), *data.shape)
