"""Reads and checks settings; every mistake gives an error message of one line."""

from __future__ import annotations

import dataclasses
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

from potluck.core import SettingsError, import_own, one_line, suggestion, to_plain
from potluck.methods import METHODS
from potluck.run import toml
from potluck.run.settings import Experiment

LARGEST = 2**62
"""The largest whole number that a setting may have. Seeds may be larger."""

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
        text = toml.blank_line(text, _apply_change(plain, change))
    found = experiment(plain, where, text)
    method(found.method, found.local, where, text)  # checked here, where the file and line of a mistake are known
    return found


def recipe(name: str) -> str:
    """The text of a built-in experiment."""
    return (files("potluck.run") / "recipes" / f"{name}.toml").read_text("utf-8")


def experiment(plain: Mapping[str, Any], where: str = "settings", text: str = "") -> Experiment:
    """The experiment of these settings, checked."""
    return parse_settings(Experiment, plain, where, text)


def apply_changes(found: Experiment, changes: Iterable[str] | Mapping[str, Any], where: str) -> Experiment:
    """The experiment with changes applied: lines ``key=value``, or values by key."""
    plain = found.plain()
    if isinstance(changes, Mapping):
        for key, wanted in changes.items():
            _change(plain, str(key), to_plain(wanted), f"{key}={one_line(repr(wanted), 60)}")
    else:
        for change in changes:
            _apply_change(plain, change)
    return experiment(plain, where)


def method(settings: Mapping[str, Any], local: Any, where: str = "settings", text: str = "") -> Any:
    """The method that [method] names, with the experiment's local training."""
    wanted = settings.get("name")
    named = f"{where}: {_line_prefix(text, ('method', 'name'))}"
    if not isinstance(wanted, str):
        raise SettingsError(f'{named}[method] needs a name, such as name = "fedavg".')
    own = {key: value for key, value in settings.items() if key != "name"}
    trained = own.pop("local", {})
    if isinstance(trained, Mapping):
        trained = {**dataclasses.asdict(local), **trained}
    return parse_settings(method_class(wanted, named), {**own, "local": trained}, where, text, section=("method",))


def method_class(wanted: str, where: str = "") -> type[Any]:
    """The class of a built-in method by name, or of a user's own method by ``module:Class``."""
    if wanted in METHODS:
        return METHODS[wanted]
    if ":" not in wanted:
        raise SettingsError(f"{where}there is no method '{wanted}'.{suggestion(wanted, METHODS)}")
    module, _, name = wanted.partition(":")
    try:
        found = getattr(import_own(module), name)
    except Exception as fault:  # whatever a user's own module may raise
        raise SettingsError(f"{where}method '{wanted}' cannot be imported: {fault}.") from fault
    if not dataclasses.is_dataclass(found) or not isinstance(found, type):
        raise SettingsError(f"{where}method '{wanted}' has to be a dataclass. See docs/writing-a-method.md.")
    return found


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The pydantic validator of a dataclass; cached, because building one is slow."""
    return TypeAdapter(kind)


def parse_settings(kind: type[T], plain: Mapping[str, Any], where: str, text: str = "", section: Path_ = ()) -> T:
    """A dataclass from plain values; the error message names the setting that is wrong, and why."""
    for path, fault in _unknown_settings(kind, plain, ()):
        raise SettingsError(f"{where}: {_line_prefix(text, section + path)}{_section_name(section + path[:-1])}{fault}")
    try:
        found: T = _adapter(kind).validate_json(  # type: ignore[arg-type]
            json.dumps(plain, default=str), strict=True
        )
        return found
    except ValidationError as error:
        first = error.errors()[0]
        path = section + tuple(part for part in first["loc"] if not _is_tag(part))
        said = _fault_text(path, first)
        if not section and (named := re.match(r"([a-z_.]+) = ", said)):
            path = tuple(named[1].split("."))  # for errors of a dataclass, only the message names the setting
        raise SettingsError(f"{where}: {_line_prefix(text, path)}{said}") from None


def _fault_text(path: Path_, error: Any) -> str:
    message = str(error["msg"])
    if error["type"] == "value_error":
        return message.removeprefix("Value error, ") + "."
    name = ".".join(map(str, path))
    given = repr(error["input"])
    given = given if len(given) <= 80 else f"{given[:77]}..."
    return f"{name} = {given}: {message[:1].lower()}{message[1:]}."


def _is_tag(part: str | int) -> bool:
    """Whether pydantic added this part to the path: the name of a union's branch, which no user typed."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("int", "float", "str", "bool"))


