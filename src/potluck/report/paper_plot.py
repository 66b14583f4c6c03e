"""Plots of runs for papers, drawn with matplotlib: PDF, SVG or PNG. The only file that imports matplotlib.

One column wide (3.5 inches, 8 point) unless two are asked for. Colours are those of Okabe and Ito, which colour-blind
people can tell apart; line styles and markers differ too, so that a plot can be read in black and white. A PDF
embeds its fonts as TrueType (type 42); an SVG draws its letters as paths, so it needs no font. Nothing in a file
depends on the time or on a style of the user's own: the same runs give the same bytes with the same matplotlib.
"""

from __future__ import annotations

import io
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.ledger import LedgerError
from potluck.report.coverage import has_coverage, make_steps, mean_coverage
from potluck.report.json_values import mapping, text
from potluck.report.published import UnknownChoice, write_file
from potluck.report.records import GroupCoverage, RunRecord
from potluck.report.summary import (
    CostSoFar,
    Row,
    compare_rows,
    costs_so_far,
    failure_words,
    group_by_method,
    mean_of,
    metric_format,
    sd_of,
    tier_names,
    with_results,
)
from potluck.report.units import byte_unit, energy_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("learning", "cost", "coverage", "tiers")
FORMATS = ("pdf", "svg", "png")
WIDTHS = {1: 3.5, 2: 7.16}
"""Inches, by the number of columns of a paper."""
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Without their yellow, which is too light for a line on white."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
MOST_MARKS = 8
"""Markers on a line; its points may be many more."""
LONGEST = 60
"""Letters of a label."""
LETTERS = 15
"""Letters of a legend in an inch, with room to spare."""
DOTS = 300
"""Dots per inch of a PNG."""
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans", "font.size": 8.0, "axes.labelsize": 8.0, "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0, "legend.fontsize": 7.0, "axes.linewidth": 0.6, "lines.linewidth": 1.1,
    "lines.markersize": 3.2, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.linewidth": 0.4,
    "grid.color": "#d9d9d9", "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False, "text.parse_math": False, "pdf.fonttype": 42,
    "svg.fonttype": "path", "svg.hashsalt": "potluck",
}  # fmt: skip
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

_drawing = threading.RLock()
"""matplotlib's settings are global; one thread draws at a time."""


class NothingToPlot(LedgerError):
    """The runs did not record what the plot shows."""

    exit_code = 3


@dataclass(frozen=True)
class CostAxis:
    """A cost that scores can be drawn against."""

    title: str
    amount: Callable[[CostSoFar], float]
    unit: Callable[[float], tuple[float, str]]


COSTS = {
    "bytes": CostAxis("traffic so far", lambda cost: cost.bytes, byte_unit),
    "time": CostAxis("modelled time so far", lambda cost: cost.device_seconds, time_unit),
    "energy": CostAxis("modelled energy so far", lambda cost: cost.joules, energy_unit),
}


@dataclass(frozen=True)
class PaperPlot:
    """A plot: shown by a notebook, written by `save`. `figure` is matplotlib's own, to change before it is written."""

    figure: Figure

    def render(self, to: str) -> bytes:
        """The plot as a file of this format: pdf, svg or png."""
        out = io.BytesIO()
        with _style():
            self.figure.savefig(out, format=to, metadata=METADATA[to], dpi=DOTS)
        return out.getvalue()

    def save(self, path: Path | str, to: str | None = None) -> Path:
        """Writes the plot; the format follows from the file's ending unless it is given."""
        place = Path(path)
        ending = place.suffix.removeprefix(".").lower()
        kind = to or ending
        if ending in FORMATS and kind != ending:
            raise UnknownChoice(f"{place} ends in .{ending}, but {kind} was asked for; give it the ending .{kind}.")
        if kind not in FORMATS:
            raise UnknownChoice(f"{place}: a plot is written as {', '.join(FORMATS)}; give the file such an ending.")
        return write_file(place, self.render(kind))

    def _repr_png_(self) -> bytes:
        return self.render("png")


