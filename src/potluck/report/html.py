"""HTML from Python: elements with escaped text, tables, legends, figures, cards and sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def note(words: str) -> Markup:
    """A paragraph in small type that explains a table or a chart."""
    return tag("p", words, class_="note")


def collapsible(summary: str, *children: str | None, open_: bool = False) -> Markup:
    """A part of the page that a click on its summary shows or hides."""
    return tag("details", tag("summary", summary), *children, open=open_)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], groups: Sequence[tuple[str, int]] = (), kind: str = ""
) -> Markup:
    """A table that scrolls on a narrow screen. The first column names the row.

    `groups` adds a line above the head: (name, number of columns).
    """
    above = tag("tr", *(tag("th", name, colspan=span, class_="group") for name, span in groups)) if groups else None
    names = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = tag("tbody", *(tag("tr", _row_name(name), *(tag("td", cell) for cell in cells)) for name, *cells in rows))
    return _scroll_box(tag("table", tag("thead", above, names), body, class_=kind or None))


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


def _row_name(name: str) -> Markup:
    return tag("th", tag("div", name), scope="row")


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


def palette(labels: Iterable[str], start: int = 0) -> list[Series]:
    """One series per label: eight colours that colour-blind people can tell apart, then the same colours dashed."""
    dashes = ("", "7 3", "2 3")
    return [
        Series(f"s{index}", label, f"var(--c{index % 8})", dashes[index // 8 % 3])
        for index, label in enumerate(labels, start)
    ]


def legend(series: Iterable[Series]) -> Markup:
    """Names and colours. A click on a name hides or shows the series in all charts of the same scope."""
    return tag("div", *(_legend_entry(one) for one in series), class_="legend")


def _legend_entry(series: Series) -> Markup:
    style = f"stroke:{series.colour};stroke-width:3"
    line = tag("line", x1=1, x2=19, y1=4, y2=4, style=style, stroke_dasharray=series.dash or None)
    sample = tag("svg", line, viewBox="0 0 20 8", aria_hidden="true")
    return tag("button", sample, series.label, type="button", class_="key", data_key=series.key, aria_pressed="true")


def figure(caption: str, chart: Markup, series: Sequence[Series] = (), words: str = "") -> Markup:
    """A chart in a frame, with its caption, a note on how to read it and a legend."""
    above = note(words) if words else None
    return tag("figure", tag("figcaption", caption), above, legend(series) if series else None, chart)


def charts(*figures: Markup | None, small: bool = False) -> Markup:
    """Figures side by side. A click in one legend acts on all of them."""
    return tag("div", *figures, class_="charts small" if small else "charts", data_scope="")


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
