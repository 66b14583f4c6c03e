"""Collects every setting and every layout from the classes, functions and modules that define them."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from potluck.data import registry
from potluck.methods import METHODS
from potluck.models.families import LISTED
from potluck.models.family import Family
from potluck.models.options import Option, Ratio
from potluck.reference.docstrings import attribute_docs, first_paragraph, one_paragraph, whole_docstring
from potluck.reference.records import FileLayout, Reference, Section, Setting
from potluck.reference.types import NOT_SET, as_toml, choices_of, join_words, tables_of, type_in_words
from potluck.run.settings import Experiment

RUN_FILES = {
    "run folder": "potluck.ledger.folder",
    "manifest.json": "potluck.run.session:manifest",
    "ledger.jsonl": "potluck.run.accounting",
    "scores.jsonl": "potluck.run.scoring:score",
    "checkpoints": "potluck.ledger.checkpoints",
    "memory": "potluck.ledger.memories",
    "files with a checksum": "potluck.ledger.files",
}
"""The files of a run folder, and the module or function whose docstring describes each."""


def collect() -> Reference:
    """Everything there is, in the order of a settings file."""
    return Reference(tuple(_experiment_sections()), tuple(_layouts()))


def _experiment_sections() -> Iterator[Section]:
    """The top of the file, and then every section that `Experiment` has."""
    whole, docs, hints = Experiment(), attribute_docs(Experiment), typing.get_type_hints(Experiment)
    named = {each.name: getattr(whole, each.name) for each in dataclasses.fields(Experiment)}
    scalars = {name: value for name, value in named.items() if not _is_section(hints[name])}
    top = tuple(_setting(name, hints[name], value, docs.get(name, "")) for name, value in scalars.items())
    yield Section("", "At the top of the file", "What comes before the first section.", top)
    for name in named:
        if name in scalars:
            continue
        value, about = named[name], docs.get(name, "")
        if isinstance(value, Mapping):
            yield from _named_section(name, value, about)
        elif rows := _row_kinds(hints[name]):
            yield from _sections(name, rows[0], next(iter(value), None), f"[[{name}]]", about)
        else:
            yield from _sections(name, tables_of(hints[name])[0], value, f"[{name}]", about)


def _is_section(kind: Any) -> bool:
    """Whether a setting of an experiment is a section: a table, a list of tables, or a table with a name."""
    named = typing.get_origin(kind) is dict and typing.get_args(kind)[1] is Any
    return named or bool(tables_of(kind)) or bool(_row_kinds(kind))


def _row_kinds(kind: Any) -> list[type]:
    """The dataclasses of which a setting is a list."""
    return tables_of(typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else []


def _named_section(name: str, default: Mapping[str, Any], about: str) -> Iterator[Section]:
    """A section whose `name` decides what else it may hold: [model] and [method]."""
    listed: Mapping[str, Mapping[str, Any]] = {"model": {each.name: each for each in LISTED}, "method": METHODS}
    chosen = f"Which one: `potluck list {name}s` shows all."
    settings = tuple(_setting(f"{name}.{key}", type(value), value, chosen) for key, value in default.items())
    yield Section(name, f"[{name}]", about, settings)
    shared: dict[str, Section] = {}
    for each, thing in listed.get(name, {}).items():
        found = [family_section(thing)] if isinstance(thing, Family) else list(method_sections(each, thing))
        yield from (section for section in found if section.name.startswith(f"{name}.{each}"))
        shared |= {section.name: section for section in found if not section.name.startswith(f"{name}.{each}")}
    yield from shared.values()


def method_sections(name: str, kind: type) -> Iterator[Section]:
    """The settings of a method, and of the tables that it has."""
    try:
        instance = kind()
    except (TypeError, ValueError):  # a user's own method may have settings without a default
        instance = None
    yield from _sections(f"method.{name}", kind, instance, name, first_paragraph(kind))


def _sections(name: str, kind: type, instance: Any, heading: str, about: str) -> Iterator[Section]:
    """The section of a dataclass, and those of the tables inside it."""
    docs, hints = attribute_docs(kind), typing.get_type_hints(kind)
    settings: list[Setting] = []
    inside: list[Section] = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        value = getattr(instance, field.name) if instance is not None else _own_default(field)
        if _is_selector(field.name, hint):
            continue
        found = list(_tables(f"{name}.{field.name}", name, hint, value))
        inside += found
        tables = tuple(each.name for each in found) or _same_as(hint)
        settings.append(_setting(f"{name}.{field.name}", hint, value, docs.get(field.name, ""), tables))
    yield Section(name, heading, about or first_paragraph(kind), tuple(settings))
    yield from inside


def _tables(name: str, owner: str, hint: Any, value: Any) -> Iterator[Section]:
    """The sections of the tables that a setting may be; a choice of tables is the same for all methods that have it."""
    kinds = tables_of(hint)
    if not kinds or (_same_as(hint) and owner.startswith("method.")):
        return
    if not all(_is_selector("name", typing.get_type_hints(kind).get("name")) for kind in kinds):
        yield from _sections(name, kinds[0], value, f"[{name}]", "")
        return
    if owner.startswith("method."):
        name = f"method.{name.rpartition('.')[2]}"
    for kind in kinds:
        selector: str = vars(kind)["name"]
        heading = f'[{name}] with name = "{selector}"'
        yield from _sections(f"{name}.{selector}", kind, kind(), heading, first_paragraph(kind))


def _same_as(hint: Any) -> tuple[str, ...]:
    """The section of an experiment that a table is written like, if any: a method's `local` is like [local]."""
    known = {kind: name for name, kind in typing.get_type_hints(Experiment).items()}
    return tuple(known[kind] for kind in tables_of(hint) if kind in known)


