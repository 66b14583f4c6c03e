"""Who holds what: rows of each label and client as a heat map, grouped by tier, with the clients' rows above it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.ledger import write_atomically
from potluck.report.html import (
    Markup,
    Series,
    TableCell,
    colour_list,
    note,
    number_cell,
    palette,
    section,
    table,
    tag,
)
from potluck.report.json_values import Json, integer, mapping, sequence, text
from potluck.report.page_frame import make_folder, whole_page
from potluck.report.units import format_count, format_short

MAX_CLIENTS, MAX_LABELS, MAX_COUNT = 240, 60, 10**15
"""More clients or labels than this, or a larger count, are no record of ours."""
LEVELS = 6
"""Shades of a cell."""
WIDTH, RIGHT, TOP, BARS, SPACE = 640.0, 6.0, 14.0, 44.0, 6.0
"""The picture's width, its right and upper margin, the height of the bars, and the space between tiers."""
WIDEST_CELL, LETTER, LETTERS = 18.0, 6.2, 14
"""The widest cell; the width of a letter, and how many of a label's name are shown."""
MAX_TIP = 6
"""Labels that the text at the pointer names."""


@dataclass(frozen=True, slots=True)
class ClientHoldings:
    """The training rows of one client."""

    client: str
    tier: str
    counts: tuple[int, ...]
    """Rows of each label; of rows without a single label, their number."""

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def labels(self) -> int:
        """How many labels it holds."""
        return sum(count > 0 for count in self.counts)


@dataclass(frozen=True, slots=True)
class TierClients:
    """A tier, and how many clients it has in all."""

    name: str
    clients: int | None
    absent: bool = False

    @property
    def title(self) -> str:
        return (self.name or "all") + (" (absent)" if self.absent else "")


@dataclass(frozen=True, slots=True)
class HoldingsRecord:
    """Who holds what, of some clients."""

    partition: str = ""
    clients: int | None = None
    """How many clients there are."""
    labels: tuple[str, ...] = ()
    """Empty if rows have no single label."""
    tiers: tuple[TierClients, ...] = ()
    held: tuple[ClientHoldings, ...] = ()

    def of_tier(self, tier: TierClients) -> list[ClientHoldings]:
        """The clients of a tier."""
        return [each for each in self.held if each.tier == tier.name]

    @property
    def sample(self) -> str:
        """Which clients are shown."""
        shown, there = len(self.held), self.clients
        if there is None or there <= shown:
            return f"{format_count(shown)} clients"
        return f"{format_count(shown)} of {format_count(there)} clients, evenly spaced in every tier"


def parse_holdings(found: Json) -> HoldingsRecord:
    """The record out of the JSON of a run folder; a client with a missing or broken value is left out."""
    labels = tuple(_name(label) for label in sequence(found.get("labels"))[:MAX_LABELS])
    clients = [_parse_client(mapping(each), max(1, len(labels))) for each in sequence(found.get("held"))[:MAX_CLIENTS]]
    held = tuple(each for each in clients if each is not None)
    declared = [mapping(each) for each in sequence(found.get("tiers"))]
    tiers = {
        _name(each.get("name")): TierClients(
            _name(each.get("name")), integer(each.get("clients")), each.get("absent") is True
        )
        for each in declared
    }
    for each in held:
        tiers.setdefault(each.tier, TierClients(each.tier, None))
    known = {each.tier for each in held}
    shown = tuple(tier for tier in tiers.values() if tier.name in known)
    return HoldingsRecord(text(found.get("partition")), integer(found.get("clients")), labels, shown, held)


def _parse_client(found: Json, columns: int) -> ClientHoldings | None:
    counts = [integer(count) for count in sequence(found.get("counts"))]
    good = tuple(count for count in counts if count is not None and 0 <= count <= MAX_COUNT)
    whole = len(good) == len(counts) == columns
    return ClientHoldings(_name(found.get("client")), _name(found.get("tier")), good) if whole else None


