"""How a message crosses a stream: one frame with its head, then its parts in frames of a bounded size.

A frame is a letter that says what it is, followed by JSON or by bytes of a part. Every frame with bytes is full, except
the last one of its part; so who waits for a frame can tell a slow sender from one that only pretends to send.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from potluck.core import Bytes
from potluck.engines.remote.transport import Parts

HELLO, WELCOME, MESSAGE, DATA, VOID, BEAT = b"i", b"w", b"m", b"d", b"v", b"b"
"""What a frame is: a node's first words, the server's, a head, bytes, a message that is void now, a sign of life."""

FRAME = 1 << 18
"""Bytes of a part in one frame."""
MOST_HEAD = 1 << 16
"""Bytes of a head."""
IN_MEMORY = 1 << 20
"""A message up to this size stays in memory; a larger one goes to a file."""
_ALIGNED = 64
"""Parts in a file begin at multiples of this, as arrays like it."""


class FrameError(ValueError):
    """Frames that are no message."""


def pack_head(kind: bytes, head: Mapping[str, Any]) -> bytes:
    """A frame with these values."""
    made = kind + json.dumps(head).encode()
    if len(made) > MOST_HEAD:
        raise ValueError(f"a head of {len(made)} bytes; at most {MOST_HEAD} are sent")
    return made


def read_head(frame: object, kind: bytes) -> dict[str, Any]:
    """The values in a frame of this kind."""
    if not isinstance(frame, bytes) or frame[:1] != kind or len(frame) > MOST_HEAD:
        raise FrameError("a head was expected")
    try:
        head = json.loads(frame[1:])
    except (ValueError, RecursionError):
        raise FrameError("a head that is not JSON") from None
    if not isinstance(head, dict):
        raise FrameError("a head that is not JSON")
    return head


def whole(head: Mapping[str, Any], name: str) -> int:
    """A whole number of a head, not below 0."""
    value = head.get(name)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise FrameError(f"a head without '{name}'")
    return value


def wholes(head: Mapping[str, Any], name: str) -> list[int]:
    """A list of whole numbers of a head, not below 0."""
    values = head.get(name)
    if not isinstance(values, list):
        raise FrameError(f"a head without '{name}'")
    return [whole({name: value}, name) for value in values]


def word(head: Mapping[str, Any], name: str) -> str:
    """A short text of a head."""
    value = head.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise FrameError(f"a head without '{name}'")
    return value


def sizes_of(parts: Parts) -> list[int]:
    """Bytes of each part."""
    return [part.nbytes for part in parts]


def data_frames(parts: Parts) -> Iterator[bytes]:
    """The frames of these parts; only one of them is in memory at a time."""
    for part in parts:
        view = np.ascontiguousarray(part).data.cast("B") if part.nbytes else memoryview(b"")
        for start in range(0, len(view), FRAME):
            yield b"".join((DATA, view[start : start + FRAME]))


class Arriving:
    """A message of which the parts come in. A large one is in a file without a name, which ends with its last user."""

    def __init__(self, sizes: Sequence[int], folder: Path) -> None:
        self._starts: list[int] = []
        self._sizes = sizes
        end = 0
        for size in sizes:
            self._starts.append(end)
            end += -(-size // _ALIGNED) * _ALIGNED
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        if end > IN_MEMORY:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._part = self._done = 0
        self._skip_empty()

    @property
    def complete(self) -> bool:
        return self._part == len(self._sizes)

    @property
    def in_file(self) -> bool:
        return self._file is not None

    def add(self, frame: object) -> None:
        """Takes the next frame of bytes; an error if it is not as long as it must be."""
        if not isinstance(frame, bytes) or frame[:1] != DATA or self.complete:
            raise FrameError("bytes were expected")
        left = self._sizes[self._part] - self._done
        if len(frame) - 1 != min(left, FRAME):
            raise FrameError(f"{len(frame) - 1} bytes in a frame; expected {min(left, FRAME)}")
        self._write(self._starts[self._part] + self._done, memoryview(frame)[1:])
        self._done += len(frame) - 1
        if self._done == self._sizes[self._part]:
            self._part, self._done = self._part + 1, 0
            self._skip_empty()

    def parts(self) -> list[Bytes]:
        """The parts, read-only."""
        body: bytes | mmap.mmap = bytes(self._memory)
        if self._file:
            body = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
            self.close()
        places = zip(self._starts, self._sizes, strict=True)
        return [np.frombuffer(body, np.uint8, size, start) if size else _NOTHING for start, size in places]

    def close(self) -> None:
        """Frees what is not used by parts that were handed over."""
        if self._file:
            self._file.close()
        self._memory = bytearray()

    def _skip_empty(self) -> None:
        while self._part < len(self._sizes) and not self._sizes[self._part]:
            self._part += 1

    def _write(self, place: int, data: memoryview) -> None:
        if not self._file:
            self._memory += bytes(place - len(self._memory))
            self._memory += data
            return
        self._file.seek(place)
        while data:
            data = data[self._file.write(data) :]


_NOTHING: Bytes = np.zeros(0, np.uint8)