def _is_selector(name: str, hint: Any) -> bool:
    """Whether this is the name by which a table is chosen, and so no setting of the table."""
    return name == "name" and typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1


def _own_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


def _setting(name: str, hint: Any, value: Any, about: str, tables: tuple[str, ...] = ()) -> Setting:
    alike = name.startswith("method.") and _same_as(hint)
    default = f"as in [{tables[0]}]" if alike else f"see [{name}]" if tables == (name,) else as_toml(value)
    return Setting(name, type_in_words(hint), default, about, tables, choices_of(hint))


def family_section(family: Family) -> Section:
    """The options of a family of models."""
    name = f"model.{family.name}"
    options = [_option(f"{name}.{key}", each) for key, each in (*family.base.items(), *family.options.items())]
    also = [Setting(f"{name}.{key}", "text", NOT_SET, f"{about}.") for key, about in family.read_first.items()]
    about = f"{family.about}. {one_paragraph(family.__doc__)}"
    return Section(name, family.name, about, (*_depth(name, family), *options, *also), tuple(family.aliases))


def _depth(name: str, family: Family) -> Iterator[Setting]:
    if family.depth is None:
        return
    stages = len(family.depth) if isinstance(family.depth, tuple) else 0
    kind = f"list of {stages} whole numbers" if stages else "whole number"
    about = "The number of blocks in each stage." if stages else "The number of blocks."
    yield Setting(f"{name}.depth", kind, as_toml(family.depth), about)


def _option(name: str, option: Option) -> Setting:
    about = f"{option.about[:1].upper()}{option.about[1:]}."
    if option.choices:
        values = [as_toml(choice) for choice in option.choices]
        texts = tuple(map(str, option.choices))
        return Setting(name, join_words(values), as_toml(option.default), about, choices=texts)
    kind = "whole number" if isinstance(option.default, int) else "number"
    table = ", or table of numbers" if isinstance(option, Ratio) else ""
    return Setting(name, f"{kind} from {option.low:.10g} to {option.high:.10g}{table}", as_toml(option.default), about)


def _layouts() -> Iterator[FileLayout]:
    for name, where in RUN_FILES.items():
        module, _, function = where.partition(":")
        found: Any = importlib.import_module(module)
        yield FileLayout(name, "run", whole_docstring(getattr(found, function) if function else found))
    for name, reader in registry.READERS.items():
        found = importlib.import_module(reader.__module__)
        yield FileLayout(name, "data", whole_docstring(reader if found is registry else found))
