"""Features of networks at the end of a run: CKA between tiers and between clients, and planes by PCA or t-SNE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.report.html import (
    Cell,
    Markup,
    RowName,
    Series,
    TableCell,
    charts,
    figure,
    heat_table,
    join,
    legend,
    note,
    palette,
    section,
    table,
    tag,
)
from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.marks import DotsMark
from potluck.report.multiples import MethodRuns
from potluck.report.summary import mean_of, mean_sd, sd_of
from potluck.report.svg import PlotAxis, plot
from potluck.report.units import GAP, format_percent

MAX_COLOURS = 20
"""With more classes than this, all points get the same colour."""


@dataclass(frozen=True, slots=True)
class FeatureStage:
    """Linear CKA between tiers or clients at one stage of their networks: 1 is the same, 0 is nothing in common."""

    name: str
    whose: tuple[str, ...]
    """The tiers or clients."""
    tiers: tuple[str, ...]
    """The tier of each client; empty if tiers are compared."""
    cka: tuple[tuple[float | None, ...], ...]
    mean: float | None = None
    """The mean over pairs of different clients."""


@dataclass(frozen=True, slots=True)
class FeaturePlane:
    """A tier's features of each row, in the plane."""

    tier: str
    stage: str
    shares: tuple[float | None, ...]
    """Share of the variance that each component explains."""
    separation: float | None
    """How clearly classes lie apart in the features themselves: the mean silhouette, from -1 to 1."""
    points: tuple[tuple[float, float, int | None], ...]
    """(across, up, class of the row)"""


@dataclass(frozen=True, slots=True)
class FeatureRecord:
    """What the run folder says about the features of the tiers' and the clients' networks."""

    round: int | None = None
    rows: int | None = None
    stages: tuple[FeatureStage, ...] = ()
    clients: tuple[FeatureStage, ...] = ()
    planes: tuple[FeaturePlane, ...] = ()
    plane: str = "pca"
    """How the features were brought into the plane: "pca" or "tsne"."""


def parse_features(found: Json) -> FeatureRecord:
    """The features out of the JSON of a run folder; a missing or broken value leaves a gap."""
    labels = [integer(label) for label in sequence(found.get("labels"))]
    told = mapping(found.get("clients"))
    tiers = {client: text(tier) for client, tier in mapping(told.get("tiers")).items()}
    planes = tuple(_parse_plane(mapping(each), labels) for each in sequence(found.get("planes")))
    return FeatureRecord(
        integer(found.get("round")),
        integer(found.get("rows")),
        _parse_stages(found.get("stages"), "tiers", {}),
        _parse_stages(told.get("stages"), "clients", tiers),
        tuple(plane for plane in planes if plane.points),
        text(found.get("plane")) or "pca",
    )


def _parse_stages(found: object, whose: str, tiers: Mapping[str, str]) -> tuple[FeatureStage, ...]:
    stages = (_parse_stage(mapping(each), whose, tiers) for each in sequence(found))
    return tuple(stage for stage in stages if len(stage.whose) > 1 and stage.cka)


def _parse_stage(found: Json, whose: str, tiers: Mapping[str, str]) -> FeatureStage:
    ids = tuple(text(one) for one in sequence(found.get(whose)))
    cka = tuple(tuple(number(value) for value in sequence(row)) for row in sequence(found.get("cka")))
    is_square = len(cka) == len(ids) and all(len(row) == len(ids) for row in cka)
    theirs = tuple(tiers.get(one, "") for one in ids) if tiers else ()
    return FeatureStage(text(found.get("name")), ids, theirs, cka if is_square else (), number(found.get("mean")))


def _parse_plane(found: Json, labels: Sequence[int | None]) -> FeaturePlane:
    points = []
    for row, pair in enumerate(sequence(found.get("points"))):
        values = [number(value) for value in sequence(pair)]
        if len(values) == 2 and values[0] is not None and values[1] is not None:
            points.append((values[0], values[1], labels[row] if row < len(labels) else None))
    shares = tuple(number(share) for share in sequence(found.get("shares")))
    tier, stage, separation = text(found.get("tier")), text(found.get("stage")), number(found.get("separation"))
    return FeaturePlane(tier, stage, shares, separation, tuple(points))


def features_section(features: FeatureRecord) -> Markup | None:
    """Heat maps of CKA and scatter plots of the planes; None if the run did not record features."""
    if not features.stages and not features.clients and not features.planes:
        return None
    after = "" if features.round is None else f" after round {features.round}"
    rows = "test rows" if features.rows is None else f"{features.rows} test rows"
    words = (
        f"The server's network of each tier{after}, looking at the same {rows}; features are averaged over positions."
    )
    return section(
        "What the networks see",
        note(words),
        _cka_maps(features.stages),
        _client_maps(features.clients),
        _scatter_plots(features.planes, features.plane == "tsne"),
    )


CKA_WORDS = (
    "Mean linear CKA of two clients' networks after their local epochs, by stage: 1 is equal up to rotation and scale."
)
SEPARATION_WORDS = (
    "How clearly classes lie apart in the last features of each tier's network: the mean silhouette, from -1 to 1."
)


