"""JSON Lines: one record on each line of a .jsonl file. Errors name the number of the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potluck.core import InputError
from potluck.data.safe_reading import existing_path, file_error
from potluck.data.settings import Data

LONGEST = 16 << 20
"""The most bytes in one line; a longer line is a mistake, and would take several times its size in memory."""

Record = dict[str, Any]


def records(path: Path, shape: str) -> Iterator[tuple[int, Record]]:
    """Each record with the number of its line; blank lines are skipped. `shape` says how a record must look."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
            if len(line) > LONGEST:
                raise file_error(path, f"line {number} is longer than {LONGEST:,} bytes; cut it into several records")
            if line.strip():
                yield number, _record(line, number, path, shape)


def records_of_all_files(path: Path, shape: str) -> list[tuple[int, Record, Path]]:
    """All records of a file, or of all .jsonl files in a folder, each with the number of its line and its file.

    In a folder every file is a user; its name is the file's name up to the first dot.
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


FileState = tuple[str, int, int]
"""A file's name, size and modification time."""


def cache_key(data: Data) -> tuple[Data, tuple[FileState, ...]]:
    """All that the result of reading depends on: the settings that matter, and the state of every file to open."""
    named = [existing_path(data.path, data.name)]
    named += [existing_path(data.test_path, data.name)] if data.test_path else []
    named += [Path(data.tokenizer)] if data.tokenizer and Path(data.tokenizer).is_dir() else []
    files = [file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    states = tuple((str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in files)
    kept = ("name", "path", "test_path", "tokenizer", "tokens", "vocabulary", "length")
    return Data(**{name: getattr(data, name) for name in kept}), states


def _record(line: bytes, number: int, path: Path, shape: str) -> Record:
    if number == 1 and line.startswith(b"\x1f\x8b"):
        raise file_error(path, "compressed; unpack it first and set data.path to the .jsonl file")
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise file_error(path, f"line {number} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise file_error(path, f"line {number} is not JSON ({reason}); {shape}") from None
    if not isinstance(record, dict):
        raise file_error(path, f"line {number} does not hold a record; {shape}")
    return record
