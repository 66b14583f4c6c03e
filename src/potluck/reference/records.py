"""What the reference holds: sections with their settings, and layouts of files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("reference.json")


@dataclass(frozen=True)
class Setting:
    """One setting."""

    name: str
    """Its full name: ``local.lr``, ``method.fedprox.mu``, ``model.cnn.width``."""
    type: str
    """In plain words: ``number``, ``list of whole numbers``, ``"sgd" or "adam"``."""
    default: str
    """As TOML has it; ``not set`` where there is none."""
    about: str
    tables: tuple[str, ...] = ()
    """The sections that describe its own settings, if it is a table."""
    choices: tuple[str, ...] = ()
    """All values that it may have, if they are few."""

    @property
    def key(self) -> str:
        """Its name within its section."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Section:
    """A table of settings: a section of an experiment, a method, a family of models, or a table inside one of these."""

    name: str
    """``local``, ``method.fedprox``, ``model.cnn``, ``method.server.adam``; empty: the top of the file."""
    heading: str
    """How a file writes it, such as ``[local]``; or the name of a method or a family."""
    about: str
    settings: tuple[Setting, ...]
    aliases: tuple[str, ...] = ()
    """Other names: those of certain members of a family of models."""


@dataclass(frozen=True)
class FileLayout:
    """What a file, or a folder of files, holds."""

    name: str
    group: str
    """``run`` for the files of a run folder, ``data`` for those that [data] reads."""
    text: str


@dataclass(frozen=True)
class Reference:
    """All sections, in the order of a settings file, and all layouts."""

    sections: tuple[Section, ...]
    layouts: tuple[FileLayout, ...]

    def children(self, name: str) -> list[Section]:
        """The sections directly inside this one."""
        inside = [each for each in self.sections if name and each.name.startswith(f"{name}.")]
        return [each for each in inside if not any(each.name.startswith(f"{other.name}.") for other in inside)]

    def text(self) -> str:
        """The reference as JSON, a line for each value, so that changes are easy to read."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def parse_reference(text: str) -> Reference:
    """The reference in this JSON."""
    plain = json.loads(text)
    return Reference(
        tuple(_section(each) for each in plain["sections"]), tuple(FileLayout(**each) for each in plain["layouts"])
    )


def _section(plain: dict[str, Any]) -> Section:
    settings = tuple(
        Setting(**{**each, "tables": tuple(each["tables"]), "choices": tuple(each["choices"])})
        for each in plain["settings"]
    )
    return Section(**{**plain, "settings": settings, "aliases": tuple(plain["aliases"])})


@cache
def read_reference() -> Reference:
    """The reference as it was last written."""
    return parse_reference(FILE.read_text("utf-8"))
