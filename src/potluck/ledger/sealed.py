"""A sealed file: one line of JSON that says what follows, how long it is and its sha256; then the bytes themselves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

SCHEMA = 1
_MOST_HEAD = 1 << 20


class Unsound(Exception):
    """Why the bytes of a sealed file must not be used."""


class Foreign(Unsound):
    """A sealed file that may be fine, but is not ours to use or to remove."""


def seal(payload: bytes, **facts: str | int) -> tuple[bytes, bytes]:
    """The two pieces of a sealed file: its head, which states these facts, and the payload."""
    head = {"schema": SCHEMA, **facts, "bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    return json.dumps(head, separators=(",", ":")).encode() + b"\n", payload


def unseal(path: Path, **facts: str | int) -> bytes:
    """The payload, if the file is whole and states these facts; `Unsound` says why not."""
    try:
        with open(path, "rb") as file:
            head = _head(file)
            for name, value in facts.items():
                _agree(name, head.get(name), value)
            return _payload(file, head)
    except OSError as fault:
        raise Unsound(f"it cannot be read ({fault.strerror})") from fault


def head_of(path: Path) -> Mapping[str, Any]:
    """What a sealed file says about itself; its payload is not looked at."""
    try:
        with open(path, "rb") as file:
            return _head(file)
    except OSError as fault:
        raise Unsound(f"it cannot be read ({fault.strerror})") from fault


def _head(file: BinaryIO) -> Mapping[str, Any]:
    line = file.readline(_MOST_HEAD)
    if not line:
        raise Unsound("it is empty")
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not line.endswith(b"\n") or not isinstance(head, dict) or type(head.get("schema")) is not int:
        raise Unsound("its head is damaged")
    if head["schema"] > SCHEMA:
        raise Foreign(f"a newer Potluck wrote it (schema {head['schema']}; this one reads {SCHEMA})")
    if head["schema"] != SCHEMA:
        raise Unsound("its head is damaged")
    return head


def _agree(name: str, found: object, wanted: str | int) -> None:
    if type(found) is not type(wanted):
        raise Unsound("its head is damaged")
    if found == wanted:
        return
    if name == "mark":
        raise Foreign(f"it belongs to another model or other settings (mark {found!a}, this run's is {wanted!a})")
    raise Unsound(f"it says {name} {found!a} where {wanted!a} should be")


def _payload(file: BinaryIO, head: Mapping[str, Any]) -> bytes:
    # The length is checked before anything is read, so a head that promises terabytes costs nothing.
    length = os.fstat(file.fileno()).st_size - file.tell()
    if length != head.get("bytes"):
        raise Unsound(f"it holds {length} bytes where {head.get('bytes')!a} should be")
    payload = file.read()
    if hashlib.sha256(payload).hexdigest() != head.get("sha256"):
        raise Unsound("its checksum does not match")
    return payload
