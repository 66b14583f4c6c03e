"""Makes the board of the papers' claims: docs/results.md and docs/results/, from kept run folders.

    python results/board.py            writes the pages
    python results/board.py --check    says whether they are as this would write them
    python results/board.py --keep results/NAME.tar.gz RUN...    packs run folders, without checkpoints

`board.toml` lists every table and figure of the four papers: what it claims, the paper's figures, and which runs show
it. The archives beside it hold the run folders, without checkpoints. A verdict is not typed: it follows from the scores
of the runs, seed by seed. `pages/` has the words around the tables.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import statistics
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from potluck.report.statistics import PairedDifference, paired_difference

HERE = Path(__file__).parent
EMPTY: Mapping[str, Any] = {}
ROUND = "round of the best"
"""The statistic that is a number of rounds, not a score."""
UPLOADED = "uploaded"
"""The measure that is no score: millions of numbers, of four bytes each, that a client uploads in a round."""
FEATURES = "features."
"""How measures begin that are one figure of a whole run, of what networks see at its end: ``features.clients.body``,
the CKA of clients' networks after their local epochs, or ``features.separation.large``, the silhouette of classes."""
REACHED = "rounds to "
"""How the statistic begins that is the round of the first scoring from which on a run stays at this score or above, as
in ``rounds to 0.2``; infinite if there is none. With a column's ``times``, it is what the run's devices had spent by
then, in the column's ``unit``: of ``bytes_up``, ``joules`` or ``round_seconds``."""
LAST = "mean of the last 5"
"""What a figure is of a run's scorings, unless the claim or the column says otherwise."""
PERCENT = ("accuracy", "f1")
"""Scores that are shown in percent; the others are shown as they are."""
POWER = 0.8416
"""The 80 % quantile of the normal distribution: a test of so many seeds finds a difference of this size in 80 %."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDTH, HEIGHT, LEFT, BOTTOM, LABELS = 640, 300, 44, 28, 190
"""Pixels of a chart: the whole, and the room beside and under the lines."""


@dataclass(frozen=True)
class Run:
    """A kept run folder."""

    manifest: Mapping[str, Any]
    settings: Mapping[str, Any]
    scores: Sequence[Mapping[str, Any]]
    """Every scoring, in the order of rounds."""

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The round of the last scoring."""
        return int(self.scores[-1]["round"]) if self.scores else 0

    @property
    def mark(self) -> str:
        """The hash of the settings."""
        return str(self.manifest.get("mark", ""))[:8]

    @property
    def diverged(self) -> int:
        """The round in which it diverged; 0: it did not."""
        return int(self.manifest.get("fault_round") or 1) if self.manifest.get("status") == "diverged" else 0

    def fits(self, where: Mapping[str, Any]) -> bool:
        """Whether the run has these settings, named with dots: ``{"method.name": "fedrolex"}``; or this ``label``."""
        told = {**self.settings, "label": self.manifest.get("label")}
        return all(dig(told, name) == value for name, value in where.items())

    def cost(self, name: str) -> float:
        """What a round costs: the ``bytes_up`` of all clients together, their ``joules``, its ``round_seconds``."""
        return float(self.manifest["result"][name]) / int(self.manifest["result"]["rounds"])

    def curve(self, measure: str) -> list[tuple[int, float]]:
        """(round, score) of every scoring that has this score; of what is sent or seen, one for the whole run."""
        if measure == UPLOADED:
            return [(self.rounds, self.manifest["result"]["bytes_up"] / self.rounds / self.manifest["cohort"] / 4e6)]
        if measure.startswith(FEATURES):
            value = dig(self.manifest, measure)
            return [] if value is None else [(self.rounds, float(value))]
        found = ((int(line["round"]), score_of(line, measure, self.manifest)) for line in self.scores)
        return [(index, score) for index, score in found if score is not None]


@dataclass(frozen=True)
class Cell:
    """The scores of one row under one column, by seed."""

    by_seed: Mapping[int, float] = field(default_factory=dict)
    runs: Sequence[Run] = ()

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.by_seed.values()) if self.by_seed else None


def anchor(heading: str) -> str:
    """The name of a heading in a link, as GitHub makes it."""
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")


