"""Answers a shell that asks how a command line could go on. It must be quick, and never say an error."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

VARIABLE = "_POTLUCK_COMPLETE"
"""In the environment if a shell asks: complete_bash, complete_zsh, ...; or source_bash, ... for the script."""
MARKS = (":", "=")
"""Where bash cuts a word into several."""


def asked() -> bool:
    """Whether a shell asks for completions."""
    return bool(os.environ.get(VARIABLE))


def answer(command: Any) -> int:
    """Prints what the shell asks for; nothing at all if that fails."""
    from typer.completion import shell_complete

    instruction = os.environ[VARIABLE]
    if not instruction.startswith("complete_"):
        return int(shell_complete(command, {}, "potluck", VARIABLE, instruction))
    before, out, code = "", io.StringIO(), 0
    with suppress(Exception), redirect_stdout(out), redirect_stderr(io.StringIO()):
        before = _join_cut_words() if instruction == "complete_bash" else ""
        try:
            shell_complete(command, {}, "potluck", VARIABLE, instruction)
        except SystemExit as end:  # so fish is told whether there is something
            code = int(str(end.code or 0))
    print("\n".join(line.removeprefix(before) for line in out.getvalue().splitlines()))
    return code


def _join_cut_words() -> str:
    """Undoes that bash cuts words at marks; returns what of the word at the cursor comes before the last mark."""
    words = os.environ.get("COMP_WORDS", "").split()
    at = int(os.environ.get("COMP_CWORD", "0") or 0)
    joined: list[str] = []
    cursor = 0
    for number, word in enumerate(words[: at + 1]):
        glue = joined and number > 1 and (word in MARKS or words[number - 1] in MARKS)
        joined[-1:] = [joined[-1] + word] if glue else [*joined[-1:], word]
        cursor = len(joined) - 1
    if len(words) <= at:
        joined.append("")
        cursor = len(joined) - 1
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(cursor)}
    cut = max((joined[cursor].rfind(mark) for mark in MARKS), default=-1) if len(joined) <= at else -1
    return joined[cursor][: cut + 1]


def quietly(complete: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """A completion that offers nothing where it fails."""

    def safe(incomplete: str) -> list[str]:
        try:
            return complete(incomplete)
        except Exception:
            return []

    return safe


@quietly
def method_names(incomplete: str) -> list[str]:
    """Methods whose name goes on like this."""
    return [name for name in _methods() if name.startswith(incomplete)]


@quietly
def method_list(incomplete: str) -> list[str]:
    """Lists of methods, of which the last one goes on like this; after its name and a colon, its settings."""
    done, comma, last = incomplete.rpartition(",")
    name, colon, pairs = last.rpartition(":")
    if not colon:
        return [f"{done}{comma}{each}" for each in method_names(last)]
    wanted = name.partition(":")[0]
    settings = _methods().get(wanted, {})
    return [f"{done}{comma}{name}:{each}" for each in _with_values(settings, pairs)]


@quietly
def settings(incomplete: str) -> list[str]:
    """Settings that go on like this, as --set has them: section.key=value."""
    from potluck.reference import read_reference

    known: dict[str, list[str]] = {}
    for section in read_reference().sections:
        kind, _, rest = section.name.partition(".")
        # What users write has no name of a method in it: method.mu, and not method.fedprox.mu.
        start = f"{kind}." if kind in ("method", "model") and "." not in rest else f"{section.name}."
        for setting in section.settings:
            known.setdefault(f"{start}{setting.key}".lstrip("."), _values(setting))
    return _with_values(known, incomplete)


@quietly
def explained(incomplete: str) -> list[str]:
    """Names that `potluck explain` knows and that go on like this; of methods and models, short ones too."""
    from potluck.reference import explained_names, read_reference

    names = explained_names(read_reference())
    short = [
        name.partition(".")[2] for name in names if name.startswith(("method.", "model.")) and name.count(".") == 1
    ]
    return [name for name in dict.fromkeys([*names, *short]) if name.startswith(incomplete)]


@quietly
def run_folders(incomplete: str) -> list[str]:
    """Run folders whose path goes on like this; if there are none, the shell completes paths itself."""
    return _folders(incomplete, _is_run)


@quietly
def folders_of_runs(incomplete: str) -> list[str]:
    """Run folders, and folders that hold some, whose path goes on like this."""
    return _folders(incomplete, lambda each: _is_run(each) or (each.is_dir() and any(map(_is_run, each.iterdir()))))


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


def _folders(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    start = Path(incomplete or "runs/") if not incomplete or incomplete.endswith("/") else Path(incomplete).parent
    return [str(each) for each in sorted(start.iterdir()) if str(each).startswith(incomplete) and wanted(each)]


def _methods() -> dict[str, dict[str, list[str]]]:
    """Every method with its settings and their values."""
    from potluck.reference import read_reference

    return {
        section.heading: {each.key: _values(each) for each in section.settings}
        for section in read_reference().sections
        if section.name == f"method.{section.heading}"
    }


def _values(setting: Any) -> list[str]:
    """The values that a setting may have, or else its default."""
    if setting.choices:
        return list(setting.choices)
    return [setting.default] if " " not in setting.default else []


def _with_values(known: dict[str, list[str]], incomplete: str) -> list[str]:
    """Keys that go on like this; if it is one alone, also its values: then a shell adds no space after the mark."""

    def offers() -> Iterator[str]:
        key, equals, value = incomplete.partition("=")
        names = [key] if equals and key in known else [name for name in known if not equals and name.startswith(key)]
        if not equals:
            yield from (f"{name}=" for name in names)
        if len(names) == 1:
            yield from (f"{names[0]}={each}" for each in known[names[0]] if each.startswith(value))

    return list(offers())
