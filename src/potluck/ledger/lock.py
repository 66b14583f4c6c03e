"""One run at a time in a folder."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck.ledger.errors import FolderError, refused, shown

try:
    import fcntl
except ImportError:  # a platform without such locks
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """The right to use a folder, held until `release` or the end of the process, however that comes about.

    The kernel knows who holds the lock; the file only says so to people (process and host), and stays behind empty.
    Without help from the kernel the file itself is the lock, and one left by a dead process of this host is removed:
    weaker, for two processes may find the same dead one at the same moment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unlink = False
        self._descriptor: int | None = None
        try:
            self._descriptor = self._by_kernel() if fcntl is not None else self._by_name()
            _sign(self._descriptor)
        except (OSError, ValueError) as fault:
            self.release()
            raise refused(path, "cannot lock the folder", fault) from fault
        _held.add(self)

    def release(self) -> None:
        """Let others use the folder; doing so twice is fine."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        # Emptied, not removed: who has just opened a removed file could lock it, and nobody else would see that.
        with suppress(OSError):  # a disk that has gone away must not keep the folder locked
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
        if self._unlink:
            self.path.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Drop the descriptor that a forked process was born with; the lock stays with its parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _by_kernel(self) -> int:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            os.close(descriptor)
            if isinstance(fault, BlockingIOError):
                raise _taken(self.path) from None
            if fault.errno in _NO_LOCKS:  # some network file systems
                return self._by_name()
            raise
        return descriptor

    def _by_name(self) -> int:
        if self.path.exists():
            if _alive(self.path):
                raise _taken(self.path, f"; if that one is gone for sure, remove {shown(self.path)}")
            self.path.unlink(missing_ok=True)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            raise _taken(self.path) from None
        self._unlink = True
        return descriptor


_held: set[Lock] = set()


def _forget_in_child() -> None:
    # Otherwise a forked worker that outlives its run would keep the folder locked in the name of a dead process.
    for lock in _held:
        lock.let_go()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "host": _host()}).encode() + b"\n")


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _taken(path: Path, remedy: str = "") -> FolderError:
    owner = _owner(path)
    who = shown(f"process {owner.get('pid')} on host {owner.get('host')}") if owner else "another process"
    return FolderError(f"{shown(path.parent)} is in use by {who}; wait for it or choose another --out{remedy}.")


def _alive(path: Path) -> bool:
    """Whether the process that a lock file names may still be running."""
    owner = _owner(path)
    pid = owner.get("pid")
    if type(pid) is not int or pid <= 0:
        return False
    if owner.get("host") != _host():
        return True  # cannot be known from here
    if pid == os.getpid():  # ours, or that of an earlier process with the same number
        return any(lock.path == path for lock in _held)
    if os.name == "nt":
        return False  # nobody can be asked, but removing the file will fail while its owner holds it open
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