def dig(value: Any, name: str) -> Any:
    """The value under a dotted name; None if there is none."""
    for step in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def score_of(line: Mapping[str, Any], measure: str, manifest: Mapping[str, Any]) -> float | None:
    """One score of a scoring: ``global.test``, ``tiers.large.test``, ``personal.own``, or ``average`` over tiers."""
    metric = str(line.get("metric", "accuracy"))
    if measure == "average":
        shares = {tier["name"]: tier["share"] for tier in manifest.get("tiers", [])}
        found = {name: score_of(line, f"tiers.{name}.test", manifest) for name in shares}
        if not found or any(score is None for score in found.values()):
            return None
        return float(sum(shares[name] * (score or 0.0) for name, score in found.items()) / sum(shares.values()))
    value = dig(line, measure)
    if isinstance(value, Mapping):
        value = value.get(metric, value.get("mean"))
    return None if value is None else float(value)


@cache
def read_archive(path: Path) -> tuple[Run, ...]:
    """The run folders in an archive, by the names of their folders. Nothing is unpacked to disk."""
    files: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            stream = archive.extractfile(member)
            if stream is not None and name in ("manifest.json", "settings.toml", "scores.jsonl"):
                files.setdefault(folder, {})[name] = stream.read()
    return tuple(_read_run(files[folder]) for folder in sorted(files))


def _read_run(files: Mapping[str, bytes]) -> Run:
    by_round = {}
    for line in files["scores.jsonl"].splitlines():
        scoring = json.loads(line)
        by_round[int(scoring["round"])] = scoring
    settings = tomllib.loads(files["settings.toml"].decode())
    return Run(json.loads(files["manifest.json"]), settings, [by_round[index] for index in sorted(by_round)])


