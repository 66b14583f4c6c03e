"""HTML from Python: elements with escaped text, tables, legends, figures, tabs, cards and sections.

Everything is there without a script. `assets` adds what needs one: sorting, one series alone, saving, tabs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from potluck.report.units import GAP

VOID = frozenset({"meta", "br", "hr", "input"})
"""Elements without an end tag."""


class Markup(str):
    """Text that is HTML already. All other text is escaped before it enters the page."""

    __slots__ = ()


def escape_text(child: str | None) -> str:
    """The child as HTML; empty for None."""
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(child, quote=False)


def join(*children: str | None) -> Markup:
    """The children one after another."""
    return Markup("".join(map(escape_text, children)))


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` and `data_key` become `class` and `data-key`; None and False omit an attribute."""
    pairs = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join(*children)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    formatted = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(formatted)}"'


def section(title: str, *children: str | None) -> Markup:
    """A part of the page under a heading."""
    return tag("section", tag("h2", title), *children)


def foldable(title: str, fold: bool, *children: str | None) -> Markup:
    """A part of the page under a heading, or folded behind it where the page would become too long."""
    return collapsible(title, *children) if fold else section(title, *children)


def note(words: str) -> Markup:
    """A paragraph in small type that explains a table or a chart."""
    return tag("p", words, class_="note")


def collapsible(summary: str, *children: str | None, open_: bool = False) -> Markup:
    """A part of the page that a click on its summary shows or hides."""
    return tag("details", tag("summary", summary), *children, open=open_)


@dataclass(frozen=True)
class Cell:
    """Text that stands for a number. A table is sorted by the number, and saved with all its digits."""

    text: str
    value: float | None = None
    sd: float | None = None
    """The standard deviation of the value, if the text has one; saved as a column of its own."""
    tip: str = ""
    """What the pointer or the keyboard brings up."""
    mark: str = ""
    """"best" for the highest of a column, "lost" for a run without a result."""


@dataclass(frozen=True)
class RowName:
    """The first cell of a row about a method."""

    label: str
    note: str = ""
    """Signs and words behind the label; saved as a column of its own."""
    key: str = ""
    """The key of its series: a click on the row shows it alone in the charts of the same scope."""
    failed: bool = False
    """Whether it has no result. Such a row stays last, whatever the table is sorted by."""


TableCell = str | Cell | RowName


def number_cell(write: Callable[[float | None], str], value: float | None) -> Cell:
    """A number as `write` writes it."""
    return Cell(write(value), value)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[TableCell]],
    groups: Sequence[tuple[str, int]] = (),
    kind: str = "",
    *,
    last: Iterable[Sequence[TableCell]] = (),
    names: Sequence[str] = (),
    title: str = "table",
) -> Markup:
    """A table that scrolls on a narrow screen. The first column names the row.

    `groups` adds a line above the head: (name, number of columns). Rows in `last` stay at the end when the table is
    sorted. In a file, the columns have `names`, or else their heads, and the file is called by its `title`.
    """
    above = tag("tr", *(tag("th", name, colspan=span, class_="group") for name, span in groups)) if groups else None
    heads = tag("tr", *(tag("th", name, scope="col") for name in head))
    first, end = [_table_row(row) for row in rows], [_table_row(row) for row in last]
    bodies = join(tag("tbody", *first), tag("tbody", *end) if end else None)
    saved = json.dumps(names, ensure_ascii=False) if names else None
    whole = tag("table", tag("thead", above, heads), bodies, class_=kind or None, data_title=title, data_names=saved)
    return _scroll_box(whole)


def _table_row(row: Sequence[TableCell]) -> Markup:
    name, *cells = row
    method = name if isinstance(name, RowName) else None
    attributes = {"data_key": method.key or None, "class_": "no-result" if method.failed else None} if method else {}
    return tag("tr", _row_name(name), *map(_table_cell, cells), **attributes)


def _table_cell(cell: TableCell) -> Markup:
    if not isinstance(cell, Cell):
        return tag("td", cell if isinstance(cell, str) else cell.label)
    numbers = {"data_value": all_digits(cell.value), "data_sd": all_digits(cell.sd)}
    words = tag("span", cell.text, class_=cell.mark) if cell.mark else cell.text
    return tag("td", words, **numbers, data_tip=cell.tip or None)


def all_digits(value: float | None) -> str | None:
    """A number as text that reads back as the same number."""
    return None if value is None else repr(float(value)).removesuffix(".0")


