"""Types and default values of settings in plain words."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from potluck.core import to_plain
from potluck.run import toml

NOT_SET = "not set"


def type_in_words(kind: Any) -> str:
    """The type of a setting in plain words; that it may be left out is not said, since all may."""
    parts = members(kind)
    if len(parts) > 1:
        return join_words(list(dict.fromkeys(word for part in parts for word in _words_of(part))))
    return join_words(_words_of(parts[0]))


def members(kind: Any) -> list[Any]:
    """The types of which a setting may be one; None is not one of them, since a file cannot say it."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return [part for part in (typing.get_args(kind) if union else (kind,)) if part is not type(None)]


def tables_of(kind: Any) -> list[type]:
    """The dataclasses among the types of a setting."""
    return [part for part in members(kind) if isinstance(part, type) and dataclasses.is_dataclass(part)]


def choices_of(kind: Any) -> tuple[str, ...]:
    """The values of a setting as text, if it is one of a few, or one of a few or another text."""
    if kind is bool:
        return ("true", "false")
    parts = members(kind)
    if not parts or any(typing.get_origin(part) is not Literal and part is not str for part in parts):
        return ()
    return tuple(str(value) for part in parts for value in typing.get_args(part))


_PLAIN = {bool: ["true", "false"], int: ["whole number"], float: ["number"], str: ["text"]}


def _words_of(kind: Any) -> list[str]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return [as_toml(value) for value in inner]
    if origin is tuple:
        kinds = [part for part in inner if part is not Ellipsis]
        count = "" if Ellipsis in inner else f"{len(kinds)} "
        return [f"list of {count}{_plural(type_in_words(kinds[0]))}"]
    if origin is dict and inner[1] is not Any:
        return [f"table of {_plural(type_in_words(inner[1]))}"]
    return ["table"]


def _plural(words: str) -> str:
    if words.startswith("list"):
        return words.replace("list", "lists", 1)
    return " or ".join(word if word in _PLAIN[bool] else f"{word}s" for word in words.split(" or "))


def join_words(words: Sequence[str]) -> str:
    """Words as a list: ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def as_toml(value: Any) -> str:
    """A value as a settings file writes it."""
    if value is None:
        return NOT_SET
    return toml.write({"table": {"value": changed(value)}}).splitlines()[-1].removeprefix("value = ")


def changed(value: Any) -> Any:
    """A default as plain values; of a table, its name and what differs from the defaults of its class."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    usual = type(value)()
    named = {"name": value.name} if hasattr(value, "name") else {}
    found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return named | {name: changed(each) for name, each in found.items() if each != getattr(usual, name)}


def in_code(text: str) -> str:
    """The text with quoted words as Markdown code."""
    return "".join(f'`"{part}"`' if at % 2 else part for at, part in enumerate(text.split('"')))


def rows(lines: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