class Claim:
    """One table or figure of a paper, and the runs that show it."""

    def __init__(self, plain: Mapping[str, Any], folder: Path) -> None:
        self.plain, self.folder = plain, folder
        self.paper, self.what, self.says = plain["paper"], plain["what"], plain["says"]
        self.rounds, self.seeds = int(plain.get("rounds", 0)), int(plain.get("seeds", 1))
        self.rows: list[Mapping[str, Any]] = plain.get("row", [])
        self.columns: list[Mapping[str, Any]] = plain.get("column", [{"name": "ours"}])
        self.order: list[tuple[str, str]] = plain.get("order", [])
        archive = plain.get("archive")
        found = read_archive(folder / archive) if archive else ()
        among = plain.get("among") or {run.seed for run in found}
        fitting = [run for run in found if run.fits(plain.get("where", {})) and run.seed in among and run.scores]
        self.runs = [run for run in fitting if not run.diverged]
        self.diverged = [run for run in fitting if run.diverged]
        self.cells = {
            (row["name"], column["name"]): self._cell(row, column) for row in self.rows for column in self.columns
        }

    @property
    def anchor(self) -> str:
        return anchor(self.what)

    def earlier(self, page: str = "") -> str:
        """A link to earlier, smaller runs on a page; empty if there are none."""
        heading = self.plain.get("earlier")
        return f"; [smaller runs]({page}#{anchor(heading)})" if heading else ""

    @property
    def metric(self) -> str:
        if self.plain.get("measure") == UPLOADED:
            return "millions of numbers"
        if self.plain.get("measure", "").startswith(FEATURES):
            return "silhouette" if ".separation." in self.plain["measure"] else "CKA"
        return str(self.runs[0].scores[0].get("metric", "accuracy")) if self.runs else "accuracy"

    def _cell(self, row: Mapping[str, Any], column: Mapping[str, Any]) -> Cell:
        where = {**row.get("where", {}), **column.get("where", {})}
        runs = [run for run in self.runs if run.fits(where)]
        scores = {run.seed: self._figure(run, column) for run in runs}
        return Cell({seed: score for seed, score in sorted(scores.items()) if score is not None}, runs)

    def _curve(self, run: Run, column: Mapping[str, Any]) -> list[tuple[int, float]]:
        return run.curve(column.get("measure", self.plain.get("measure", "global.test")))

    def _figure(self, run: Run, column: Mapping[str, Any], end: float = math.inf) -> float | None:
        """A run's figure in a column, from its scorings up to round `end`."""
        found = self._statistic([point for point in self._curve(run, column) if point[0] <= end], column)
        if found is None or "times" not in column:
            return found
        return found * run.cost(column["times"]) / float(column["unit"])

    def _statistic(self, curve: Sequence[tuple[int, float]], column: Mapping[str, Any]) -> float | None:
        points = [point for point in curve if point[0] and (not self.rounds or point[0] <= self.rounds)]
        if not points:
            return None
        if (kind := self.statistic(column)).startswith(REACHED):
            below = [at for at, (_, score) in enumerate(points) if score < float(kind.removeprefix(REACHED))]
            first = below[-1] + 1 if below else 0
            return float(points[first][0]) if first < len(points) else math.inf
        index, best = max(points, key=lambda point: point[1])
        kinds = {"best": best, ROUND: float(index), "last": points[-1][1]}
        return (
            kinds[kind] if kind in kinds else statistics.fmean(score for _, score in points[-int(kind.split()[-1]) :])
        )

    def statistic(self, column: Mapping[str, Any] = EMPTY) -> str:
        """What a figure is of a run's scorings."""
        return str(column.get("statistic", self.plain.get("statistic", LAST)))

    def format(self, score: float | None, sign: str = "", column: Mapping[str, Any] = EMPTY) -> str:
        """A score as the tables show it."""
        if score is None:
            return ""
        if math.isinf(score):
            return f"{sign}∞" if score > 0 else "-∞"
        if "times" in column:
            return f"{score:{sign},.1f}"
        if self.statistic(column) == ROUND or self.statistic(column).startswith(REACHED):
            return f"{score:{sign},.0f}"
        if self.plain.get("measure") == UPLOADED:
            return f"{score:{sign}.2f}"
        return self.format_score(score, sign)

    def format_score(self, score: float, sign: str = "") -> str:
        return f"{100 * score:{sign}.1f}" if self.metric in PERCENT else f"{score:{sign}.3f}"

    def in_paper(self, better: str, worse: str) -> float | None:
        """By how much the first row is above the second in the paper, as our scores count; None if it is not told."""
        one, other = (next(row.get("paper") for row in self.rows if row["name"] == name) for name in (better, worse))
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            return None
        as_printed = self.statistic() == ROUND or self.metric in ("millions of numbers", "CKA", "silhouette")
        return (one - other) / (1 if as_printed else 100)

    @property
    def judged(self) -> Sequence[Mapping[str, Any]]:
        """The columns that the verdict follows from: those that ``judged`` names, or the first one."""
        names = self.plain.get("judged")
        return [column for column in self.columns if column["name"] in names] if names else self.columns[:1]

    def difference(self, better: str, worse: str, column: Mapping[str, Any]) -> PairedDifference | None:
        """By how much one row is above another, for each seed that both have, after equally many rounds."""
        above, below = ({run.seed: run for run in self.cells[name, column["name"]].runs} for name in (better, worse))
        first, second = dict[str, float](), dict[str, float]()
        for seed in sorted(above.keys() & below.keys()):
            pair = above[seed], below[seed]
            end = min(curve[-1][0] if (curve := self._curve(run, column)) else 0 for run in pair)
            one, other = (self._figure(run, column, end) for run in pair)
            if one is not None and other is not None and not (math.isinf(one) and math.isinf(other)):
                first[str(seed)], second[str(seed)] = one, other
        if any(map(math.isinf, (*first.values(), *second.values()))):
            return PairedDifference({seed: first[seed] - second[seed] for seed in first}, math.nan)
        return paired_difference(first, second)

    def judge(self, better: str, worse: str, column: Mapping[str, Any]) -> str:
        """The verdict on one pair of rows in one column."""
        found = self.difference(better, worse, column)
        if found is None:
            return "open"
        if all(difference > 0 for difference in found.by_seed.values()):
            return "reproduced"
        if all(difference < 0 for difference in found.by_seed.values()):
            return "not reproduced"
        claimed = self.in_paper(better, worse)
        excluded = claimed is not None and found.high is not None and found.high < claimed
        return "not reproduced" if excluded else "open"

    def missing(self) -> list[str]:
        """What keeps the verdict open, for the rows that the claim compares."""
        found = []
        for name, column in itertools.product(dict.fromkeys(itertools.chain(*self.order)), self.judged):
            runs = self.cells[name, column["name"]].runs
            row = next(row for row in self.rows if row["name"] == name)
            lost = [run for run in self.diverged if run.fits({**row.get("where", {}), **column.get("where", {})})]
            wanted = row.get("seeds", self.seeds)
            name = self._in_column(name, column)
            found += [f"{name} diverged in round {run.diverged:,} with seed {run.seed}" for run in lost]
            done = [run for run in runs if run.rounds >= self.rounds]
            if not runs and not lost:
                found.append(f"{name} was not run")
            elif not runs:
                continue
            elif not done:
                found.append(f"{name} is at round {max(run.rounds for run in runs):,} of {self.rounds:,}")
            elif len(done) < wanted:
                found.append(f"{name} has {len(done)} of {wanted} seeds")
        return found

    def _in_column(self, name: str, column: Mapping[str, Any]) -> str:
        """A row's name, with the column's if several are judged."""
        return f"{name} ({column['name']})" if len(self.judged) > 1 else name

    @property
    def verdict(self) -> str:
        """reproduced, not reproduced, open or not run; it follows from the scores."""
        if not any(cell.by_seed for cell in self.cells.values()):
            return "not run"
        if not self.order or self.missing():
            return "open"
        found = {self.judge(better, worse, column) for better, worse in self.order for column in self.judged}
        return next(verdict for verdict in ("not reproduced", "open", "reproduced") if verdict in found)

    @property
    def seen(self) -> str:
        """What the runs show, in one line."""
        if self.verdict == "not run":
            minutes = self.plain.get("minutes")
            cost = f"; about {minutes} minutes of one H200" if minutes else ""
            return f"`{self.plain['recipe']}`{cost}" if self.plain.get("recipe") else str(self.plain["why"])
        pairs = (self._seen_of(better, worse, column) for better, worse in self.order for column in self.judged)
        return "; ".join([*filter(None, pairs), *self.missing()])

    def _seen_of(self, better: str, worse: str, column: Mapping[str, Any]) -> str:
        """The differences of one pair of rows; if seeds differ, with their interval beside the paper's difference."""
        found = self.difference(better, worse, column)
        if found is None:
            return ""
        told = (self.format(one, "+", column) for one in found.by_seed.values())
        shown = f"{self._in_column(f'{better} minus {worse}', column)}: {', '.join(told)}"
        claimed = self.in_paper(better, worse)
        if found.ahead in (0, found.count) or found.low is None or claimed is None:
            return shown
        shown += f" (mean {self.format(found.mean, '+')}, 95 % interval {self.format(found.low, '+')} to "
        shown += f"{self.format(found.high, '+')}; the paper: {self.format(claimed, '+')}"
        if self.judge(better, worse, column) == "open":
            spread = statistics.stdev(found.by_seed.values())
            shown += f"; to find so much in 80 % of tests takes about {seeds_needed(spread, claimed)} seeds"
        return f"{shown})"


