"""What a method is called in tables: its name, and those of its settings that differ from the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from potluck.core import display_name


def label(method: Any, local: Any = None) -> str:
    """A method's name and its settings that differ from the default, for people.

    `local` is the experiment's local training; where the method has another one of its own, the label says so.
    """
    told = own_settings(method, local)
    return display_name(method) + (f" ({told})" if told else "")


def own_settings(method: Any, local: Any = None) -> str:
    """The settings of a method that differ from the default, such as "share=layerwise, local.lr=0.1"."""
    if not dataclasses.is_dataclass(method):
        return ""
    told: list[str] = []
    for field in dataclasses.fields(method):
        value, usual = getattr(method, field.name), local if field.name == "local" else _default(field)
        if (field.name != "local" or local is not None) and value != usual:
            told += _differences(field.name, value, usual)
    return ", ".join(told)


def _differences(name: str, value: Any, usual: Any) -> Iterator[str]:
    """A setting as text; of one that has settings itself, such as a server's rule, those that differ."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        yield f"{name}={value}"
        return
    if type(value) is not type(usual):
        yield f"{name}={getattr(value, 'name', type(value).__name__)}"
        usual = _made_plainly(type(value))
    for field in dataclasses.fields(value):
        inner, before = getattr(value, field.name), getattr(usual, field.name, dataclasses.MISSING)
        if field.name != "name" and inner != before:
            yield from _differences(f"{name}.{field.name}", inner, before)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _made_plainly(kind: type) -> Any:
    """An object of a class with its default settings; None if it needs some."""
    try:
        return kind()
    except (TypeError, ValueError):
        return None