def _unknown_settings(kind: Any, plain: Any, path: Path_) -> Iterator[tuple[Path_, str]]:
    """Finds settings that do not exist, numbers that are too large or not finite, and a table in place of a list."""
    if isinstance(plain, float) and not math.isfinite(plain):
        yield path, f"{path[-1]} = {plain} is not a finite number."
    if isinstance(plain, int) and plain > LARGEST and not {"seed", "seeds"} & set(path):
        yield path, f"has '{path[-1]}' above {LARGEST}, the largest whole number."
    if isinstance(plain, Mapping) and _is_table_list(kind):
        first, name = next(iter(plain), ""), path[-1]
        yield (*path, first), f"is a list: write [[{name}]] with double brackets, once for each {name}."
    elif isinstance(plain, Mapping):
        known = _fields(kind, plain)
        if (rules := _named_choices(kind)) and known is None and "name" in plain:
            yield (*path, "name"), f"knows no '{plain['name']}'.{suggestion(str(plain['name']), rules)}"
        if rules and known is None and "name" not in plain:
            yield (*path, "name"), f"needs a name. There are: {', '.join(rules)}."
        for key, value in plain.items():
            if known is not None and key not in known:
                yield (*path, key), f"has no setting '{key}'.{suggestion(str(key), known)}"
            yield from _unknown_settings(known.get(key) if known else None, value, (*path, key))
    elif isinstance(plain, list | tuple):
        inner = [part for part in typing.get_args(kind) if part is not Ellipsis]
        for number, value in enumerate(plain):
            yield from _unknown_settings(inner[0] if inner else None, value, (*path, number))


def _is_table_list(kind: Any) -> bool:
    """Whether a setting is a list of tables, such as [[tier]]."""
    return typing.get_origin(kind) is tuple and dataclasses.is_dataclass(typing.get_args(kind)[0])


def _fields(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of a dataclass, or of the named one of several, with their types. None: any setting is allowed."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    chosen = _named_choices(kind).get(str(plain.get("name")))
    return None if chosen is None else _fields(chosen, plain)


def _named_choices(kind: Any) -> dict[str, Any]:
    """The dataclasses of a union, by the name that selects each."""
    several = [part for part in typing.get_args(kind) if dataclasses.is_dataclass(part) and hasattr(part, "name")]
    return {str(part.name): part for part in several}


def _section_name(path: Path_) -> str:
    names = [str(part) for part in path if isinstance(part, str)]
    return f"[{'.'.join(names)}] " if names else "the top of the file "


def _line_prefix(text: str, path: Sequence[str | int]) -> str:
    found = toml.line_of(text, path) if text and path else None
    return f"line {found}: " if found else ""


def _apply_change(plain: dict[str, Any], change: str) -> Path_:
    """Applies one ``a.b=value`` change and returns its path; the value is read as TOML, or else as text."""
    key, equals, given = change.partition("=")
    key = key.strip()
    change = " ".join(change.split())
    if not equals or not key:
        raise SettingsError(f"--set {change}: write it as key=value, such as --set local.lr=0.05.")
    return _change(plain, key, value(given), change)


def _change(plain: dict[str, Any], key: str, wanted: Any, change: str) -> Path_:
    """Sets one value by its key ``a.b`` and returns its path; `change` is how the user wrote it."""
    *parts, last = key.split(".")
    at: Any = plain
    path: Path_ = ()
    for part in parts:
        path += (_row_number(part, at, change) if isinstance(at, list) else part,)
        at = _enter(at, path[-1], change)
    end = _row_number(last, at, change) if isinstance(at, list) else last
    at[end] = wanted
    return (*path, end)


def value(given: str) -> Any:
    """The value of TOML text; the text itself if it is not valid TOML."""
    if "\n" in given or "\r" in given:
        raise SettingsError(f"{one_line(given, 60)}: a setting is one line. Give the option once for each setting.")
    try:
        return tomllib.loads(f"value = {given}")["value"]
    except (ValueError, RecursionError):
        return given


def _enter(at: Any, part: str | int, change: str) -> Any:
    found = at[part] if isinstance(part, int) else at.setdefault(part, {})
    if not isinstance(found, dict | list):
        raise SettingsError(f"--set {change}: '{part}' is a value, not a section.")
    return found


def _row_number(part: str, rows: list[Any], change: str) -> int:
    if part.isdecimal() and int(part) < len(rows):
        return int(part)
    names = [str(row.get("name")) for row in rows if isinstance(row, dict)]
    if part in names:
        return names.index(part)
    raise SettingsError(f"--set {change}: '{part}' is none of {', '.join(names) or 'the rows'} (or a number from 0).")
