"""Settings: read, checked once, and every mistake gets one clear line."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from potluck.core import SettingsError
from potluck.methods import METHODS
from potluck.run import toml
from potluck.run.settings import Experiment

T = TypeVar("T")
Path_ = tuple[str | int, ...]


def read_experiment(path: Path | None, changes: Iterable[str] = ()) -> Experiment:
    """The experiment of a TOML file (or the built-in one) with ``key=value`` changes applied."""
    where = str(path) if path else "the built-in experiment"
    if path:
        plain, text = toml.read(path)
    else:
        text = recipe("digits")
        plain = tomllib.loads(text)
    if path and "name" not in plain:
        plain["name"] = path.stem
    for change in changes:
        text = toml.without(text, _change(plain, change))
    found = experiment(plain, where, text)
    method(found.method, found.local, where, text)  # here, where a mistake's file and line are known
    return found


def recipe(name: str) -> str:
    """The text of a built-in experiment."""
    return (files("potluck.run") / "recipes" / f"{name}.toml").read_text("utf-8")


def experiment(plain: Mapping[str, Any], where: str = "settings", text: str = "") -> Experiment:
    """Settings as a checked experiment."""
    return checked(Experiment, plain, where, text)


def changed(found: Experiment, changes: Iterable[str], where: str) -> Experiment:
    """The experiment with ``key=value`` changes applied."""
    plain = found.plain()
    for change in changes:
        _change(plain, change)
    return experiment(plain, where)


def method(settings: Mapping[str, Any], local: Any, where: str = "settings", text: str = "") -> Any:
    """The method that [method] asks for, with the experiment's local training."""
    wanted = settings.get("name")
    named = f"{where}: {_line(text, ('method', 'name'))}"
    if not isinstance(wanted, str):
        raise SettingsError(f'{named}[method] needs a name, such as name = "fedavg".')
    own = {key: value for key, value in settings.items() if key != "name"}
    trained = own.pop("local", {})
    if isinstance(trained, Mapping):
        trained = {**dataclasses.asdict(local), **trained}
    return checked(method_class(wanted, named), {**own, "local": trained}, where, text, section=("method",))


def method_class(wanted: str, where: str = "") -> type[Any]:
    if wanted in METHODS:
        return METHODS[wanted]
    if ":" not in wanted:
        raise SettingsError(f"{where}there is no method '{wanted}'.{_near(wanted, METHODS)}")
    module, _, name = wanted.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as fault:  # whatever a user's own module may raise
        raise SettingsError(f"{where}method '{wanted}' cannot be imported: {fault}.") from fault
    if not dataclasses.is_dataclass(found) or not isinstance(found, type):
        raise SettingsError(f"{where}method '{wanted}' is no dataclass. See docs/writing-a-method.md.")
    return found


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks plain values against a dataclass; to make it takes longer than to use it."""
    return TypeAdapter(kind)


def checked(kind: type[T], plain: Mapping[str, Any], where: str, text: str = "", section: Path_ = ()) -> T:
    """A dataclass made of plain values, or one line that says which setting is wrong and how."""
    for path, fault in _strangers(kind, plain, ()):
        raise SettingsError(f"{where}: {_line(text, section + path)}{_in(section + path[:-1])}{fault}")
    try:
        found: T = _adapter(kind).validate_json(  # type: ignore[arg-type]
            json.dumps(plain, default=str), strict=True
        )
        return found
    except ValidationError as error:
        first = error.errors()[0]
        path = section + tuple(part for part in first["loc"] if not _is_tag(part))
        said = _said(path, first)
        if not section and (named := re.match(r"([a-z_.]+) = ", said)):
            path = tuple(named[1].split("."))  # what a dataclass itself refuses is located by its message alone
        raise SettingsError(f"{where}: {_line(text, path)}{said}") from None


def _said(path: Path_, error: Any) -> str:
    message = str(error["msg"])
    if error["type"] == "value_error":
        return message.removeprefix("Value error, ") + "."
    name = ".".join(map(str, path))
    given = repr(error["input"])
    given = given if len(given) <= 80 else f"{given[:77]}..."
    return f"{name} = {given}: {message[:1].lower()}{message[1:]}."


def _is_tag(part: str | int) -> bool:
    """Pydantic adds the name of a union's branch to the path; a reader typed no such thing."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("int", "float", "str"))


