"""Files that are written completely or not at all, and files with a checksum.

A file with a checksum has one line of JSON, the header, and then the payload. The header gives facts such as the round,
the length of the payload, and the sha256 of facts and payload. A reader checks all of them before it uses a byte.

No file in a run folder is opened through a symbolic link, and none that is not a regular file: whoever hands over a
run folder must not choose what else is read or written, and a pipe must not make a reader wait.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from potluck.ledger.errors import DamagedRecord, os_error, printable

# A temporary name is not made from the final name, which may already have all the 255 bytes allowed.
_PREFIX, _SUFFIX = ".potluck-", ".part"
_SCHEMA = 2
_LONGEST_HEADER = 1 << 20
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}
# O_NONBLOCK: to open a pipe must not wait for its other end. It changes nothing for regular files.
_PLAIN_OPEN = sum({getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY", "O_CLOEXEC")})


class NotRegular(Exception):
    """A symbolic link, pipe, device or folder where a file should be; the text says which."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a regular file, and nothing else, without following a symbolic link; returns its descriptor."""
    try:
        descriptor = os.open(path, flags | _PLAIN_OPEN, 0o666)
    except OSError:
        with suppress(OSError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise NotRegular(f"it is {_kind(os.lstat(path).st_mode)}, not a file") from None
        raise
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(f"it is {_kind(mode)}, not a file")
    return descriptor


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file of a run folder."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read()
    except NotRegular as fault:
        raise not_regular(path, fault) from None
    except OSError as fault:
        raise os_error(path, "cannot read the file", fault) from fault


def not_regular(path: Path, fault: NotRegular) -> DamagedRecord:
    """The error to raise if a file of a run folder is none."""
    return DamagedRecord(f"{printable(path)}: {fault}. Remove it, or restore the file from a backup.")


def write_atomically(path: Path, *chunks: bytes) -> None:
    """Writes these bytes to `path`, all or none; when this returns they survive a kill and a power cut."""
    write_stream(path, chunks, sum(map(len, chunks)))


def write_stream(path: Path, chunks: Iterable[bytes], size: int) -> None:
    """Writes chunks that are made one after another, `size` bytes together; all or none, as `write_atomically`."""
    part = temporary_path(path.parent)
    try:
        with _name_file_in_errors(path, size):
            descriptor = open_new(part)
            try:
                write_all(descriptor, chunks)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(part, path)
    except BaseException:
        discard(part)
        raise
    with _name_file_in_errors(path, size):
        sync_folder(path.parent)


@contextmanager
def _name_file_in_errors(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as fault:
        raise os_error(path, f"cannot write {size} bytes", fault) from fault


def remove_partial_files(folder: Path) -> int:
    """Removes temporary files that killed writers left in this folder; returns their number."""
    names = list_subfolder(folder)
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


def make_subfolder(path: Path) -> None:
    """Makes a folder within a run folder, but not the run folder itself: one that was removed stays removed."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as fault:
        raise os_error(path, "cannot make the folder", fault) from fault
    try:
        os.mkdir(path)
        sync_folder(path.parent)
    except OSError as fault:
        raise os_error(path, "cannot make the folder", fault) from fault


def list_subfolder(path: Path) -> list[str]:
    """The names in a folder within a run folder; none if there is no such folder. A link to a folder is refused."""
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            kind = "a file" if stat.S_ISREG(mode) else _kind(mode)
            raise DamagedRecord(f"{printable(path)}: it is {kind}, not a folder. Restore the folder from a backup.")
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise os_error(path, "cannot list the folder", fault) from fault


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


def write_all(descriptor: int, chunks: Iterable[bytes]) -> None:
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
    """A file that may be fine but belongs to another run or another Potluck: do not use it, do not remove it."""


def pack_with_checksum(payload: bytes, **facts: Any) -> tuple[bytes, bytes]:
    """The two pieces of a file with a checksum: the header, with these facts, and the payload."""
    header = {"schema": _SCHEMA, **facts, "bytes": len(payload)}
    header["sha256"] = _checksum(header, payload)
    return _line(header), payload


def read_with_checksum(path: Path, **facts: str | int) -> tuple[Mapping[str, Any], bytes]:
    """Reads header and payload of a file; raises `InvalidFile` if it is damaged or its header gives other facts."""
    with open_checked(path) as file:
        header = read_header(file, **facts)
        return header, read_payload(file, header, os.fstat(file.fileno()).st_size - file.tell())


@contextmanager
def open_checked(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to read what has a checksum; raises `InvalidFile` if that fails, also while it is read."""
    try:
        with open(open_regular(path), "rb") as file:
            yield file
    except NotRegular as fault:
        raise InvalidFile(str(fault)) from None
    except OSError as fault:
        raise InvalidFile(f"it cannot be read ({fault.strerror})") from fault


def read_header(file: BinaryIO, **facts: str | int) -> Mapping[str, Any]:
    """Reads a header, which must give these facts; they are certain once `read_payload` has checked the checksum."""
    header = _parse_header(file.readline(_LONGEST_HEADER))
    for name, value in facts.items():
        _check_fact(name, header.get(name), value)
    return header


def read_payload(file: BinaryIO, header: Mapping[str, Any], length: int) -> bytes:
    """Reads the payload after a header; it must have this length."""
    # Check the length before reading, so that a header that promises terabytes costs nothing.
    if type(header.get("bytes")) is not int or header["bytes"] != length:
        raise InvalidFile(f"it holds {length} bytes where {header.get('bytes')!a} should be")
    payload, facts = file.read(length), {name: value for name, value in header.items() if name != "sha256"}
    try:
        matches = _checksum(facts, payload) == header.get("sha256")
    except RecursionError:
        raise InvalidFile("its header is damaged") from None
    if not matches:
        raise InvalidFile("its checksum does not match")
    return payload


def _line(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode() + b"\n"


def _checksum(header: Mapping[str, Any], payload: bytes) -> str:
    """Over the header without its checksum, and the payload."""
    total = hashlib.sha256(_line(header))
    total.update(payload)
    return total.hexdigest()


def _parse_header(line: bytes) -> Mapping[str, Any]:
    if not line:
        raise InvalidFile("it is empty")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not line.endswith(b"\n") or not isinstance(header, dict) or type(header.get("schema")) is not int:
        raise InvalidFile("its header is damaged")
    if header["schema"] != _SCHEMA:
        age = "a newer" if header["schema"] > _SCHEMA else "an older"
        raise ForeignFile(f"{age} Potluck wrote it (schema {header['schema']}; this one reads {_SCHEMA})")
    return header


def _check_fact(name: str, found: object, wanted: str | int) -> None:
    if type(found) is not type(wanted):
        raise InvalidFile("its header is damaged")
    if found == wanted:
        return
    if name == "mark":
        raise ForeignFile(f"it belongs to another model or other settings (mark {found!a}, this run's is {wanted!a})")
    raise InvalidFile(f"it says {name} {found!a} where {wanted!a} should be")
