"""Text for the terminal: what users and files wrote must not command it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


def visible(text: str) -> str:
    """The text with a mark in place of every control character, such as those that colour or clear a screen."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)


class SafeConsole(Console):
    """A console that shows control characters of a text as marks. Its own colours are not part of the text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
