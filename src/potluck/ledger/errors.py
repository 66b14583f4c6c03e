"""Errors about a run folder: each is one line that says what to do, and has an exit code."""

from __future__ import annotations

import errno
from pathlib import Path


class LedgerError(Exception):
    """An error about a run folder that the user can correct."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: one line."""
        return [f"{type(self).__name__}: {self}"]


class MissingRun(LedgerError):
    """A folder that is not a run."""

    exit_code = 3


class UnreadableSettings(LedgerError):
    """The settings of a run are not the UTF-8 text that was written."""

    exit_code = 2


class DamagedRecord(LedgerError):
    """A manifest, journal or lock that something else has changed."""

    exit_code = 4


class CheckpointError(LedgerError):
    """Checkpoints or memories that are needed are missing, or none is valid."""

    exit_code = 4


class FolderError(LedgerError):
    """The folder cannot be used: in use, full, read-only, its path too long."""

    exit_code = 6


_CHECK_PERMISSION = "Check who owns it and who may write there, or choose another path."
_REMEDIES = {
    errno.ENOSPC: "Make room on the disk and try again.",
    errno.EDQUOT: "Make room within your quota and try again.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) and try again.",
    errno.EACCES: _CHECK_PERMISSION,
    errno.EPERM: _CHECK_PERMISSION,
    errno.EROFS: _CHECK_PERMISSION,
    errno.ENAMETOOLONG: "Choose a shorter path.",
    errno.ENOTDIR: "Choose another path.",
    errno.EEXIST: "Choose another path.",
}


def printable(path: Path | str) -> str:
    """A path that fits in one line: as typed, or escaped if it holds line breaks and the like."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def os_error(path: Path | str, attempt: str, fault: OSError | ValueError) -> FolderError:
    """The error to raise if the operating system fails to do something with this path."""
    if not isinstance(fault, OSError):  # a zero byte, or text that no file name can hold
        return FolderError(f"{printable(path)}: {attempt}: not a possible path. Choose another path.")
    remedy = _REMEDIES.get(fault.errno or 0, "")
    return FolderError(f"{printable(path)}: {attempt}: {fault.strerror or fault}. {remedy}".rstrip())
