"""HTML and SVG from Python: whatever is not markup already is escaped."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is HTML already. Everything else is escaped on its way into the page."""

    __slots__ = ()


VOID = frozenset({"meta", "br", "hr", "input"})


def safe(child: str | None) -> str:
    """The child as HTML; nothing for None."""
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(child, quote=False)


def join(*children: str | None) -> Markup:
    """Children one after another."""
    return Markup("".join(map(safe, children)))


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` and `data_key` become `class` and `data-key`; None and False leave an attribute out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    written = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(written)}"'


def table(
    head: list[str], rows: list[list[str]], groups: list[tuple[str, int]] | None = None, kind: str = ""
) -> Markup:
    """A table in its own scroll box: the first column names the row, `groups` spans a line above the head."""
    above = tag("tr", *(tag("th", name, colspan=span, class_="group") for name, span in groups)) if groups else None
    names = tag("tr", *(tag("th", name, scope="col") for name in head))
    lines = tag("tbody", *(_line(*row) for row in rows))
    whole = tag("table", tag("thead", above, names), lines, class_=kind or None)
    return tag("div", whole, class_="scroll", tabindex=0)


def _line(name: str, *cells: str) -> Markup:
    return tag("tr", tag("th", tag("div", name), scope="row"), *(tag("td", cell) for cell in cells))


def fold(summary: str, *children: str | None, open_: bool = False) -> Markup:
    """A part of the page that opens on a click."""
    return tag("details", tag("summary", summary), *children, open=open_)
