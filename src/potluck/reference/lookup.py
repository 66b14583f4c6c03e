"""Finds what a name means: a section, a setting, a method, a family of models, or a layout."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from potluck.reference.records import FileLayout, Reference, Section, Setting

Found = Section | Setting | FileLayout


class UnknownName(Exception):
    """A name that nothing has."""

    exit_code = 2


def find(name: str, reference: Reference) -> list[Found]:
    """What has this name. Several settings only if several methods, or families, have one of that name each."""
    wanted = name.strip().strip("[]")
    for spelled in _spellings(wanted):
        if found := _exact(spelled, reference):
            return found
    raise UnknownName(f"there is no setting or section '{wanted}'.{_nearest(wanted, reference)}")


def _spellings(name: str) -> Iterator[str]:
    """The name, and what else it may stand for: `fedrolex` is a method, `tier.phone.share` the share of any tier."""
    yield name
    yield from (f"{kind}.{name}" for kind in ("method", "model"))
    parts = name.split(".")
    if parts[0] == "tier" and len(parts) == 3:
        yield f"tier.{parts[2]}"
    if parts[:2] == ["method", "local"] or "local" in parts[1:-1]:
        yield ".".join(parts[parts.index("local") :])


def _exact(name: str, reference: Reference) -> list[Found]:
    for section in reference.sections:
        if name and (name == section.name or name in (f"model.{alias}" for alias in section.aliases)):
            return [section]
    settings = [each for section in reference.sections for each in section.settings]
    if found := [each for each in settings if each.name == name]:
        return [*found]
    if layouts := [each for each in reference.layouts if each.name == name]:
        return [*layouts]
    start, _, end = name.partition(".")
    several = [each for each in settings if each.name.startswith(f"{start}.") and each.name.endswith(f".{end}")]
    own = [each for each in several if each.name.count(".") == 2 + end.count(".")]
    return [*own] if start in ("method", "model") and end else []


def explained_names(reference: Reference) -> list[str]:
    """Every name that can be explained."""
    sections = [section.name for section in reference.sections if section.name]
    settings = [each.name for section in reference.sections for each in section.settings]
    return list(dict.fromkeys([*sections, *settings, *(layout.name for layout in reference.layouts)]))


def _nearest(name: str, reference: Reference) -> str:
    names = sorted(explained_names(reference), key=lambda each: each.count("."))  # the simplest one first
    last = [each for each in names if each.endswith(f".{name}")]
    short = {each.removeprefix("method.").removeprefix("model."): each for each in names}
    close = last or difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(name, short, 1)
    if not close:
        by_key = {each.rpartition(".")[2]: each for each in reversed(names)}
        close = [by_key[key] for key in difflib.get_close_matches(name.rpartition(".")[2], by_key, 1)]
    return f" Did you mean '{close[0]}'?" if close else " `potluck explain` lists the sections."
