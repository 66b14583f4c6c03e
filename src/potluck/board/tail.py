"""Files of one JSON object per line, read as they grow, whatever they hold."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from potluck.ledger.files import NotRegular, open_regular
from potluck.report.json_values import Json

PIECE = 1 << 20
"""Bytes that are read at once. A longer line is skipped."""
MOST = 4
"""Pieces that are read in one go, so that one large file does not keep the others waiting."""
_HEAD = 64


class Tail:
    """The lines of a file from where the last reading ended. Lines that are no JSON objects are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0
        self._head = b""
        self._skipping = False

    def read(self) -> tuple[bool, list[Json]]:
        """New lines, and whether the file is another one than before, or none: then what was read before is void."""
        try:
            descriptor = open_regular(self.path)
        except (OSError, ValueError, NotRegular):
            return self.forget(), []
        try:
            state = os.fstat(descriptor)
            if (state.st_ino, state.st_size) == (self._inode, self._offset):
                return False, []
            head = os.pread(descriptor, _HEAD, 0)
            fresh = bool(self._inode) and (
                state.st_ino != self._inode or state.st_size < self._offset or not head.startswith(self._head)
            )
            if fresh:
                self.forget()
            self._inode, self._head = state.st_ino, head
            return fresh, self._read_lines(descriptor)
        except OSError:
            return False, []
        finally:
            os.close(descriptor)

    def forget(self) -> bool:
        """Begins at the start; returns whether something was read before."""
        known = bool(self._inode)
        self._inode, self._offset, self._head, self._skipping = 0, 0, b"", False
        return known

    def _read_lines(self, descriptor: int) -> list[Json]:
        found: list[Json] = []
        for _ in range(MOST):
            piece = os.pread(descriptor, PIECE, self._offset)
            end = piece.rfind(b"\n") + 1
            if not end:
                if len(piece) == PIECE:
                    self._offset, self._skipping = self._offset + PIECE, True
                    continue
                break
            lines = piece[:end].splitlines()
            found += _objects(lines[1:] if self._skipping else lines)
            self._offset, self._skipping = self._offset + end, False
        return found


def last_objects(path: Path, most: int = 1 << 17) -> list[Json]:
    """The objects in the last bytes of a file; its first line there may be cut, and is left out."""
    try:
        descriptor = open_regular(path)
    except (OSError, ValueError, NotRegular):
        return []
    try:
        start = max(0, os.fstat(descriptor).st_size - most)
        piece = os.pread(descriptor, most, start)
    except OSError:
        return []
    finally:
        os.close(descriptor)
    lines = piece[: piece.rfind(b"\n") + 1].splitlines()
    return _objects(lines[1:] if start else lines)


def read_object(path: Path, most: int = PIECE) -> Json | None:
    """The JSON object in a whole file; None if it holds none, cannot be read, or is too large."""
    try:
        descriptor = open_regular(path)
    except (OSError, ValueError, NotRegular):
        return None
    try:
        raw = os.pread(descriptor, most, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    found = _objects([raw])
    return found[0] if found else None


def _objects(lines: list[bytes]) -> list[Json]:
    found = []
    for line in lines:
        if line.startswith(b"{"):
            with suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    return found
