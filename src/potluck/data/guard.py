"""Standing between a file and its reader: what is not the promised format is refused before it is read.

Nothing is ever unpickled or unpacked to disk, and no more memory is asked for than the file can honestly fill.
"""

from __future__ import annotations

import pickletools
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from potluck.core import InputError, SettingsError
from potluck.data.source import Array

PIECE = 1 << 20
"""Bytes read at a time."""

ROOM = 64 << 20
"""Compressed files may always unfold to this many bytes ..."""

RATIO = 200
"""... and beyond that to this many times their own size; a bomb comes near deflate's limit of about 1000."""

PADDED = 1 << 30
"""Padded rows may take a gigabyte, and beyond that so many times the file's size."""

_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z", ".rar")
_CALLS = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "REDUCE", "BUILD", "STOP"}


def found(path: str, name: str) -> Path:
    """The path as a `Path`, if it leads to a folder or a plain file that is no archive."""
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
    """An error for a tar, zip or the like: what is in it should be looked at by who unpacks it."""
    if path.name.lower().endswith(_ARCHIVES) or _head(path, 265)[257:262] == b"ustar":
        raise InputError(f"{path}: archives are not unpacked here; unpack it and set data.path to the folder")


def plain(folder: Path, *names: str) -> Path:
    """The first of these files that the folder has."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    packed = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(_ARCHIVES))
    hint = f"it holds the archive {packed[0]}: unpack it first" if packed else "check data.path"
    raise InputError(f"{folder}: no file {' or '.join(names)}; {hint}")


def fault(path: Path, what: str) -> InputError:
    """What to raise about a file: this, or that it is a pickle if it looks like one."""
    return pickled(path) if looks_pickled(_head(path, 4096)) else InputError(f"{path}: {what}")


def pickled(path: Path, where: str = "the file") -> InputError:
    return InputError(
        f"{path}: refused: pickle ({where} holds Python objects, which can run code); save plain arrays instead"
    )


def looks_pickled(head: bytes) -> bool:
    """Whether these first bytes of a file are a pickle's. Opcodes are read, none is carried out."""
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return len(head) > 1
    try:
        # A lone full stop is a whole pickle too, and the start of many a text: it takes more than one opcode.
        return any(code.name in _CALLS and at for code, _, at in pickletools.genops(BytesIO(head)))
    except Exception:  # whatever is wrong with it as a pickle, it is not one
        return False


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def unfolds(path: Path, size: int) -> None:
    """An error if a compressed file claims to unfold to more than a real one would."""
    stored = path.stat().st_size
    if size > max(ROOM, RATIO * stored):
        claim = f"claims {size:,} bytes from {stored:,} compressed"
        raise fault(path, f"{claim}, as a decompression bomb does; store it uncompressed if it is real")


def pads(path: Path, rows: int, length: int) -> None:
    """An error if rows of this length, inputs and labels, would be mostly padding and fill the memory."""
    size = 2 * 8 * length * rows
    if size > max(PADDED, RATIO * path.stat().st_size):
        raise SettingsError(f"data.length = {length} pads {path} to {size:,} bytes; lower it")


def fill(file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...], path: Path) -> Array:
    """An array of this shape from the bytes that come next; an error if there are fewer, or any after them."""
    array = np.empty(shape, dtype)
    room = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    done = 0
    while done < len(room):
        piece = file.read(min(PIECE, len(room) - done))
        if not piece:
            raise fault(path, f"ends after {done:,} of {len(room):,} bytes; it is truncated: get it again")
        room[done : done + len(piece)] = piece
        done += len(piece)
    if file.read(1):
        raise fault(path, f"goes on after the {len(room):,} bytes that its header names; get it again")
    return array