def _name(value: object) -> str:
    """A name without control characters, which no SVG file may hold."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text(value))


def holdings_section(found: HoldingsRecord, colours: Mapping[str, str] | None = None) -> Markup | None:
    """The picture and a table of tiers; None if nothing was recorded. `colours`: those of the tiers."""
    if not found.held:
        return None
    series = tier_colours(found, colours)
    frame = tag("figure", colour_list(series.values()), holdings_svg(found, series))
    return section("Who holds what", note(how_to_read(found)), frame, tier_table(found))


def how_to_read(found: HoldingsRecord) -> str:
    """What the picture shows, in words."""
    words = f"Training rows of {found.sample}"
    words += f", by the partition “{found.partition}”." if found.partition else "."
    if not found.labels:
        return f"{words} One bar per client; rows have no single label."
    most = max(count for each in found.held for count in each.counts)
    words += " Each column is a client: its rows above, and below how many are of each label."
    return f"{words} The darkest cell is {format_count(most)} rows."


def tier_colours(found: HoldingsRecord, colours: Mapping[str, str] | None = None) -> dict[str, Series]:
    """A series for each tier, by its name."""
    usual = palette(tier.title for tier in found.tiers)
    given = {} if colours is None else dict(colours)
    return {
        tier.name: Series(one.key, one.label, given.get(tier.name, "var(--muted)" if given else one.colour))
        for tier, one in zip(found.tiers, usual, strict=True)
    }


def tier_table(found: HoldingsRecord) -> Markup:
    """Rows and labels per client, for each tier."""
    head = ["", "clients", "rows per client", "fewest", "most", *["labels per client"] * bool(found.labels)]
    rows = []
    for tier in found.tiers:
        theirs = found.of_tier(tier)
        sizes = [each.rows for each in theirs]
        cells: list[TableCell] = [tier.title, number_cell(format_count, tier.clients), *_mean_least_most(sizes)]
        if found.labels:
            cells.append(number_cell(format_short, sum(each.labels for each in theirs) / len(theirs)))
        rows.append(cells)
    return table(head, rows, title="who holds what")


def _mean_least_most(sizes: Sequence[int]) -> list[TableCell]:
    mean = number_cell(format_short, sum(sizes) / len(sizes))
    return [mean, number_cell(format_count, min(sizes)), number_cell(format_count, max(sizes))]


@dataclass(frozen=True)
class _Layout:
    """Where the columns and rows of the picture are."""

    left: float
    cell: float
    row: float
    labels: int

    @property
    def top(self) -> float:
        """Where the cells begin."""
        return TOP + BARS + SPACE

    @property
    def bottom(self) -> float:
        """Where the cells end."""
        return self.top + self.row * self.labels

    def level(self, label: int) -> float:
        """The upper edge of a label's row."""
        return self.top + self.row * label


def _layout(found: HoldingsRecord) -> _Layout:
    letters = max((min(len(label), LETTERS) for label in found.labels), default=0)
    left = max(40.0, 8 + LETTER * letters)
    free = WIDTH - left - RIGHT - SPACE * (len(found.tiers) - 1)
    row = 16.0 if len(found.labels) <= 12 else 11.0
    return _Layout(left, min(WIDEST_CELL, free / len(found.held)), row, len(found.labels))


def _places(found: HoldingsRecord, at: _Layout) -> Iterator[tuple[TierClients, float, list[ClientHoldings]]]:
    """Each tier with the left edge of its first column, and its clients."""
    place = at.left
    for tier in found.tiers:
        theirs = found.of_tier(tier)
        yield tier, place, theirs
        place += at.cell * len(theirs) + SPACE


def holdings_svg(found: HoldingsRecord, series: Mapping[str, Series]) -> Markup:
    """The picture: bars for rows, cells for labels, and below a line in the colour of the tier, with its name if it
    fits."""
    at, most = _layout(found), max(each.rows for each in found.held)
    cells: dict[int, str] = dict.fromkeys(range(1, LEVELS + 1), "")
    darkest = max(count for each in found.held for count in each.counts)
    bars, tips = [], []
    for tier, start, theirs in _places(found, at):
        colour = series[tier.name].colour
        path = "".join(_bar(at, start + at.cell * place, each.rows, most) for place, each in enumerate(theirs))
        width = at.cell * len(theirs)
        line = tag("rect", x=f"{start:.1f}", y=f"{at.bottom + 3:.1f}", width=f"{width:.1f}", height=3)
        bars.append(tag("g", tag("path", d=path), line, style=f"fill:{colour}"))
        if tier.name and len(tier.title) * LETTER <= width:
            bars.append(tag("text", tier.title, x=f"{start + width / 2:.1f}", y=at.bottom + 18, text_anchor="middle"))
        for place, each in enumerate(theirs):
            left = start + at.cell * place
            for label, count in enumerate(each.counts if found.labels else ()):
                if count:
                    cells[shade(count, darkest)] += _cell(at, left, label)
            tips.append(_tip(at, left, found, tier, each))
    shades = (
        tag("path", d=path, style=f"fill:var(--c0);fill-opacity:{level / LEVELS:.2f}")
        for level, path in cells.items()
        if path
    )
    height = at.bottom + 24
    return tag(
        "svg",
        *_words(found, at, most),
        *bars,
        *shades,
        *tips,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=f"Rows that clients hold, by label: {found.sample}",
        class_="chart",
    )


