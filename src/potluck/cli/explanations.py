"""What `potluck explain` prints: a setting, a section of settings, or the layout of a file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from potluck.cli import display
from potluck.reference import FileLayout, Reference, Section, Setting, find, read_reference

Found = Section | Setting | FileLayout


def explain(name: str, as_json: bool) -> None:
    """Prints what has this name; without a name, a list of the sections."""
    reference = read_reference()
    if not name:
        _print_sections(reference, as_json)
        return
    found = _own_method(name) if ":" in name else find(name, reference)
    if as_json:
        plain = [_plain(each) for each in found]
        display.print_json(plain[0] if len(plain) == 1 else plain)
        return
    for each in found:
        if isinstance(each, Setting):
            _print_setting(each)
        elif isinstance(each, Section):
            _print_section(each, reference)
        else:
            display.print_line(each.text)


def _own_method(name: str) -> list[Found]:
    """A method of the user's own, by module:Class; it is imported, and so torch is too."""
    from potluck.reference.collect import method_sections
    from potluck.run.config import method_class

    return [next(method_sections(name, method_class(name)))]


def _print_sections(reference: Reference, as_json: bool) -> None:
    rows = [{"name": each.name, "about": each.about} for each in reference.sections if "." not in each.name]
    if as_json:
        display.print_json(rows)
        return
    display.print_rows("sections", [{"name": row["name"] or "(top)", "about": row["about"]} for row in rows])
    display.print_line("files:  " + ", ".join(layout.name for layout in reference.layouts))
    display.print_line("next:   potluck explain local, or local.lr, or fedrolex")


def _print_setting(setting: Setting) -> None:
    display.print_line(setting.name)
    display.print_line(f"  type:    {setting.type}")
    display.print_line(f"  default: {setting.default}")
    if (value := built_in_value(setting)) is not None:
        display.print_line(f"  in the built-in experiment: {_text(value)}")
    display.print_prose(setting.about)


def _print_section(section: Section, reference: Reference) -> None:
    display.print_line(section.heading)
    display.print_prose(section.about)
    for each in section.settings:
        display.print_line(f"  {each.key} {_default_and_type(each)}")
        display.print_prose(each.about, indent=6)
    if inside := [each.name for each in reference.children(section.name)]:
        display.print_prose(f"also: {', '.join(inside)}")


def _default_and_type(setting: Setting) -> str:
    """The default as a file would write it, or in words if it could not, and the type."""
    if setting.default.startswith(("as in", "see", "not set")):
        return f"({setting.type}, {setting.default})"
    return f"= {setting.default} ({setting.type})"


def _plain(found: Found) -> dict[str, Any]:
    if isinstance(found, FileLayout):
        return {"name": found.name, "about": found.text}
    if isinstance(found, Section):
        return {"name": found.name, "about": found.about, "settings": [_plain(each) for each in found.settings]}
    return {
        "name": found.name,
        "type": found.type,
        "default": found.default,
        "about": found.about,
        "built_in": built_in_value(found),
    }


def built_in_value(setting: Setting) -> Any:
    """The value of a setting in the built-in experiment, by tier for those of tiers; None if it is the default."""
    recipe = tomllib.loads((files("potluck") / "run" / "recipes" / "digits.toml").read_text("utf-8"))
    section, *rest = setting.name.split(".")
    table = recipe.get(section) if rest else recipe
    if isinstance(table, list):
        found = {str(row["name"]): row[setting.key] for row in table if setting.key in row}
        return found if rest != ["name"] else list(found)
    if section in ("method", "model") and len(rest) > 1 and isinstance(table, Mapping):
        named, *rest = rest
        table = table if table.get("name") == named else {}
    value = table.get(setting.key) if isinstance(table, Mapping) and len(rest) < 2 else None
    return None if _text(value) == setting.default else value


def _text(value: Any) -> str:
    """A value as a settings file writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
