"""Journals: one JSON object a line, only ever added to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from potluck.ledger.errors import DamagedRecord, refused, shown
from potluck.ledger.files import sync_folder, write_all, write_atomically

_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Journal:
    """Events in the order in which they happened, gathered in memory until `flush`.

    Give every event its round: `cut` drops what a resumed run will do again, and knows it by the round. So the
    journal of a run that was stopped and resumed equals that of one that never stopped. Numbers that are not finite
    are written as NaN and Infinity, as Python's json reads them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._whole = False  # whether the file is known to end with a complete line

    def add(self, **event: Any) -> None:
        """Note an event."""
        self.append(event)

    def append(self, event: Mapping[str, Any]) -> None:
        """Note an event, given as a mapping."""
        # Escaped to ASCII: odd characters in a client's name can neither break a line nor fail to encode.
        self._waiting.append(_ENCODER.encode(dict(event)).encode() + b"\n")

    def flush(self, sync: bool = False) -> None:
        """Add the waiting events to the file, all or none; with `sync` they also survive a power cut.

        If there is no room they stay waiting, and the file is as it was.
        """
        lines = b"".join(self._waiting)
        try:
            if lines or (sync and self.path.exists()):
                self._add_to_file(lines, sync)
        except OSError as fault:
            raise refused(self.path, f"cannot add {len(lines)} bytes", fault) from fault
        self._waiting.clear()

    def cut(self, after: int) -> None:
        """Drop what happened after this round, and a last line that was torn by a kill.

        Events without a round stay if they precede everything dropped. Waiting events are forgotten.
        """
        self._waiting.clear()
        try:
            with open(self.path, "rb") as file:
                kept = list(_kept(self.path, file, after))
                shorter = sum(map(len, kept)) < os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return
        except OSError as fault:
            raise refused(self.path, "cannot read the file", fault) from fault
        if shorter:
            write_atomically(self.path, *kept)
        self._whole = True

    def _add_to_file(self, lines: bytes, sync: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        fresh = not self.path.exists()
        descriptor = os.open(self.path, flags, 0o666)
        try:
            if sync and fresh:
                sync_folder(self.path.parent)
            if not self._whole:
                _mend(descriptor)
            self._whole = False
            _append(descriptor, lines, sync)
            self._whole = True
        finally:
            os.close(descriptor)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal, which may be growing: a last line without its end is not there yet."""
    try:
        file = open(path, "rb")  # noqa: SIM115 — closed below, once the generator is done
    except FileNotFoundError:
        return
    except OSError as fault:
        raise refused(path, "cannot read the file", fault) from fault
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            event = _event(line)
            if event is None:
                raise _broken(path, number)
            yield event


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _kept(path: Path, lines: Iterable[bytes], after: int) -> Iterator[bytes]:
    """The lines up to this round. Only among the dropped may one be broken: a power cut tears what was not synced."""
    broken, dropped = 0, False
    for number, line in enumerate(lines, 1):
        event = _event(line) if line.endswith(b"\n") else None
        round = None if event is None else event.get("round")
        if event is None:
            broken, dropped = broken or number, True
        elif not isinstance(round, int):
            if not dropped:
                yield line
        elif round > after:
            dropped = True
        elif broken:
            raise _broken(path, broken)
        else:
            yield line


def _broken(path: Path, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{shown(path)}: line {number} is not a JSON object; something else has changed the file. "
        "Restore it from a backup, or remove that line."
    )


def _mend(descriptor: int) -> None:
    """Drop a torn last line, which would otherwise swallow the next event."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    at = end
    while at:
        start = max(0, at - 65536)
        os.lseek(descriptor, start, os.SEEK_SET)
        newline = os.read(descriptor, at - start).rfind(b"\n")
        if newline >= 0:
            at = start + newline + 1
            break
        at = start
    if at < end:
        os.ftruncate(descriptor, at)


def _append(descriptor: int, lines: bytes, sync: bool) -> None:
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, [lines])
        if sync:
            os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)
        raise