def heat_table(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], most: float
) -> Markup:
    """A heat map as a table: the larger a number, the darker its cell; `most` is the darkest."""
    head = tag("tr", tag("th"), *(tag("th", name, scope="col") for name in columns))
    body = (
        tag("tr", _row_name(name), *(_heat_cell(value, most) for value in line))
        for name, line in zip(rows, values, strict=True)
    )
    return _scroll_box(tag("table", tag("thead", head), tag("tbody", *body), class_="heat"))


def _heat_cell(value: float | None, most: float) -> Markup:
    if value is None:
        return tag("td", GAP)
    return tag("td", f"{value:.2f}", style=f"--heat:{60 * min(max(value / most, 0.0), 1.0):.0f}%")


def _row_name(name: TableCell) -> Markup:
    if isinstance(name, RowName):
        words = tag("div", name.label + name.note)
        return tag("th", words, scope="row", data_name=name.label, data_note=name.note.strip() or None)
    return tag("th", tag("div", name if isinstance(name, str) else name.text), scope="row")


def _scroll_box(whole: Markup) -> Markup:
    return tag("div", whole, class_="scroll", tabindex=0)


@dataclass(frozen=True)
class Series:
    """What the marks of one method, tier or class share: a name, a colour and a legend entry."""

    key: str
    label: str
    colour: str
    dash: str = ""
    thick: bool = False


COLOURS = 8
"""Colours that colour-blind people can tell apart. A chart of methods has no more lines than that."""


def palette(labels: Iterable[str], start: int = 0) -> list[Series]:
    """One series per label, each in a colour of its own; if there are too many, the same colours again, dashed."""
    dashes = ("", "7 3", "2 3")
    return [
        Series(f"s{index}", label, f"var(--c{index % COLOURS})", dashes[index // COLOURS % 3])
        for index, label in enumerate(labels, start)
    ]


def legend(series: Iterable[Series]) -> Markup:
    """Names and colours. A click on a name shows it alone in all charts of the same scope."""
    return tag("div", *(_legend_entry(one) for one in series), class_="legend")


def _legend_entry(series: Series) -> Markup:
    style = f"stroke:{series.colour};stroke-width:3"
    line = tag("line", x1=1, x2=19, y1=4, y2=4, style=style, stroke_dasharray=series.dash or None)
    sample = tag("svg", line, viewBox="0 0 20 8", aria_hidden="true")
    return tag("button", sample, series.label, type="button", class_="key", data_key=series.key, aria_pressed="false")


def figure(caption: str, chart: Markup, series: Sequence[Series] = (), words: str = "") -> Markup:
    """A chart in a frame, with its caption, a note on how to read it and a legend."""
    above = note(words) if words else None
    return tag("figure", tag("figcaption", caption), above, legend(series) if series else None, chart)


def charts(*figures: Markup | None, small: bool = False, kind: str = "") -> Markup:
    """Figures side by side. A click in one legend acts on all of them, and so does the switch of their axes."""
    return tag("div", *figures, class_=kind or ("charts small" if small else "charts"), data_scope="")


def tabs(name: str, *parts: tuple[str, Markup]) -> Markup:
    """Parts of which the reader chooses one by its title; without a script they stand one below the other."""
    if len(parts) == 1:
        return parts[0][1]
    shown = (tag("div", tag("h4", title), part, data_tab=title) for title, part in parts)
    return tag("div", *shown, data_tabs=name)


def colour_list(series: Iterable[Series]) -> Markup:
    """Names and colours that are no buttons."""
    dots = (tag("span", tag("i", style=f"background:{one.colour}"), one.label) for one in series)
    return tag("div", *dots, class_="states")


def card(title: str, value: str, *lines: str) -> Markup:
    """One number in large type."""
    details = (tag("span", line) for line in lines if line)
    return tag("div", tag("span", title), tag("b", value), *details, class_="card")


def cards(*found: Markup) -> Markup:
    """Cards side by side."""
    return tag("div", *found, class_="cards")


def bar_list(caption: str, rows: Sequence[tuple[Series, float | None, str]], words: str) -> Markup:
    """Horizontal bars that start at zero, each with its name and its value as text."""
    most = max((value for _, value, _ in rows if value is not None), default=0.0)
    bars = (_bar(series, (value or 0.0) / most if most else 0.0, text) for series, value, text in rows)
    return tag("figure", tag("figcaption", caption), note(words), *bars)


def _bar(series: Series, share: float, text: str) -> Markup:
    bar = tag("i", style=f"width:{100 * share:.1f}%;background:{series.colour}")
    return tag("div", tag("span", series.label), tag("span", text), tag("div", bar), class_="meter")
