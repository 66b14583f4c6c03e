"""What can go wrong with a run folder: one line each, with the remedy and an exit code."""

from __future__ import annotations

import errno
from pathlib import Path


class LedgerError(Exception):
    """Something about a run folder that a person can mend."""

    exit_code = 1


class MissingRun(LedgerError):
    """A folder that is not a run."""

    exit_code = 3


class DamagedRecord(LedgerError):
    """A manifest or journal that is no longer what was written."""

    exit_code = 3


class CheckpointError(LedgerError):
    """Checkpoints or memories exist, and none that is needed can be trusted."""

    exit_code = 4


class FolderError(LedgerError):
    """The folder cannot be used: in use, full, read-only, its path too long."""

    exit_code = 6


_PERMIT = "Check who owns it and who may write there, or choose another path."
_REMEDIES = {
    errno.ENOSPC: "Make room on the disk and try again.",
    errno.EDQUOT: "Make room within your quota and try again.",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f) and try again.",
    errno.EACCES: _PERMIT,
    errno.EPERM: _PERMIT,
    errno.EROFS: _PERMIT,
    errno.ENAMETOOLONG: "Choose a shorter path.",
    errno.ENOTDIR: "Choose another path.",
    errno.EEXIST: "Choose another path.",
}


def shown(path: Path | str) -> str:
    """A path as it fits in one line: as typed, or quoted where it holds line breaks and the like."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def refused(path: Path | str, attempt: str, fault: OSError | ValueError) -> FolderError:
    """The error for something that the operating system would not do with this path."""
    if not isinstance(fault, OSError):  # a zero byte, or text that no file name can hold
        return FolderError(f"{shown(path)}: {attempt}: not a possible path. Choose another path.")
    remedy = _REMEDIES.get(fault.errno or 0, "")
    return FolderError(f"{shown(path)}: {attempt}: {fault.strerror or fault}. {remedy}".rstrip())
