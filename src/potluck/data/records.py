"""Records, one on each line of a .jsonl file; what is wrong with a line is told with its number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potluck.core import InputError
from potluck.data.guard import fault, found
from potluck.data.settings import Data

LONGEST = 16 << 20
"""Bytes in one line of the file; more is a mistake, and would be held in memory several times over."""

Record = dict[str, Any]


def records(path: Path, shape: str) -> Iterator[tuple[int, Record]]:
    """Each record and the number of its line; blank lines are passed over. `shape` tells what a record should be."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
            if len(line) > LONGEST:
                raise fault(path, f"line {number} is longer than {LONGEST:,} bytes; cut it into several records")
            if line.strip():
                yield number, _record(line, number, path, shape)


def every(path: Path, shape: str) -> list[tuple[int, Record, Path]]:
    """The records of a file, or of all .jsonl files of a folder: there the user is a file's name up to the first dot.

    With each come the number of its line and its file.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found = [
        (number, {"user": file.name.split(".")[0], **record} if path.is_dir() else record, file)
        for file in files
        for number, record in records(file, shape)
    ]
    if not found:
        raise InputError(f"{path}: no records in it; {shape}")
    return found


Stamp = tuple[str, int, int]
"""A file's name, size and time of change."""


def stamped(data: Data) -> tuple[Data, tuple[Stamp, ...]]:
    """What a reading depends on: the settings that matter to it, and the state of every file that it may open."""
    named = [found(data.path, data.name)]
    named += [found(data.test_path, data.name)] if data.test_path else []
    named += [Path(data.tokenizer)] if data.tokenizer and Path(data.tokenizer).is_dir() else []
    files = [file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    stamps = tuple((str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in files)
    kept = ("name", "path", "test_path", "tokenizer", "tokens", "vocabulary", "length")
    return Data(**{name: getattr(data, name) for name in kept}), stamps


def _record(line: bytes, number: int, path: Path, shape: str) -> Record:
    if number == 1 and line.startswith(b"\x1f\x8b"):
        raise fault(path, "compressed; unpack it first and set data.path to the .jsonl file")
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise fault(path, f"line {number} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise fault(path, f"line {number} is not JSON ({reason}); {shape}") from None
    if not isinstance(record, dict):
        raise fault(path, f"line {number} holds no record; {shape}")
    return record
