"""Journals: files with one JSON object per line, to which lines are only added."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from potluck.ledger.errors import DamagedRecord, FolderError, os_error, printable
from potluck.ledger.files import NotRegular, not_regular, open_regular, sync_folder, write_all, write_stream

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder()


class Journal:
    """Events in the order in which they happened, kept in memory until `flush`.

    Give every event its round: by the round, `drop_after` finds what a resumed run will do again. So the journal of a
    run that was stopped and resumed equals that of a run that never stopped. Numbers that are not finite are written as
    null: JSON has no other way.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[tuple[int | None, bytes]] = []  # the round and the line
        self._size: int | None = None  # of the file, once it is known to end with a complete line
        self._sizes: Counter[int] = Counter()  # bytes in the file, by round

    def size_up_to(self, round: int) -> int:
        """Bytes of the events in the file up to this round: so many are left whatever `drop_after` drops."""
        total = sum(size for each, size in self._sizes.items() if each <= round)
        self._sizes = Counter({round: total} | {each: size for each, size in self._sizes.items() if each > round})
        return total

    def add(self, **event: Any) -> None:
        """Adds an event, given as keywords."""
        self.append(event)

    def append(self, event: Mapping[str, Any]) -> None:
        """Adds an event, given as a mapping."""
        # Escaped to ASCII: no character in a client's name can break a line or fail to encode.
        try:
            line = _ENCODER.encode(event if type(event) is dict else dict(event))
        except ValueError:
            line = _ENCODER.encode(replace_nonfinite(event))
        self._waiting.append((_round(event), line.encode() + b"\n"))

    def flush(self, sync: bool = False) -> None:
        """Writes the waiting events to the file, all or none; with `sync` they also survive a power cut.

        If the disk is full they stay in memory, and the file is unchanged.
        """
        lines = b"".join(line for _, line in self._waiting)
        try:
            if lines or (sync and self._size):
                self._add_to_file(lines, sync)
        except NotRegular as fault:
            raise not_regular(self.path, fault) from None
        except OSError as fault:
            raise os_error(self.path, f"cannot add {len(lines)} bytes", fault) from fault
        for round, line in self._waiting:
            if round is not None:
                self._sizes[round] += len(line)
        self._waiting.clear()

    def drop_after(self, after: int) -> None:
        """Drops the events after this round, and a last line that is incomplete because the writer was killed.

        Events without a round stay if they come before everything dropped. Waiting events are dropped.
        """
        self._waiting.clear()
        self._sizes.clear()
        try:
            with open(open_regular(self.path, os.O_RDWR), "r+b") as file:
                self._size = self._cut(file, after)
        except FileNotFoundError:
            self._size = None
        except NotRegular as fault:
            raise not_regular(self.path, fault) from None
        except OSError as fault:
            raise os_error(self.path, "cannot open and cut the file", fault) from fault

    def _cut(self, file: BinaryIO, after: int) -> int:
        """Drops the events after this round from the file; returns its new size."""
        kept, end, there = 0, 0, os.fstat(file.fileno()).st_size
        for start, line, round in _lines_up_to(self.path, file, after):
            kept, end = kept + len(line), start + len(line)
            if round is not None:
                self._sizes[after] += len(line)
        if kept == end < there:  # all that is dropped comes last
            os.ftruncate(file.fileno(), end)
            os.fsync(file.fileno())
        elif kept < there:
            file.seek(0)
            write_stream(self.path, (line for _, line, _ in _lines_up_to(self.path, file, after)), kept)
        return kept

    def _add_to_file(self, lines: bytes, sync: bool) -> None:
        fresh = self._size is None
        flags = os.O_RDWR | os.O_APPEND
        try:
            descriptor = open_regular(self.path, flags | os.O_CREAT if fresh else flags)
        except FileNotFoundError:
            if fresh:
                raise
            raise self._changed() from None
        try:
            if sync and fresh:
                sync_folder(self.path.parent)
            if self._size is None:
                self._size = _drop_torn_line(descriptor)
            elif os.fstat(descriptor).st_size != self._size:
                raise self._changed()
            self._size = _append(descriptor, lines, sync)
        finally:
            os.close(descriptor)

    def _changed(self) -> FolderError:
        return FolderError(
            f"{printable(self.path)}: something else has removed or changed it while the run was going on; the run "
            "stops here. Restore it from a backup and resume, or start again with another --out."
        )


def _round(event: Mapping[str, Any]) -> int | None:
    found = event.get("round")
    return found if isinstance(found, int) else None


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal that may still grow: an incomplete last line is left out."""
    try:
        file = open(open_regular(path), "rb")  # noqa: SIM115 — closed below, once the generator is done
    except FileNotFoundError:
        return
    except NotRegular as fault:
        raise not_regular(path, fault) from None
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
    """The JSON object in a line; None if it is something else."""
    try:
        event, end = _DECODER.raw_decode(line.decode())  # half the time of json.loads
        complete = end == len(line) - 1
    except (ValueError, RecursionError):
        complete = False
    try:
        event = event if complete else json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _lines_up_to(path: Path, lines: Iterable[bytes], after: int) -> Iterator[tuple[int, bytes, int | None]]:
    """The lines up to this round, each with where it begins, and its round.

    Only a dropped line may be damaged: a power cut can damage what was not synced.
    """
    broken, dropped, start = 0, False, 0
    for number, line in enumerate(lines, 1):
        event = _event(line) if line.endswith(b"\n") else None
        round = None if event is None else _round(event)
        if event is None:
            broken, dropped = broken or number, True
        elif round is None:
            if not dropped:
                yield start, line, None
        elif round > after:
            dropped = True
        elif broken:
            raise _line_error(path, broken)
        else:
            yield start, line, round
        start += len(line)


def _line_error(path: Path, number: int) -> DamagedRecord:
    return DamagedRecord(
        f"{printable(path)}: line {number} is not a JSON object; something else has changed the file. "
        "Restore it from a backup, or remove that line."
    )


def _drop_torn_line(descriptor: int) -> int:
    """Removes an incomplete last line, to which the next event would otherwise be joined; returns the size."""
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
    return at


def _append(descriptor: int, lines: bytes, sync: bool) -> int:
    """Adds lines at the end of a file, all or none; returns its size."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        write_all(descriptor, [lines])
        if sync:
            os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)
        raise
    return end + len(lines)
