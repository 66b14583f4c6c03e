"""How alike the tiers' networks see the same rows: a heat map for each stage, and a picture of each network's last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.report.html import Markup, Series, charts, figure, heat_table, legend, palette, section, tag
from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.marks import DotsMark
from potluck.report.svg import Mark, PlotAxis, plot
from potluck.report.units import format_percent

MOST = 20
"""Classes that have a colour of their own; with more, all points look alike."""


@dataclass(frozen=True, slots=True)
class Stage:
    """CKA between tiers at one stage of their networks: 1 is the same, 0 is nothing in common."""

    name: str
    tiers: tuple[str, ...]
    cka: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """A tier's rows in the plane of its features' first two principal components."""

    tier: str
    stage: str
    shares: tuple[float | None, ...]
    """Of the variance, that the first and the second direction tell."""
    points: tuple[tuple[float, float, int | None], ...]
    """Across, up, and the row's class, if it has one."""


@dataclass(frozen=True, slots=True)
class Features:
    """What was seen of the tiers' networks when the run ended."""

    round: int | None = None
    rows: int | None = None
    stages: tuple[Stage, ...] = ()
    planes: tuple[Plane, ...] = ()


def features_of(found: Json) -> Features:
    """The record in a run folder, read; what it lacks leaves gaps."""
    labels = [integer(label) for label in sequence(found.get("labels"))]
    stages = tuple(_stage(mapping(each)) for each in sequence(found.get("stages")))
    planes = tuple(_plane(mapping(each), labels) for each in sequence(found.get("planes")))
    return Features(
        integer(found.get("round")),
        integer(found.get("rows")),
        tuple(stage for stage in stages if len(stage.tiers) > 1 and stage.cka),
        tuple(plane for plane in planes if plane.points),
    )


def _stage(found: Json) -> Stage:
    tiers = tuple(text(tier) for tier in sequence(found.get("tiers")))
    table = tuple(tuple(number(value) for value in sequence(row)) for row in sequence(found.get("cka")))
    square = len(table) == len(tiers) and all(len(row) == len(tiers) for row in table)
    return Stage(text(found.get("name")), tiers, table if square else ())


def _plane(found: Json, labels: Sequence[int | None]) -> Plane:
    points = []
    for place, pair in enumerate(sequence(found.get("points"))):
        ends = [number(value) for value in sequence(pair)]
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            points.append((ends[0], ends[1], labels[place] if place < len(labels) else None))
    shares = tuple(number(share) for share in sequence(found.get("shares")))
    return Plane(text(found.get("tier")), text(found.get("stage")), shares, tuple(points))


def alike_section(seen: Features) -> Markup | None:
    """Heat maps and pictures; nothing where nobody looked."""
    if not seen.stages and not seen.planes:
        return None
    after = "" if seen.round is None else f" after round {seen.round}"
    rows = "test rows" if seen.rows is None else f"{seen.rows} test rows"
    words = f"The server's network of each tier{after}, looking at the same {rows}; features are means over places."
    return section("What the networks see", tag("p", words, class_="note"), _maps(seen.stages), _pictures(seen.planes))


def _maps(stages: Sequence[Stage]) -> Markup | None:
    if not stages:
        return None
    told = "Linear CKA between tiers, stage by stage: 1 is the same up to a turn. Stages that tiers share are the same."
    figures = (figure(stage.name, heat_table(stage.tiers, stage.tiers, stage.cka, 1.0)) for stage in stages)
    return tag("div", tag("h3", "Likeness"), tag("p", told, class_="note"), charts(*figures, small=True))


def _pictures(planes: Sequence[Plane]) -> Markup | None:
    if not planes:
        return None
    classes = sorted({label for plane in planes for _, _, label in plane.points if label is not None})
    painted = _painted(classes)
    told = "Each dot is a row, where the last stage's first two principal components put it; colours are classes."
    figures = (figure(f"{plane.tier}: {plane.stage}", _picture(plane, painted)) for plane in planes)
    keys = legend(list(painted.values())) if painted else None
    return tag(
        "div", tag("h3", "Features"), tag("p", told, class_="note"), keys, charts(*figures, small=True), data_scope=""
    )


def _painted(classes: Sequence[int]) -> dict[int, Series]:
    """A colour for each class: the page's own, or around the wheel where there are more classes than those."""
    if len(classes) > MOST:
        return {}
    if len(classes) <= 8:
        return dict(zip(classes, palette(f"class {label}" for label in classes), strict=True))
    turn = 360 / len(classes)
    return {
        label: Series(f"s{place}", f"class {label}", f"hsl({place * turn:.0f} 65% {45 + 10 * (place % 2)}%)")
        for place, label in enumerate(classes)
    }


def _picture(plane: Plane, painted: dict[int, Series]) -> Markup:
    plain = Series("rows", "rows", "var(--c0)")
    groups: dict[Series, list[tuple[float, float, str]]] = {}
    for across, up, label in plane.points:
        series = plain if label is None else painted.get(label, plain)
        groups.setdefault(series, []).append((across, up, "" if label is None else f"class {label}"))
    marks: list[Mark] = [DotsMark(series, groups[series], 2.6) for series in sorted(groups, key=lambda one: one.key)]
    names = [
        f"{name} component" + (f" ({format_percent(share, 0)} of variance)" if share is not None else "")
        for name, share in zip(("first", "second"), (*plane.shares, None, None), strict=False)
    ]
    return plot(marks, PlotAxis(names[0]), PlotAxis(names[1]), f"Features of {plane.tier} in the plane")
