"""The lock of a run folder: one run at a time."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from potluck.ledger.errors import FolderError, os_error, printable
from potluck.ledger.files import NotRegular, not_regular, open_regular

try:
    import fcntl
except ImportError:  # a platform without such locks
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """An exclusive lock on a folder, held until `release` or until the process ends, however it ends.

    The kernel holds the lock; the file only names the owner (process and host) and stays behind empty. If the file
    system has no locks, the file itself is the lock, and a file left by a dead process of this host is removed. That is
    weaker: two processes may find the same dead owner at the same moment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unlink = False
        self._descriptor: int | None = None
        try:
            self._descriptor = self._lock_by_kernel() if fcntl is not None else self._lock_by_file()
            _write_owner(self._descriptor)
        except NotRegular as fault:
            raise not_regular(path, fault) from None
        except (OSError, ValueError) as fault:
            self.release()
            raise os_error(path, "cannot lock the folder", fault) from fault
        _held.add(self)

    def check(self) -> None:
        """Raises an error if the folder was removed or replaced since it was locked."""
        with suppress(OSError):
            mine = self._descriptor
            if mine is not None and os.path.samestat(os.fstat(mine), os.lstat(self.path)):
                return
        raise FolderError(
            f"{printable(self.path.parent)} was removed or replaced while the run was going on; the run stops here. "
            "Start it again with another --out."
        )

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        # Emptied, not removed: a process that has just opened a removed file could lock it unseen by others.
        with suppress(OSError):  # a disk that has gone away must not keep the folder locked
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
        if self._unlink:
            self.path.unlink(missing_ok=True)

    def close_inherited(self) -> None:
        """Closes the descriptor that a forked process inherited; the lock stays with the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock_by_kernel(self) -> int:
        descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            os.close(descriptor)
            if isinstance(fault, BlockingIOError):
                raise _in_use(self.path) from None
            if fault.errno in _NO_LOCKS:  # some network file systems
                return self._lock_by_file()
            raise
        return descriptor

    def _lock_by_file(self) -> int:
        if os.path.lexists(self.path):
            os.close(open_regular(self.path))
            if _owner_may_run(self.path):
                raise _in_use(self.path, f"; if that one is gone for sure, remove {printable(self.path)}")
            self.path.unlink(missing_ok=True)
        try:
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise _in_use(self.path) from None
        self._unlink = True
        return descriptor


_held: set[Lock] = set()


def _close_in_child() -> None:
    # Otherwise a forked worker that outlives its run would keep the folder locked.
    for lock in _held:
        lock.close_inherited()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _write_owner(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": _host()}).encode() + b"\n")


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def _owner(path: Path) -> dict[str, Any]:
    try:
        with open(open_regular(path), "rb") as file:
            owner = json.loads(file.read(4096))
    except (OSError, ValueError, RecursionError, NotRegular):
        return {}
    return owner if isinstance(owner, dict) else {}


def process_in(folder: Path) -> int | None:
    """The process of this machine that holds the lock of a folder; None if nobody does, or another machine does."""
    path = folder / "lock"
    owner = _owner(path)
    if owner.get("host") != _host() or type(owner.get("pid")) is not int or not _owner_may_run(path):
        return None
    if fcntl is not None:
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # it was left by a process that died
    return int(owner["pid"])


class Owner(NamedTuple):
    """The process that a lock file names."""

    pid: int
    host: str
    here: bool
    """Whether it is a process of this machine."""


def owner_of(folder: Path) -> Owner | None:
    """The process that holds the lock of a folder; None if nobody does. Of other machines, what the file says counts.

    The lock itself is not touched, as `process_in` does for a moment: who looks every second must not get in the way of
    a run that starts.
    """
    path = folder / "lock"
    owner = _owner(path)
    pid, host = owner.get("pid"), owner.get("host")
    if type(pid) is not int or not isinstance(host, str) or not _owner_may_run(path):
        return None
    here = host == _host()
    return Owner(pid, host, here) if not here or _has_open(pid, path) else None


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has this file open, as far as can be seen: its id may be that of a process that died before."""
    try:
        wanted = os.stat(path)
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return os.path.lexists(path)  # no such list on this platform, or it is another user's process
    for handle in handles:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{handle}"), wanted):
                return True
    return False


def _in_use(path: Path, remedy: str = "") -> FolderError:
    owner = _owner(path)
    who = printable(f"process {owner.get('pid')} on host {owner.get('host')}") if owner else "another process"
    return FolderError(f"{printable(path.parent)} is in use by {who}; wait for it or choose another --out{remedy}.")


def _owner_may_run(path: Path) -> bool:
    """Whether the process that a lock file names may still be running."""
    owner = _owner(path)
    pid = owner.get("pid")
    if type(pid) is not int or pid <= 0:
        return False
    if owner.get("host") != _host():
        return True  # on another host: not known here
    if pid == os.getpid():  # this process, or an earlier one with the same id
        return any(lock.path == path for lock in _held)
    if os.name == "nt":
        return False  # unknown, but removing the file will fail while its owner has it open
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
