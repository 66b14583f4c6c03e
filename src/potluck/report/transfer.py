"""Knowledge transfer between networks on the server: fidelity over rounds, and the importance of layer pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from potluck.report.html import Markup, Series, charts, figure, heat_table, note, palette, section, tag
from potluck.report.marks import LineMark
from potluck.report.records import TransferRecord
from potluck.report.svg import ROUND_AXIS, PlotAxis, plot

TransferGroups = Mapping[Series, Sequence[TransferRecord]]
"""The transfers of each teacher and student, by round."""


def transfer_section(transfers: Sequence[TransferRecord]) -> Markup | None:
    """Curves of fidelity and importance, and a heat map per teacher and student; None without transfers."""
    if not transfers:
        return None
    by_name: dict[str, list[TransferRecord]] = {}
    for transfer in sorted(transfers, key=lambda transfer: transfer.round):
        by_name.setdefault(transfer.name, []).append(transfer)
    groups = dict(zip(palette(by_name), by_name.values(), strict=True))
    curves = charts(_fidelity_figure(groups), _importance_figure(groups))
    return section("What the networks taught each other", curves, _loc_maps(groups))


def _fidelity_figure(groups: TransferGroups) -> Markup | None:
    words = (
        "Cosine similarity of student and teacher outputs on public rows, mapped to 0 to 1: 1 is the same direction."
    )
    return _curve_figure("Fidelity", words, groups, lambda transfer: transfer.fidelity)


def _importance_figure(groups: TransferGroups) -> Markup | None:
    words = "Loc (importance of a pair of layers), mean over pairs. At zero, features are not transferred any more."
    return _curve_figure("Importance of features", words, groups, lambda transfer: transfer.mean_loc)


def _curve_figure(
    title: str, words: str, groups: TransferGroups, pick: Callable[[TransferRecord], float | None]
) -> Markup | None:
    marks = []
    for series, transfers in groups.items():
        values = ((float(transfer.round), pick(transfer)) for transfer in transfers)
        if line := [(index, value) for index, value in values if value is not None]:
            marks.append(LineMark(series, line))
    if not marks:
        return None
    chart = plot(marks, ROUND_AXIS, PlotAxis(title.lower(), low=0.0), f"{title} over rounds")
    return figure(title, chart, list(groups), words)


def _loc_maps(groups: TransferGroups) -> Markup | None:
    """The importance of each pair of layers after the last transfer, all on one scale."""
    tables = ([transfer for transfer in transfers if transfer.loc] for transfers in groups.values())
    last = [found[-1] for found in tables if found]
    if not last:
        return None
    values = (value for transfer in last for row in transfer.loc for value in row if value is not None)
    most = max(values, default=0.0) or 1.0
    words = (
        "Loc of each pair after the last transfer, mean over public rows. Rows: teacher's layers; columns: student's."
    )
    figures = (
        figure(f"{one.name}, round {one.round}", heat_table(one.teacher_layers, one.student_layers, one.loc, most))
        for one in last
    )
    return tag("div", tag("h3", "Which features mattered"), note(words), charts(*figures, small=True))
