"""Pictures of what networks taught each other: how true students came out, and which features mattered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.report.html import Markup, Series, charts, figure, heat_table, palette, section, tag
from potluck.report.marks import LineMark
from potluck.report.records import TransferRecord
from potluck.report.svg import ROUND_AXIS, Mark, PlotAxis, plot


def taught_section(lessons: Sequence[TransferRecord]) -> Markup | None:
    """Fidelity over rounds, and a heat map for each teacher and student; nothing where nobody was taught."""
    if not lessons:
        return None
    by_name: dict[str, list[TransferRecord]] = {}
    for lesson in sorted(lessons, key=lambda lesson: lesson.round):
        by_name.setdefault(lesson.name, []).append(lesson)
    painted = dict(zip(palette(by_name), by_name.values(), strict=True))
    return section(
        "What the networks taught each other", charts(_fidelity(painted), _importance(painted)), _maps(by_name)
    )


def _fidelity(painted: Mapping[Series, Sequence[TransferRecord]]) -> Markup | None:
    note = "Cosine of a student's scores with its teacher's on public rows, as a share: 1 is the same direction."
    return _figure(
        "Fidelity", note, painted, [[(one.round, one.fidelity) for one in each] for each in painted.values()]
    )


def _importance(painted: Mapping[Series, Sequence[TransferRecord]]) -> Markup | None:
    note = "Loc, mean over pairs of layers: at zero, features are not taught any more."
    return _figure(
        "Importance of features",
        note,
        painted,
        [[(one.round, one.mean_loc) for one in each] for each in painted.values()],
    )


def _figure(
    title: str, note: str, painted: Mapping[Series, object], lines: Sequence[Sequence[tuple[int, float | None]]]
) -> Markup | None:
    known = [[(float(at), value) for at, value in line if value is not None] for line in lines]
    marks: list[Mark] = [LineMark(series, line) for series, line in zip(painted, known, strict=True) if line]
    if not marks:
        return None
    chart = plot(marks, ROUND_AXIS, PlotAxis(title.lower(), low=0.0), f"{title} over rounds")
    return figure(title, chart, list(painted), note)


def _maps(by_name: Mapping[str, Sequence[TransferRecord]]) -> Markup | None:
    """Each pair's importance after its last transfer, all on one scale."""
    last = [found for each in by_name.values() if (found := next((one for one in reversed(each) if one.loc), None))]
    if not last:
        return None
    most = max((value for one in last for line in one.loc for value in line if value is not None), default=0.0) or 1.0
    told = "Loc by pair after the last transfer, mean over public rows; lines are the teacher's layers."
    figures = (
        figure(f"{one.name}, round {one.round}", heat_table(one.teacher_layers, one.student_layers, one.loc, most))
        for one in last
    )
    return tag("div", tag("h3", "Which features mattered"), tag("p", told, class_="note"), charts(*figures, small=True))