def make_plot(runs: Sequence[RunRecord], what: str = "learning", *, cost: str = "bytes", columns: int = 1) -> PaperPlot:
    """A plot of these runs. `what`: learning, cost, coverage or tiers; `cost`: bytes, time or energy.

    Runs that diverged or failed are in no mean; the legend names them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draw = {"learning": _learning, "cost": _cost, "coverage": _coverage, "tiers": _tiers}[what]
    with _style():
        width = WIDTHS[columns]
        figure = Figure(figsize=(width, min(2.4, 0.66 * width)), layout="constrained")
        FigureCanvasAgg(figure)
        handles = draw(figure.add_subplot(), runs, COSTS[cost])
        _legend(figure, handles)
        figure.draw_without_rendering()
    return PaperPlot(figure)


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib's defaults with ours, and the user's settings again afterwards."""
    import matplotlib

    with _drawing, matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    """The names under the axes, in as many columns as they fit; the figure grows with them."""
    names = [str(handle.get_label()) for handle in handles]
    if not names:
        return
    width, height = figure.get_size_inches()
    across = max(1, min(len(names), int(LETTERS * width) // (max(map(len, names)) + 6)))
    figure.set_size_inches(width, height + 0.16 * -(-len(names) // across))
    figure.legend(handles=handles, loc="outside lower center", ncols=across, handlelength=2.6, columnspacing=1.2)


def _name(label: str) -> str:
    """A label in one line, without control characters, cut if it is very long."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in label).split())
    return (line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…") or "—"


def _named(runs: Sequence[RunRecord]) -> list[tuple[str, list[RunRecord]]]:
    """The runs of each method that have a result, with a label that tells of those that have none; bounds last."""
    groups, rows = group_by_method(runs), compare_rows(runs)
    return [
        (_name(text(row["label"]) + failure_words(row)), with_results(groups[text(row["label"])]))
        for row in rows
        if text(row["label"]) in groups
    ]


def _look(index: int) -> dict[str, Any]:
    """The colour, line and marker of the method with this number; the first 189 differ, neighbours without colour."""
    return {
        "color": OKABE_ITO[index % len(OKABE_ITO)],
        "linestyle": LINES[(index + index // len(LINES)) % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _learning(axes: Axes, runs: Sequence[RunRecord], cost: CostAxis) -> list[Any]:
    from matplotlib.ticker import MaxNLocator

    handles = []
    for index, (name, some) in enumerate(_named(runs)):
        lines = [[(at, at, y) for at, y in run.curve.line(lambda point: point.score)] for run in some]
        handles.append(_mean_line(axes, name, index, lines, _percent(runs)))
    _refuse_empty(handles, "no run here has a score yet")
    _score_axis(axes, runs)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return handles


def _cost(axes: Axes, runs: Sequence[RunRecord], cost: CostAxis) -> list[Any]:
    named = _named(runs)
    found = {name: [_spent(run, cost) for run in some] for name, some in named}
    factor, unit = cost.unit(max((x for lines in found.values() for line in lines for _, x, _ in line), default=0.0))
    handles = [
        _mean_line(
            axes, name, index, [[(at, x / factor, y) for at, x, y in line] for line in found[name]], _percent(runs)
        )
        for index, (name, _) in enumerate(named)
    ]
    _refuse_empty(handles, "no run here has a score yet")
    _score_axis(axes, runs)
    axes.set_xlabel(f"{cost.title} ({unit})")
    return handles


def _spent(run: RunRecord, cost: CostAxis) -> list[tuple[float, float, float]]:
    """(number of the scored round, what it had cost, score)."""
    costs, line = costs_so_far(run), run.curve.line(lambda point: point.score)
    return [(at, cost.amount(costs[int(at)]), y) for at, y in line if int(at) in costs]


def _mean_line(
    axes: Axes, name: str, index: int, lines: Sequence[Sequence[tuple[float, float, float]]], factor: float
) -> Any:
    """A line through the means of several lines, and a band of one standard deviation. Lines hold (slot, x, y)."""
    slots: dict[float, list[tuple[float, float]]] = {}
    for line in lines:
        for slot, x, y in line:
            slots.setdefault(slot, []).append((x, factor * y))
    points = [found for _, found in sorted(slots.items())]
    xs = [statistics.fmean(x for x, _ in found) for found in points]
    means = [statistics.fmean(y for _, y in found) for found in points]
    every = max(1, -(-len(points) // MOST_MARKS))
    start = index % every
    [drawn] = axes.plot(xs, means, label=name, markevery=(start, every), **_look(index))
    spread = [
        (x, mean, statistics.stdev(y for _, y in found))
        for x, mean, found in zip(xs, means, points, strict=True)
        if len(found) > 1
    ]
    if spread:
        axes.fill_between(
            [x for x, _, _ in spread],
            [mean - sd for _, mean, sd in spread],
            [mean + sd for _, mean, sd in spread],
            color=drawn.get_color(),
            alpha=0.18,
            linewidth=0,
        )
    return drawn


def _percent(runs: Sequence[RunRecord]) -> float:
    return 100.0 if metric_format(*runs).percent else 1.0


def _score_axis(axes: Axes, runs: Sequence[RunRecord], x: bool = False) -> None:
    metric = metric_format(*runs)
    (axes.set_xlabel if x else axes.set_ylabel)(f"{_name(metric.name)}{' (%)' if metric.percent else ''}")


def _refuse_empty(handles: Sequence[Any], why: str) -> None:
    if not any(len(handle.get_xdata()) for handle in handles):
        raise NothingToPlot(f"nothing to plot: {why}.")


def _coverage(axes: Axes, runs: Sequence[RunRecord], cost: CostAxis) -> list[Any]:
    """How often each unit of the largest group was trained, by method, over clients and rounds."""
    known = [(name, [run for run in some if has_coverage(run)]) for name, some in _named(runs)]
    groups = [group for _, some in known for run in some for group in run.coverage]
    if not groups:
        raise NothingToPlot(
            "nothing to plot: no run here recorded how often units were trained; methods that train parts do."
        )
    largest = max(groups, key=lambda group: len(group.counts))
    handles = []
    for index, (name, some) in enumerate(known):
        counts = mean_coverage(some, largest.name, len(largest.counts))
        if counts.known:
            handles.append(_steps(axes, name, index, counts))
    axes.set_xlabel(f"unit of {_name(largest.name)}")
    axes.set_ylabel("times trained")
    axes.set_ylim(bottom=0)
    return handles


def _steps(axes: Axes, name: str, index: int, counts: GroupCoverage) -> Any:
    steps = [(step, step.mean) for step in make_steps(counts.counts) if step.mean is not None]
    edges = [step.first - 0.5 for step, _ in steps] + [steps[-1][0].last + 0.5]
    heights = [mean for _, mean in steps] + [steps[-1][1]]
    every = max(1, -(-len(edges) // MOST_MARKS))
    [drawn] = axes.plot(
        edges, heights, label=name, drawstyle="steps-post", markevery=(index % every, every), **_look(index)
    )
    return drawn


def _tiers(axes: Axes, runs: Sequence[RunRecord], cost: CostAxis) -> list[Any]:
    """A row for each method with a mark for each tier, and a whisker of one standard deviation."""
    rows, tiers, factor = compare_rows(runs), tier_names(with_results(runs)), _percent(runs)
    if not any(_tier_mean(row, tier) is not None for row in rows for tier in tiers):
        raise NothingToPlot("nothing to plot: no tier of these runs has a score yet.")
    for at, row in enumerate(rows):
        means = [factor * mean for tier in tiers if (mean := _tier_mean(row, tier)) is not None]
        if means:
            axes.plot([min(means), max(means)], [at, at], color="#bfbfbf", linewidth=1.0, zorder=1)
    handles = [_tier_marks(axes, rows, tier, index, factor) for index, tier in enumerate(tiers)]
    axes.set_yticks(range(len(rows)), [_name(text(row["label"]) + failure_words(row)) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(False, axis="y")
    _score_axis(axes, runs, x=True)
    figure = axes.figure
    figure.set_size_inches(figure.get_size_inches()[0], 0.6 + 0.2 * max(len(rows), 3))  # type: ignore[union-attr]
    return handles


def _tier_mean(row: Row, tier: str) -> float | None:
    return mean_of(mapping(row["tiers"]).get(tier))


def _tier_marks(axes: Axes, rows: Sequence[Row], tier: str, index: int, factor: float) -> Any:
    found = [(at, mapping(row["tiers"]).get(tier)) for at, row in enumerate(rows)]
    known = [
        (at, factor * mean, factor * (sd_of(one) or 0.0)) for at, one in found if (mean := mean_of(one)) is not None
    ]
    look = {**_look(index), "linestyle": "none"}
    return axes.errorbar(
        [mean for _, mean, _ in known],
        [at for at, _, _ in known],
        xerr=[sd for _, _, sd in known],
        label=_name(tier),
        elinewidth=0.7,
        markersize=4.2,
        **look,
    )