def seeds_needed(spread: float, difference: float) -> int:
    """About how many pairs a paired test needs, so that it finds a difference of this size four times out of five."""
    return max(2, math.ceil(((1.96 + POWER) * spread / difference) ** 2))


def page(claims: Sequence[Claim], archives: Mapping[str, Mapping[str, Any]], words: str, charts: dict[str, str]) -> str:
    """The page of one paper; charts are added to `charts` by file name."""
    return words.replace("{claims}\n", "\n".join(_section(claim, archives, charts) for claim in claims))


def _section(claim: Claim, archives: Mapping[str, Mapping[str, Any]], charts: dict[str, str]) -> str:
    parts = [f"## {claim.what}", f"The paper: {claim.says}."]
    if claim.verdict == "not run":
        parts.append(f"**Not run**: {claim.seen}{claim.earlier()}.")
    else:
        parts += ["\n".join(_table(claim)), _origin(claim, archives)]
        if claim.order:
            parts.insert(-1, f"**{claim.verdict.capitalize()}.** {claim.seen}.")
        if drawn := chart(claim):
            name = f"{claim.paper}-{claim.anchor}.svg"
            charts[name] = drawn
            parts.append(f"![Learning curves]({name})")
    if because := str(claim.plain.get("because", "")).strip():
        parts.append(because)
    return "\n\n".join(parts) + "\n"


def _table(claim: Claim) -> Iterable[str]:
    heads = [column["name"] for column in claim.columns]
    with_paper = any("paper" in row for row in claim.rows)
    yield "| | " + " | ".join([*["the paper"] * with_paper, *heads, "seeds", "rounds", "rate", "settings"]) + " |"
    yield "|---" * (len(heads) + with_paper + 5) + "|"
    for row in claim.rows:
        cells = [claim.cells[row["name"], head] for head in heads]
        runs = {id(run): run for cell in cells for run in cell.runs}.values()
        if not runs and "paper" not in row:
            continue
        scores = [_scores(claim, cell, column) for cell, column in zip(cells, claim.columns, strict=True)]
        yield (
            "| "
            + " | ".join(
                [
                    row["name"],
                    *[_paper(row)] * with_paper,
                    *scores,
                    _list(run.seed for run in runs),
                    _list(run.rounds for run in runs),
                    _list(dig(run.settings, "local.lr") for run in runs) if len(heads) == 1 else "",
                    ", ".join(f"`{mark}`" for mark in dict.fromkeys(run.mark for run in runs)) if len(runs) < 4 else "",
                ]
            )
            + " |"
        )


