"""Journals: files with one JSON object per line, to which lines are only added."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from potluck.ledger.errors import DamagedRecord, os_error, printable
from potluck.ledger.files import sync_folder, write_all, write_atomically

_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Journal:
    """Events in the order in which they happened, kept in memory until `flush`.

    Give every event its round: by the round, `drop_after` finds what a resumed run will do again. So the journal of a
    run that was stopped and resumed equals that of a run that never stopped. Numbers that are not finite are written as
    NaN and Infinity, which Python's json can read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._complete = False  # whether the file is known to end with a complete line

    def add(self, **event: Any) -> None:
        """Adds an event, given as keywords."""
        self.append(event)

    def append(self, event: Mapping[str, Any]) -> None:
        """Adds an event, given as a mapping."""
        # Escaped to ASCII: no character in a client's name can break a line or fail to encode.
        self._waiting.append(_ENCODER.encode(dict(event)).encode() + b"\n")

    def flush(self, sync: bool = False) -> None:
        """Writes the waiting events to the file, all or none; with `sync` they also survive a power cut.

        If the disk is full they stay in memory, and the file is unchanged.
        """
        lines = b"".join(self._waiting)
        try:
            if lines or (sync and self.path.exists()):
                self._add_to_file(lines, sync)
        except OSError as fault:
            raise os_error(self.path, f"cannot add {len(lines)} bytes", fault) from fault
        self._waiting.clear()

    def drop_after(self, after: int) -> None:
        """Drops the events after this round, and a last line that is incomplete because the writer was killed.

        Events without a round stay if they come before everything dropped. Waiting events are dropped.
        """
        self._waiting.clear()
        try:
            with open(self.path, "rb") as file:
                kept = list(_lines_up_to(self.path, file, after))
                shorter = sum(map(len, kept)) < os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return
        except OSError as fault:
            raise os_error(self.path, "cannot read the file", fault) from fault
        if shorter:
            write_atomically(self.path, *kept)
        self._complete = True

    def _add_to_file(self, lines: bytes, sync: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        fresh = not self.path.exists()
        descriptor = os.open(self.path, flags, 0o666)
        try:
            if sync and fresh:
                sync_folder(self.path.parent)
            if not self._complete:
                _drop_torn_line(descriptor)
            self._complete = False
            _append(descriptor, lines, sync)
            self._complete = True
        finally:
            os.close(descriptor)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal that may still grow: an incomplete last line is left out."""
    try:
        file = open(path, "rb")  # noqa: SIM115 — closed below, once the generator is done
    except FileNotFoundError:
        return
    except OSError as fault:
        raise os_error(path, "cannot read the file", fault) from fault
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            event = _event(line)
            if event is None:
                raise _line_error(path, number)
            yield event


def replace_nonfinite(value: Any) -> Any:
    """The plain value with None for numbers that are not finite, which strict JSON does not allow."""
    if isinstance(value, Mapping):
        return {name: replace_nonfinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _lines_up_to(path: Path, lines: Iterable[bytes], after: int) -> Iterator[bytes]:
    """The lines up to this round. Only a dropped line may be damaged: a power cut can damage what was not synced."""
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
            raise _line_error(path, broken)
        else:
            yield line


def _line_error(path: Path, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{printable(path)}: line {number} is not a JSON object; something else has changed the file. "
        "Restore it from a backup, or remove that line."
    )


def _drop_torn_line(descriptor: int) -> None:
    """Removes an incomplete last line, to which the next event would otherwise be joined."""
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
