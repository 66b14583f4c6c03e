"""The files of a kit: small, read with a limit, and written so that a private key is never open to others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from potluck.core import InputError
from potluck.ledger.errors import os_error, printable
from potluck.ledger.files import discard, open_new, sync_folder, temporary_path, write_all

try:
    import fcntl
except ImportError:  # a platform without such locks
    fcntl = None  # type: ignore[assignment]

LIMIT = 1 << 24
"""The most bytes of a file: a list of more than 50,000 nodes."""
PRIVATE = (0o600, 0o400)
"""The modes that a private key may have."""


def read_file(path: Path) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file, and its status. Links are followed: secrets of containers are links."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{printable(path)}: this is no regular file.")
            raw = file.read(LIMIT + 1)
    except FileNotFoundError:
        raise InputError(f"{printable(path)}: there is no such file.") from None
    except IsADirectoryError:
        raise InputError(f"{printable(path)}: this is a folder, not a file.") from None
    except OSError as fault:
        raise InputError(f"{printable(path)}: cannot be read: {fault.strerror}.") from None
    if len(raw) > LIMIT:
        raise InputError(f"{printable(path)}: this file has more than {LIMIT} bytes.")
    return raw, status


def read_key(path: Path) -> bytes:
    """The bytes of a private key; refuses one that others may read."""
    raw, status = read_file(path)
    if os.name != "nt" and (mode := stat.S_IMODE(status.st_mode)) not in PRIVATE:
        raise InputError(
            f"{printable(path)}: others may use this private key (its mode is {mode:04o}). Run: chmod 600 {path}"
        )
    return raw


def write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes a file that must not exist yet, on the disk when this returns."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        try:
            write_all(descriptor, (data,))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as fault:
        raise os_error(path, f"cannot write {len(data)} bytes", fault) from fault


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file, all or nothing; mode and owner stay, so that a server under another user can still read it."""
    part = temporary_path(path.parent)
    try:
        before = os.stat(path)
        descriptor = open_new(part)
        try:
            if hasattr(os, "fchown"):
                with suppress(PermissionError):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            write_all(descriptor, (data,))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException as fault:
        discard(part)
        if isinstance(fault, OSError):
            raise os_error(path, f"cannot write {len(data)} bytes", fault) from fault
        raise


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lets one process at a time change a folder; others wait. Without effect where folders cannot be locked."""
    if fcntl is None:
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as fault:
        raise os_error(folder, "cannot open the folder", fault) from fault
    try:
        with suppress(OSError):  # some network file systems
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
