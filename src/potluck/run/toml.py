"""Reads TOML files, with line numbers in error messages, and writes plain values as TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core import SettingsError


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A settings file's values and its text."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file. `potluck run` without a file runs the digits.") from None
    except OSError as fault:
        raise SettingsError(f"{path}: cannot be read: {fault.strerror}.") from None
    return parse(raw, path)


def parse(raw: bytes, path: Path) -> tuple[dict[str, Any], str]:
    """The values and the text of a settings file with these bytes."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SettingsError(f"{path}: line 1: this is UTF-16. Save it as UTF-8.")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise SettingsError(f"{path}: line 1: this begins with a byte-order mark. Save it as UTF-8 without one.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        line = raw[: fault.start].count(b"\n") + 1
        raise SettingsError(f"{path}: line {line}: this is not UTF-8. Save it as UTF-8.") from None
    try:
        return tomllib.loads(text), text
    except RecursionError:
        raise SettingsError(f"{path}: its brackets are nested too deeply.") from None
    except ValueError as fault:  # a TOMLDecodeError, or a number with thousands of digits
        raise SettingsError(f"{path}: {_with_line_first(str(fault))}.") from None


def _with_line_first(fault: str) -> str:
    found = re.fullmatch(r"(?s)(.*) \(at line (\d+), column (\d+)\)", fault)
    return f"line {found[2]}: {found[1]}" if found else fault


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line number of a setting, found without full parsing; None if it is not found."""
    names = [str(part) for part in path if isinstance(part, str)]
    number = path[1] if len(path) > 1 and isinstance(path[1], int) else 0
    section, at, seen = "", -1, -1
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            section = header[1]
            seen += section == names[0]
            continue
        key = re.match(r"\s*([\w.\-]+)\s*=", line)
        full = f"{section}.{key[1]}" if key and section else key[1] if key else ""
        wanted = ".".join(names)
        if full and (wanted == full or wanted.startswith(full + ".")) and seen in (-1, number):
            at = index
    return at + 1 if at >= 0 else None


def blank_line(text: str, path: Sequence[str | int]) -> str:
    """The text with this setting's line made blank: its value was replaced, so no error should point to it."""
    found = line_of(text, path)
    lines = text.splitlines()
    return text if found is None else "\n".join([*lines[: found - 1], "", *lines[found:]])


def write(values: Mapping[str, Any]) -> str:
    """Plain values as TOML; None is left out, because TOML has no null."""
    lines = _pairs(values)
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(key)}]", *_flat(value)]
        elif _is_table_list(value):
            for row in value:
                lines += ["", f"[[{_key(key)}]]", *_flat(row)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{_key(key)} = {_value(value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, Mapping) and not _is_table_list(value)
    ]


def _flat(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None]


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quote(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return "{" + inner + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return _quote(value)
    return repr(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
