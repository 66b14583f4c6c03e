"""Files that are made of runs for elsewhere: tables and plots."""

from __future__ import annotations

from pathlib import Path

from potluck.ledger import FolderError, LedgerError, write_atomically


class UnknownChoice(LedgerError):
    """A column or a format that there is not."""

    exit_code = 2


def write_file(path: Path, data: bytes) -> Path:
    """Writes a file whole or not at all, and the folder that it is in; returns its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        words = f"{path.parent}: cannot make the folder: {fault.strerror or fault}. Choose another path."
        raise FolderError(words) from fault
    write_atomically(path, data)
    return path
