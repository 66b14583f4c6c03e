"""Text from clients and users, made fit for a line in a file or on a screen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_LETTERS = 300
"""The most letters of a reason or an error in the ledger."""


def nearest_name(wanted: object, known: Iterable[object]) -> str:
    """The known name that is most like a wrong one; empty if none is like it."""
    return next(iter(difflib.get_close_matches(str(wanted), [str(name) for name in known], 1)), "")


def suggestion(wanted: object, known: Iterable[object], otherwise: str | None = None) -> str:
    """The end of an error about an unknown name, with a space before it: the nearest known one, or `otherwise`.

    >>> suggestion("widht", ["width", "depth"])
    " Did you mean 'width'?"
    >>> suggestion("colour", ["width", "depth"])
    ' There are: width, depth.'
    """
    names = [str(name) for name in known]
    if near := nearest_name(wanted, names):
        return f" Did you mean '{near}'?"
    return f" There are: {', '.join(names)}." if otherwise is None else f" {otherwise}"


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """The text in one line of at most this many letters, without control characters; an ellipsis marks a cut."""
    start = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * most])
    line = " ".join(start.split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1]}…"
