"""The reference as a page: docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.reference.records import FileLayout, Reference, Section, Setting
from potluck.reference.types import in_code, rows

INTRO = """\
<!-- Made from the docstrings by `make reference`. Change them there. -->
# Settings and files

An experiment is a TOML file. Every setting has a default, so a file names only what differs.
`--set section.key=value` changes one from the command line, and `potluck explain local.lr` prints what stands here.
*not set* is None in Python: a file says it by leaving the setting out.
"""
FILES = {
    "run": "## The files of a run\n\nWhat `potluck run` keeps, and every other command reads.",
    "data": "## The files that [data] reads\n\n`data.name` says which of these `data.path` holds "
    "([data of your own](data.md)).",
}


def settings_page(reference: Reference) -> str:
    """The whole page, as Markdown."""
    parts = [INTRO]
    for section in reference.sections:
        parts.append("\n".join(_section(section)))
    for group, heading in FILES.items():
        parts += [heading, *(_layout(each) for each in reference.layouts if each.group == group)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"{'###' if '.' in section.name else '##'} {section.heading}"
    yield ""
    yield section.about
    if section.aliases:
        yield f" Also: {', '.join(f'`{name}`' for name in section.aliases)}."
    if section.settings:
        yield ""
        yield from rows([("setting", "type", "default", "meaning"), ("---",) * 4])
        yield from rows(_row(each) for each in section.settings)


def _row(setting: Setting) -> tuple[str, ...]:
    default = setting.default if setting.default.startswith(("as in", "see", "not set")) else f"`{setting.default}`"
    return f"`{setting.key}`", in_code(setting.type), default, setting.about


def _layout(layout: FileLayout) -> str:
    return f"### {layout.name}\n\n{layout.text}"
