"""Files that are either as they were or as they should be, whatever happens in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from potluck.ledger.errors import refused

# The name of a file still being written does not grow with its target's, which may have all of the 255 bytes allowed.
_PREFIX, _SUFFIX = ".potluck-", ".part"
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}


def write_atomically(path: Path, *chunks: bytes) -> None:
    """Put these bytes at `path`, all or none; when this returns they survive a kill and a power cut."""
    write_together([(path, chunks)], path.parent)
    with _writing(path, chunks):
        sync_folder(path.parent)


def write_together(files: Sequence[tuple[Path, Sequence[bytes]]], aside: Path) -> None:
    """Put each of a few files at its path, all of it or none, by way of the folder `aside`.

    All are written before any is synced, so that the disk can flush many at once. Each is whole and on the disk
    before it gets its name; that the name survives a power cut as well is left to the caller's `sync_folder`.
    """
    parts = [beside(aside) for _ in files]
    try:
        _write_parts(files, parts)
        for (path, chunks), part in zip(files, parts, strict=True):
            with _writing(path, chunks):
                os.replace(part, path)
    except BaseException:
        for part in parts:
            discard(part)
        raise


def _write_parts(files: Sequence[tuple[Path, Sequence[bytes]]], parts: Sequence[Path]) -> None:
    descriptors: list[int] = []
    try:
        for (path, chunks), part in zip(files, parts, strict=True):
            with _writing(path, chunks):
                descriptors.append(open_new(part))
                write_all(descriptors[-1], chunks)
        for (path, chunks), descriptor in zip(files, descriptors, strict=True):
            with _writing(path, chunks):
                os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _writing(path: Path, chunks: Sequence[bytes]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as fault:
        raise refused(path, f"cannot write {sum(map(len, chunks))} bytes", fault) from fault


def sweep(folder: Path) -> int:
    """Remove what writers that were killed have left in this folder; how many files that was."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    except OSError as fault:
        raise refused(folder, "cannot list the folder", fault) from fault
    left = [folder / name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    for path in left:
        remove(path)
    return len(left)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and make sure that they stay."""
    try:
        _make(path)
    except (OSError, ValueError) as fault:
        raise refused(path, "cannot make the folder", fault) from fault


def _make(path: Path) -> None:
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file; one that is gone already is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise refused(path, "cannot remove the file", fault) from fault


def beside(folder: Path) -> Path:
    """A fresh name in this folder for a file still being written; `sweep` knows such names."""
    return folder / f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"


def open_new(path: Path) -> int:
    """A descriptor for writing a file that did not exist."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def write_all(descriptor: int, chunks: Sequence[bytes]) -> None:
    """Write every byte; the operating system may take fewer at a time than it is given."""
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def discard(path: Path) -> None:
    """Remove a file on the way out of an error, which must not be hidden by a second one."""
    with suppress(OSError, ValueError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the file system has a way to."""
    if os.name == "nt":  # folders cannot be opened there
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as fault:
        if fault.errno not in _NO_FOLDER_SYNC:
            raise