def shade(count: int, most: int) -> int:
    """The shade of a cell, from 1 to 6: the root of its share of the most, so that few rows are seen too."""
    return max(1, math.ceil(LEVELS * math.sqrt(count / most)))


def _words(found: HoldingsRecord, at: _Layout, most: int) -> Iterator[Markup]:
    yield tag("text", format_count(most), x=at.left - 5, y=TOP + 10, text_anchor="end")
    yield tag("text", "rows", x=at.left - 5, y=TOP + 23, text_anchor="end")
    base = f"{TOP + BARS:.1f}"
    yield tag("line", x1=at.left, x2=WIDTH - RIGHT, y1=base, y2=base, class_="grid")
    for label, name in enumerate(found.labels):
        shown = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        yield tag("text", shown, x=at.left - 5, y=f"{at.level(label) + at.row / 2:.1f}", dy="0.35em", text_anchor="end")


def _bar(at: _Layout, left: float, rows: int, most: int) -> str:
    height = BARS * rows / most if most else 0.0
    return f"M{left + 0.5:.1f} {TOP + BARS:.1f}v-{height:.1f}h{max(0.5, at.cell - 1):.1f}v{height:.1f}z"


def _cell(at: _Layout, left: float, label: int) -> str:
    width, height = max(0.5, at.cell - 1), at.row - 1
    return f"M{left + 0.5:.1f} {at.level(label):.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _tip(at: _Layout, left: float, found: HoldingsRecord, tier: TierClients, each: ClientHoldings) -> Markup:
    """A column that the eye does not see and the pointer does."""
    edges = {"x": f"{left:.1f}", "y": f"{TOP:.1f}", "width": f"{at.cell:.1f}", "height": f"{at.bottom - TOP:.1f}"}
    return tag("rect", **edges, fill="transparent", data_tip=describe_client(found, tier, each))


def describe_client(found: HoldingsRecord, tier: TierClients, each: ClientHoldings) -> str:
    """A client's rows in words: "c3 (phone): 40 rows; 7: 30, 2: 10"."""
    words = f"{each.client}{f' ({tier.title})' if tier.name else ''}: {format_count(each.rows)} rows"
    pairs = sorted(zip(each.counts, found.labels, strict=False), key=lambda pair: -pair[0])
    named = [f"{name}: {format_count(count)}" for count, name in pairs if count]
    more = ", …" if len(named) > MAX_TIP else ""
    return f"{words}; {', '.join(named[:MAX_TIP])}{more}" if named else words


LIGHT = (
    ":root{--c0:#0069b9;--c1:#cc5200;--c2:#009a63;--c3:#ad2f80;--c4:#d8a400;--c5:#33aaf2;--c6:#1b2230;--c7:#574d00;"
    "--muted:#6b6f76}svg{background:#fff}text{font:11px system-ui,sans-serif;fill:#5a6475}.grid{stroke:#e3e7ed}"
)
"""What the style sheet of a page gives a picture, for one that is alone in a file."""


def write_holdings(found: HoldingsRecord, to: Path, title: str) -> Path:
    """Writes the picture into a file of its own: a page, or an SVG if the file's name ends so."""
    make_folder(to.parent)
    drawn = _svg_file(found) if to.suffix.lower() == ".svg" else _page(found, title)
    write_atomically(to, drawn.encode(errors="replace"))
    return to


def _page(found: HoldingsRecord, title: str) -> str:
    return whole_page(title, tag("p", "Before round 0.", class_="lede"), holdings_section(found) or Markup(""))


def _svg_file(found: HoldingsRecord) -> str:
    start, _, rest = holdings_svg(found, tier_colours(found)).removeprefix("<svg").partition(">")
    return f'<svg xmlns="http://www.w3.org/2000/svg"{start}>{tag("style", Markup(LIGHT))}{rest}\n'