def _paper(row: Mapping[str, Any]) -> str:
    found = row.get("paper", "")
    return " / ".join(map(str, found)) if isinstance(found, list) else str(found)


def _scores(claim: Claim, cell: Cell, column: Mapping[str, Any]) -> str:
    values = list(cell.by_seed.values())
    if len(values) < 2:
        return claim.format(cell.mean, column=column)
    each = ", ".join(claim.format(value, column=column) for value in values)
    if any(map(math.isinf, values)):
        return each
    spread = claim.format(statistics.stdev(values), column=column)
    return f"{claim.format(cell.mean, column=column)} ± {spread} ({each})"


def _list(values: Iterable[Any]) -> str:
    found = sorted({value for value in values if value is not None})
    return ", ".join(f"{value:,}" if isinstance(value, int) else f"{value:g}" for value in found)


def _origin(claim: Claim, archives: Mapping[str, Mapping[str, Any]]) -> str:
    """Where the figures come from."""
    name, about = claim.plain["archive"], archives[claim.plain["archive"]]
    scored = " / ".join(f"the {kind}" for kind in dict.fromkeys(map(claim.statistic, claim.columns)))
    rows = [f"{row['name']} with `{' '.join(row['set'])}`" for row in claim.rows if row.get("set")]
    also = f" ({'; '.join(rows)})" if rows else ""
    codes = dict.fromkeys(str(run.manifest["code"]) for run in claim.runs if "code" in run.manifest)
    code = f" (code {', '.join(f'`{one}`' for one in codes)})" if codes else ""
    what = f"{scored} of a run's scorings ({claim.metric})"
    if (kind := claim.statistic(claim.columns[0])).startswith(REACHED):
        score = claim.format_score(float(kind.removeprefix(REACHED)))
        what = (
            f"that of the first scoring from which on a run stays at {score} ({claim.metric}) or above: its round, or "
        )
        what += f"what all devices had spent by then, as modelled (∞: not within {claim.rounds} rounds)"
    if claim.plain.get("measure") == UPLOADED:
        what = "the millions of numbers, of four bytes each, that a client uploads in a round"
    if claim.metric == "CKA":
        what = "the CKA of two clients' networks after their local epochs, at the end of a run, a mean over all pairs"
    if claim.metric == "silhouette":
        what = "how clearly classes lie apart in the features at the end of a run (the mean silhouette)"
    return (
        f"Each figure is {what}. Command: `{claim.plain['command']}`{also}. "
        f"Commit {about['commit']}{code}; {about['hardware']}. Run folders: `results/{name}`."
    )


