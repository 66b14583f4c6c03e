"""A table whose cells are the darker, the larger their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.markup import Markup, tag
from potluck.report.units import GAP


def heat(down: Sequence[str], across: Sequence[str], values: Sequence[Sequence[float | None]], most: float) -> Markup:
    """A line for each name down, a column for each across; `most` is the number that is darkest."""
    head = tag("tr", tag("th"), *(tag("th", name, scope="col") for name in across))
    rows = (
        tag("tr", tag("th", tag("div", name), scope="row"), *(_cell(value, most) for value in row))
        for name, row in zip(down, values, strict=True)
    )
    whole = tag("table", tag("thead", head), tag("tbody", *rows), class_="heat")
    return tag("div", whole, class_="scroll", tabindex=0)


def _cell(value: float | None, most: float) -> Markup:
    if value is None:
        return tag("td", GAP)
    return tag("td", f"{value:.2f}", style=f"--heat:{60 * min(max(value / most, 0.0), 1.0):.0f}%")