def _strangers(kind: Any, plain: Any, path: Path_) -> Iterator[tuple[Path_, str]]:
    """Settings that no dataclass here knows, and numbers that are none."""
    if isinstance(plain, float) and not math.isfinite(plain):
        yield path, f"{path[-1]} = {plain} is no finite number."
    if isinstance(plain, Mapping):
        known = _fields(kind, plain)
        if (rules := _rules(kind)) and known is None and "name" in plain:
            yield (*path, "name"), f"knows no '{plain['name']}'.{_near(str(plain['name']), rules)}"
        for key, value in plain.items():
            if known is not None and key not in known:
                yield (*path, key), f"has no setting '{key}'.{_near(str(key), known)}"
            yield from _strangers(known.get(key) if known else None, value, (*path, key))
    elif isinstance(plain, list | tuple):
        inner = [part for part in typing.get_args(kind) if part is not Ellipsis]
        for number, value in enumerate(plain):
            yield from _strangers(inner[0] if inner else None, value, (*path, number))


def _fields(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings a dataclass (or the named one of several) knows, with their types; None: anything goes."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    chosen = _rules(kind).get(str(plain.get("name")))
    return None if chosen is None else _fields(chosen, plain)


def _rules(kind: Any) -> dict[str, Any]:
    """The dataclasses among which a setting's own name chooses."""
    several = [part for part in typing.get_args(kind) if dataclasses.is_dataclass(part)]
    return {str(getattr(part, "name", None)): part for part in several}


def _near(key: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(key, names, 1)
    return f" Did you mean '{close[0]}'?" if close else f" There are: {', '.join(names)}."


def _in(path: Path_) -> str:
    names = [str(part) for part in path if isinstance(part, str)]
    return f"[{'.'.join(names)}] " if names else "the top of the file "


def _line(text: str, path: Sequence[str | int]) -> str:
    found = toml.line_of(text, path) if text and path else None
    return f"line {found}: " if found else ""


def _change(plain: dict[str, Any], change: str) -> Path_:
    """Applies one ``a.b=value`` and says where; the value is read as TOML, or else as text."""
    key, equals, given = change.partition("=")
    change = " ".join(change.split())
    if not equals or not key:
        raise SettingsError(f"--set {change}: write it as key=value, such as --set local.lr=0.05.")
    wanted = value(given)
    *parts, last = key.split(".")
    at: Any = plain
    path: Path_ = ()
    for part in parts:
        path += (_number(part, at, change) if isinstance(at, list) else part,)
        at = _step(at, path[-1], change)
    end = _number(last, at, change) if isinstance(at, list) else last
    at[end] = wanted
    return (*path, end)


def value(given: str) -> Any:
    """A value as it would stand in a TOML file, or else the text itself."""
    try:
        return tomllib.loads(f"value = {given}")["value"]
    except (ValueError, RecursionError):
        return given


def _step(at: Any, part: str | int, change: str) -> Any:
    found = at[part] if isinstance(part, int) else at.setdefault(part, {})
    if not isinstance(found, dict | list):
        raise SettingsError(f"--set {change}: '{part}' is a value, not a section.")
    return found


def _number(part: str, rows: list[Any], change: str) -> int:
    if part.isdecimal() and int(part) < len(rows):
        return int(part)
    names = [str(row.get("name")) for row in rows if isinstance(row, dict)]
    if part in names:
        return names.index(part)
    raise SettingsError(f"--set {change}: '{part}' is none of {', '.join(names) or 'the rows'} (or a number from 0).")