def compare_features_section(methods: MethodRuns) -> Markup | None:
    """How alike clients' networks are, and how clearly classes lie apart, by method; None if no run looked at it."""
    seen = [(series, [parse_features(mapping(run.features)) for run in runs]) for series, runs in methods]
    alike = [(series, [{stage.name: stage.mean for stage in one.clients} for one in runs]) for series, runs in seen]
    apart = [
        (series, [{plane.tier: plane.separation for plane in one.planes} for one in runs]) for series, runs in seen
    ]
    tables = [_compare_table("similarity", CKA_WORDS, alike), _compare_table("separation", SEPARATION_WORDS, apart)]
    return section("What the networks see", *tables) if any(tables) else None


def _compare_table(
    title: str, words: str, methods: Sequence[tuple[Series, Sequence[Mapping[str, float | None]]]]
) -> Markup | None:
    """A row for each method, a column for each stage or tier: mean and standard deviation over runs."""
    every = [run for _, runs in methods for run in runs]
    columns = dict.fromkeys(name for run in every for name, value in run.items() if value is not None)
    if not columns:
        return None
    rows: list[list[TableCell]] = [
        [RowName(series.label, key=series.key), *(_compare_cell([run.get(name) for run in runs]) for name in columns)]
        for series, runs in methods
        if any(value is not None for run in runs for value in run.values())
    ]
    return join(note(words), table(["", *columns], rows, names=["method", *columns], title=title))


def _compare_cell(values: Sequence[float | None]) -> Cell:
    summary = mean_sd(values)
    mean, sd = mean_of(summary), sd_of(summary)
    if mean is None:
        return Cell(GAP)
    return Cell(f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}", mean, sd)


def _cka_maps(stages: Sequence[FeatureStage]) -> Markup | None:
    if not stages:
        return None
    words = "Linear CKA between tiers, per stage: 1 is equal up to rotation and scale."
    words += " Stages that tiers share are the same."
    return _maps("Similarity (CKA)", words, stages)


def _client_maps(stages: Sequence[FeatureStage]) -> Markup | None:
    if not stages:
        return None
    words = "Linear CKA between clients' networks after their local epochs, per stage, on the same rows."
    return _maps("Similarity between clients (CKA)", words, stages)


def _maps(title: str, words: str, stages: Sequence[FeatureStage]) -> Markup:
    """A heat map for each stage; wide ones if there are many names."""
    figures = (figure(_with_figure(stage.name, stage.mean, "mean of pairs"), _heat_map(stage)) for stage in stages)
    small = all(len(stage.whose) < 4 for stage in stages)
    return tag("div", tag("h3", title), note(words), charts(*figures, small=small))


def _heat_map(stage: FeatureStage) -> Markup:
    tiers = stage.tiers or ("",) * len(stage.whose)
    rows = [f"{one} {tier}".strip() for one, tier in zip(stage.whose, tiers, strict=True)]
    return heat_table(rows, stage.whose, stage.cka, 1.0)


def _with_figure(name: str, value: float | None, what: str) -> str:
    return name if value is None else f"{name}; {what} {value:.2f}"


def _scatter_plots(planes: Sequence[FeaturePlane], by_neighbours: bool) -> Markup | None:
    if not planes:
        return None
    classes = sorted({label for plane in planes for _, _, label in plane.points if label is not None})
    series = _class_series(classes)
    place = "where t-SNE puts" if by_neighbours else "at the first two principal components of"
    words = f"Each dot is a row, {place} the last stage's features; colours are classes."
    if any(plane.separation is not None for plane in planes):
        words += " Separation is the mean silhouette of the features themselves: 1 if classes lie far apart, 0 if not."
    figures = (
        figure(
            _with_figure(f"{plane.tier}: {plane.stage}", plane.separation, "separation"),
            _scatter_plot(plane, series, by_neighbours),
        )
        for plane in planes
    )
    names = legend(series.values()) if series else None
    return tag(
        "div",
        tag("h3", f"Features ({'t-SNE' if by_neighbours else 'PCA'})"),
        note(words),
        names,
        charts(*figures, small=True),
        data_scope="",
    )


def _class_series(classes: Sequence[int]) -> dict[int, Series]:
    """A colour per class: the page's eight colours, or evenly spaced hues for more; empty for too many classes."""
    if len(classes) > MAX_COLOURS:
        return {}
    if len(classes) <= 8:
        return dict(zip(classes, palette(f"class {label}" for label in classes), strict=True))
    turn = 360 / len(classes)
    return {
        label: Series(f"s{index}", f"class {label}", f"hsl({index * turn:.0f} 65% {45 + 10 * (index % 2)}%)")
        for index, label in enumerate(classes)
    }


def _scatter_plot(plane: FeaturePlane, class_series: dict[int, Series], by_neighbours: bool) -> Markup:
    no_class = Series("rows", "rows", "var(--c0)")
    groups: dict[Series, list[tuple[float, float, str]]] = {}
    for first, second, label in plane.points:
        series = no_class if label is None else class_series.get(label, no_class)
        groups.setdefault(series, []).append((first, second, "" if label is None else f"class {label}"))
    marks = [DotsMark(series, groups[series], 2.6) for series in sorted(groups, key=lambda one: one.key)]
    titles = (
        ["", ""]
        if by_neighbours
        else [
            f"{name} component" + (f" ({format_percent(share, 0)} of variance)" if share is not None else "")
            for name, share in zip(("first", "second"), (*plane.shares, None, None), strict=False)
        ]
    )
    return plot(marks, PlotAxis(titles[0]), PlotAxis(titles[1]), f"Features of {plane.tier} in the plane")