def chart(claim: Claim) -> str:
    """Learning curves as SVG: the mean over seeds of each row; empty if columns show other runs or no scores."""
    others = any("where" in column or "measure" in column for column in claim.columns[1:])
    if others or claim.statistic(claim.columns[0]).startswith(REACHED):
        return ""
    measure, first = claim.plain.get("measure", "global.test"), claim.columns[0]["name"]
    lines = {row["name"]: _mean_curve(claim.cells[row["name"], first].runs, measure) for row in claim.rows}
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    if not lines:
        return ""
    end = max(line[-1][0] for line in lines.values())
    scores = [score for line in lines.values() for _, score in line]
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 1e9) if max(scores) - min(scores) <= 6 * step)
    low, high = step * math.floor(min(scores) / step), step * math.ceil(max(scores) / step)
    right, floor = WIDTH - LABELS, HEIGHT - BOTTOM

    def place(index: float, score: float) -> str:
        x = LEFT + (right - LEFT) * index / end
        return f"{x:.1f},{floor - (floor - 12) * (score - low) / ((high - low) or 1):.1f}"

    out = io.StringIO()
    out.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" ')
    out.write(f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n')
    for number in range(round((high - low) / step) + 1):
        score = low + number * step
        x, y = place(0, score).split(",")
        out.write(f'<path d="M{x} {y}H{right}" stroke="#ddd"/>')
        out.write(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{claim.format(score)}</text>\n')
    for share in (0.0, 0.5, 1.0):
        index = round(share * end)
        x = place(index, low).split(",")[0]
        out.write(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{index:,}</text>\n')
    ordered = sorted(lines.items(), key=lambda item: -item[1][-1][1])
    for number, (name, line) in enumerate(ordered):
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        points = " ".join(place(*point) for point in line)
        out.write(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>\n')
        out.write(f'<text x="{right + 10}" y="{24 + 18 * number}" fill="{colour}">{name}</text>\n')
    out.write(f'<text x="{right + 28}" y="{HEIGHT - 8}" fill="#666">rounds</text></svg>\n')
    return out.getvalue()


def _mean_curve(runs: Sequence[Run], measure: str) -> list[tuple[int, float]]:
    """The mean over runs, at the rounds that all of them have."""
    curves = [dict(run.curve(measure)) for run in runs]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return [(index, statistics.fmean(curve[index] for curve in curves)) for index in shared]


def board(claims: Sequence[Claim], papers: Mapping[str, Mapping[str, Any]], words: str) -> str:
    """The front page: one line for every table and figure of the papers."""
    lines = ["| paper | table or figure | claim | verdict | seen |", "|---|---|---|---|---|"]
    for claim in claims:
        link = f"[{claim.what}](results/{claim.paper}.md#{claim.anchor})"
        earlier = claim.earlier(f"results/{claim.paper}.md")
        verdict = f"**{claim.verdict}**" if claim.verdict != "not run" else claim.verdict
        lines.append(f"| {papers[claim.paper]['name']} | {link} | {claim.says} | {verdict} | {claim.seen}{earlier} |")
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return words.replace("{board}\n", "\n".join([f"{len(claims)} tables and figures: {total}.", "", *lines, ""]))


VERDICTS = ("reproduced", "not reproduced", "open", "not run")


def make(folder: Path = HERE) -> dict[str, str]:
    """Every page and chart, by its path under docs/."""
    plain = tomllib.loads((folder / "board.toml").read_text())
    papers = {paper["id"]: paper for paper in plain["paper"]}
    archives = {archive["name"]: archive for archive in plain.get("archive", [])}
    claims = [Claim(each, folder) for each in plain["claim"]]
    pages, charts = {}, dict[str, str]()
    for id in papers:
        words = (folder / "pages" / f"{id}.md").read_text()
        pages[f"results/{id}.md"] = page([claim for claim in claims if claim.paper == id], archives, words, charts)
    listed = [claim for claim in claims if not claim.plain.get("supporting")]
    front = board(listed, papers, (folder / "pages" / "board.md").read_text())
    return {"results.md": front, **pages, **{f"results/{name}": text for name, text in charts.items()}}


def keep(folders: Sequence[Path], archive: Path) -> None:
    """Packs run folders into an archive: settings, manifest and scores alone, without what names the machine."""
    with tarfile.open(archive, "w:gz", compresslevel=9) as out:
        for folder in sorted(folders):
            manifest = json.loads((folder / "manifest.json").read_text())
            for name in ("host", "pid"):
                manifest.pop(name, None)
            if "run" in manifest.get("result", {}):
                manifest["result"]["run"] = folder.name
            settings = (folder / "settings.toml").read_text()
            path = str(dig(tomllib.loads(settings), "data.path") or "")
            if path.startswith("/"):
                settings = settings.replace(f'"{path}"', f'"{Path(path).name}"')
            files = {
                "manifest.json": json.dumps(manifest, indent=2) + "\n",
                "settings.toml": settings,
                "scores.jsonl": (folder / "scores.jsonl").read_text(),
            }
            for name, text in files.items():
                member = tarfile.TarInfo(f"{folder.name}/{name}")
                member.size = len(text.encode())
                out.addfile(member, io.BytesIO(text.encode()))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=HERE.parent / "docs", help="the folder of the pages")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    parser.add_argument("--keep", type=Path, metavar="ARCHIVE", help="instead: pack run folders into this archive")
    parser.add_argument("folders", type=Path, nargs="*", help="run folders to keep")
    asked = parser.parse_args(arguments)
    if asked.keep:
        keep(asked.folders, asked.keep)
        return 0
    pages = make()
    old = {name for name in pages if (path := asked.to / name).exists() and path.read_text() == pages[name]}
    if asked.check:
        for name in sorted(pages.keys() - old):
            print(f"{asked.to / name} is not what `python results/board.py` writes")
        return int(old != pages.keys())
    for name in pages:
        (asked.to / name).parent.mkdir(parents=True, exist_ok=True)
        (asked.to / name).write_text(pages[name])
    print(f"{len(pages)} files under {asked.to}, {len(pages.keys() - old)} of them changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
