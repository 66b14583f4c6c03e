"""Text from clients and users, made fit for a line in a file or on a screen."""

from __future__ import annotations

MOST_LETTERS = 300
"""The most letters of a reason or an error in the ledger."""


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """The text in one line of at most this many letters, without control characters; an ellipsis marks a cut."""
    start = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * most])
    line = " ".join(start.split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1]}…"
