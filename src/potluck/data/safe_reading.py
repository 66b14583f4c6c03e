"""Checks before and while a file is read, so that a wrong or hostile file ends in one clear error.

Nothing is ever unpickled or unpacked to disk, and no array is larger than the bytes that the file holds.
"""

from __future__ import annotations

import pickletools
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from potluck.core import InputError, SettingsError
from potluck.data.source import Array

PIECE = 1 << 20
"""Bytes read at a time."""

ROOM = 64 << 20
"""A compressed file may always expand to this many bytes ..."""

RATIO = 200
"""... and beyond that to this many times its own size; a decompression bomb comes near deflate's limit of 1000."""

PADDED = 1 << 30
"""Padded rows may always take this many bytes, and beyond that RATIO times the size of the file."""

_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z", ".rar")
_CALLS = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "REDUCE", "BUILD", "STOP"}


def existing_path(path: str, name: str) -> Path:
    """The path as a `Path`; an error unless it is a folder or a plain file that is not an archive."""
    if not path:
        raise InputError(f"data.name = '{name}' reads files: set data.path to their folder or file")
    there = Path(path)
    if not there.exists():
        raise InputError(f"{path}: no such file or folder; check data.path")
    if not there.is_dir() and not there.is_file():
        raise InputError(f"{path}: neither a folder nor a plain file; check data.path")
    if there.is_file():
        refuse_archive(there)
    return there


def refuse_archive(path: Path) -> None:
    """Raises an error for a tar, zip or other archive: the user should see what is in it when unpacking."""
    if path.name.lower().endswith(_ARCHIVES) or _head(path, 265)[257:262] == b"ustar":
        raise InputError(f"{path}: archives are not unpacked here; unpack it and set data.path to the folder")


def first_file(folder: Path, *names: str) -> Path:
    """The first of these files that exists in the folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    archives = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(_ARCHIVES))
    hint = f"it holds the archive {archives[0]}: unpack it first" if archives else "check data.path"
    raise InputError(f"{folder}: no file {' or '.join(names)}; {hint}")


def file_error(path: Path, what: str) -> InputError:
    """The error to raise about a file: this one, or that the file is a pickle if it looks like one."""
    return pickle_error(path) if looks_like_pickle(_head(path, 4096)) else InputError(f"{path}: {what}")


def pickle_error(path: Path, where: str = "the file") -> InputError:
    """The error for a file that holds a pickle."""
    return InputError(
        f"{path}: refused: pickle ({where} holds Python objects, which can run code); save plain arrays instead"
    )


def looks_like_pickle(head: bytes) -> bool:
    """Whether these first bytes of a file belong to a pickle. Opcodes are read; none is executed."""
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return len(head) > 1
    try:
        # A single full stop is a complete pickle and also the start of many texts: require more than one opcode.
        return any(code.name in _CALLS and at for code, _, at in pickletools.genops(BytesIO(head)))
    except Exception:  # not a valid pickle, for whatever reason
        return False


def npy_header(body: IO[bytes], name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """The header of a .npy array: its shape, whether it lies column by column (Fortran order), and its type."""
    try:
        version = npy.read_magic(body)
        reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = reader(body)
        if any(length < 0 for length in shape):
            raise ValueError(f"a shape of {shape}")
    except Exception as error:  # a header is a Python literal: a hostile one can raise anything
        body.seek(0)
        if looks_like_pickle(body.read(4096)):
            raise pickle_error(path, name) from None
        raise file_error(path, f"{name} is not a NumPy array ({type(error).__name__}); save it again") from None
    if dtype.hasobject:
        raise pickle_error(path, name)
    return shape, by_columns, dtype


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def check_expansion(path: Path, size: int) -> None:
    """Raises an error if a compressed file claims to expand to more than a real one would."""
    stored = path.stat().st_size
    if size > max(ROOM, RATIO * stored):
        claim = f"claims {size:,} bytes from {stored:,} compressed"
        raise file_error(path, f"{claim}, as a decompression bomb does; store it uncompressed if it is real")


def check_padding(path: Path, rows: int, length: int) -> None:
    """Raises an error if inputs and labels of this length would be mostly padding and fill the memory."""
    size = 2 * 8 * length * rows
    if size > max(PADDED, RATIO * path.stat().st_size):
        raise SettingsError(f"data.length = {length} pads {path} to {size:,} bytes; lower it")


def read_array(file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...], path: Path) -> Array:
    """An array of this shape from the next bytes; an error if there are fewer, or if any bytes follow."""
    array = np.empty(shape, dtype)
    room = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    done = 0
    while done < len(room):
        piece = file.read(min(PIECE, len(room) - done))
        if not piece:
            raise file_error(path, f"ends after {done:,} of {len(room):,} bytes; it is truncated: download it again")
        room[done : done + len(piece)] = piece
        done += len(piece)
    if file.read(1):
        raise file_error(path, f"goes on after the {len(room):,} bytes that its header names; download it again")
    return array
