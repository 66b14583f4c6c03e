"""Files that are written completely or not at all, and files with a checksum.

A file with a checksum has one line of JSON, the header, and then the payload. The header gives the length and the
sha256 of the payload, and facts such as the round. A reader checks all of them before it uses a byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from potluck.ledger.errors import os_error

# A temporary name is not made from the final name, which may already have all the 255 bytes allowed.
_PREFIX, _SUFFIX = ".potluck-", ".part"
_SCHEMA = 1
_LONGEST_HEADER = 1 << 20
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}


def write_atomically(path: Path, *chunks: bytes) -> None:
    """Writes these bytes to `path`, all or none; when this returns they survive a kill and a power cut."""
    write_together([(path, chunks)], path.parent)
    with _name_file_in_errors(path, chunks):
        sync_folder(path.parent)


def write_together(files: Sequence[tuple[Path, Sequence[bytes]]], aside: Path) -> None:
    """Writes several files, each completely or not at all; temporary files are in the folder `aside`.

    All are written before the first fsync, so that the disk can flush many at once. Each is complete and on the disk
    before it gets its name. The caller must call `sync_folder` to make the names survive a power cut.
    """
    parts = [temporary_path(aside) for _ in files]
    try:
        _write_parts(files, parts)
        for (path, chunks), part in zip(files, parts, strict=True):
            with _name_file_in_errors(path, chunks):
                os.replace(part, path)
    except BaseException:
        for part in parts:
            discard(part)
        raise


def _write_parts(files: Sequence[tuple[Path, Sequence[bytes]]], parts: Sequence[Path]) -> None:
    descriptors: list[int] = []
    try:
        for (path, chunks), part in zip(files, parts, strict=True):
            with _name_file_in_errors(path, chunks):
                descriptors.append(open_new(part))
                write_all(descriptors[-1], chunks)
        for (path, chunks), descriptor in zip(files, descriptors, strict=True):
            with _name_file_in_errors(path, chunks):
                os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _name_file_in_errors(path: Path, chunks: Sequence[bytes]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as fault:
        raise os_error(path, f"cannot write {sum(map(len, chunks))} bytes", fault) from fault


def remove_partial_files(folder: Path) -> int:
    """Removes temporary files that killed writers left in this folder; returns their number."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    except OSError as fault:
        raise os_error(folder, "cannot list the folder", fault) from fault
    left = [folder / name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    for path in left:
        remove(path)
    return len(left)


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, and syncs them to the disk."""
    try:
        _make_with_parents(path)
    except (OSError, ValueError) as fault:
        raise os_error(path, "cannot make the folder", fault) from fault


def _make_with_parents(path: Path) -> None:
    if path.is_dir():
        return
    if path.parent != path:
        _make_with_parents(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Removes a file; it is no error if there is none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as fault:
        raise os_error(path, "cannot remove the file", fault) from fault


def temporary_path(folder: Path) -> Path:
    """A new temporary path in this folder; `remove_partial_files` knows such names."""
    return folder / f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"


def open_new(path: Path) -> int:
    """Creates a file that must not exist yet; returns its descriptor for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def write_all(descriptor: int, chunks: Sequence[bytes]) -> None:
    """Writes every byte; the operating system may take fewer at a time than it is given."""
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def discard(path: Path) -> None:
    """Removes a file after an error; a second error must not hide the first."""
    with suppress(OSError, ValueError):
        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut, if the file system supports it."""
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


class InvalidFile(Exception):
    """A file with a checksum that must not be used; the text says why."""


class ForeignFile(InvalidFile):
    """A file that may be fine but belongs to another run or a newer Potluck: do not use it, do not remove it."""


def pack_with_checksum(payload: bytes, **facts: str | int) -> tuple[bytes, bytes]:
    """The two pieces of a file with a checksum: the header, with these facts, and the payload."""
    header = {"schema": _SCHEMA, **facts, "bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    return json.dumps(header, separators=(",", ":")).encode() + b"\n", payload


def read_with_checksum(path: Path, **facts: str | int) -> bytes:
    """Reads the payload of a file; raises `InvalidFile` if it is damaged or its header gives other facts."""
    try:
        with open(path, "rb") as file:
            header = _read_header(file)
            for name, value in facts.items():
                _check_fact(name, header.get(name), value)
            return _read_payload(file, header)
    except OSError as fault:
        raise InvalidFile(f"it cannot be read ({fault.strerror})") from fault


def read_header(path: Path) -> Mapping[str, Any]:
    """Reads the header of a file; the payload is not checked."""
    try:
        with open(path, "rb") as file:
            return _read_header(file)
    except OSError as fault:
        raise InvalidFile(f"it cannot be read ({fault.strerror})") from fault


def _read_header(file: BinaryIO) -> Mapping[str, Any]:
    line = file.readline(_LONGEST_HEADER)
    if not line:
        raise InvalidFile("it is empty")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not line.endswith(b"\n") or not isinstance(header, dict) or type(header.get("schema")) is not int:
        raise InvalidFile("its header is damaged")
    if header["schema"] > _SCHEMA:
        raise ForeignFile(f"a newer Potluck wrote it (schema {header['schema']}; this one reads {_SCHEMA})")
    if header["schema"] != _SCHEMA:
        raise InvalidFile("its header is damaged")
    return header


def _check_fact(name: str, found: object, wanted: str | int) -> None:
    if type(found) is not type(wanted):
        raise InvalidFile("its header is damaged")
    if found == wanted:
        return
    if name == "mark":
        raise ForeignFile(f"it belongs to another model or other settings (mark {found!a}, this run's is {wanted!a})")
    raise InvalidFile(f"it says {name} {found!a} where {wanted!a} should be")


def _read_payload(file: BinaryIO, header: Mapping[str, Any]) -> bytes:
    # Check the length before reading, so that a header that promises terabytes costs nothing.
    length = os.fstat(file.fileno()).st_size - file.tell()
    if length != header.get("bytes"):
        raise InvalidFile(f"it holds {length} bytes where {header.get('bytes')!a} should be")
    payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header.get("sha256"):
        raise InvalidFile("its checksum does not match")
    return payload
