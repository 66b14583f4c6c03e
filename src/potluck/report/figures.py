"""The pieces pages are made of: a framed chart, its legend, number cards, meters."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.chart import Series
from potluck.report.markup import Markup, tag


def legend(series: Sequence[Series]) -> Markup:
    """Names and colours; a click hides or shows a series wherever the legend's scope reaches."""
    return tag("div", *(_key(one) for one in series), class_="legend")


def _key(series: Series) -> Markup:
    dash = series.dash or None
    style = f"stroke:{series.colour};stroke-width:3"
    line = tag("line", x1=1, x2=19, y1=4, y2=4, style=style, stroke_dasharray=dash)
    swatch = tag("svg", line, viewBox="0 0 20 8", aria_hidden="true")
    return tag("button", swatch, series.label, type="button", class_="key", data_key=series.key, aria_pressed="true")


def figure(caption: str, chart: Markup, series: Sequence[Series] = (), note: str = "") -> Markup:
    """A chart in its frame: what it shows, the legend, a note on how to read it."""
    words = tag("p", note, class_="note") if note else None
    return tag("figure", tag("figcaption", caption), words, legend(series) if series else None, chart)


def charts(*figures: Markup | None, small: bool = False) -> Markup:
    """Figures side by side where there is room; their legends act together."""
    return tag("div", *figures, class_="charts small" if small else "charts", data_scope="")


def card(title: str, value: str, *lines: str) -> Markup:
    """One number worth showing large."""
    return tag(
        "div", tag("span", title), tag("b", value), *(tag("span", line) for line in lines if line), class_="card"
    )


def cards(found: Sequence[Markup]) -> Markup:
    return tag("div", *found, class_="cards")


def meters(caption: str, rows: Sequence[tuple[Series, float | None, str]], note: str = "") -> Markup:
    """Lying bars from zero, each with its name and its value as text."""
    most = max((value for _, value, _ in rows if value is not None), default=0.0)
    lines = (_meter(series, (value or 0.0) / most if most else 0.0, text) for series, value, text in rows)
    words = tag("p", note, class_="note") if note else None
    return tag("figure", tag("figcaption", caption), words, *lines)


def _meter(series: Series, share: float, text: str) -> Markup:
    bar = tag("i", style=f"width:{100 * share:.1f}%;background:{series.colour}")
    return tag("div", tag("span", series.label), tag("span", text), tag("div", bar), class_="meter")


def section(title: str, *children: str | None) -> Markup:
    """A heading and what belongs under it."""
    return tag("section", tag("h2", title), *children)
