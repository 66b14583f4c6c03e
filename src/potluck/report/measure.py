"""The score that runs are judged by: what it is called, and the unit in which it is written."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.report.records import Run
from potluck.report.units import GAP, percent, plus_minus

WORDS = {"f1": "F1", "matthews": "Matthews correlation", "pearson": "Pearson correlation"}
"""What scores are called, other than by their name."""
CORRELATIONS = {"matthews", "pearson"}
"""Scores from -1 to 1, which are no share of anything."""


@dataclass(frozen=True)
class Measure:
    """A score's name in words, and whether it is written in percent or as a plain number."""

    words: str = "accuracy"
    percent: bool = True

    @classmethod
    def named(cls, name: str) -> Measure:
        """The measure that a ledger calls by this name."""
        return cls(WORDS.get(name, name), name not in CORRELATIONS)

    @property
    def unit(self) -> str:
        """What a heading adds so that no cell need say it."""
        return " in %" if self.percent else ""

    def written(self, value: float | None, digits: int = 1) -> str:
        """One value, with its unit."""
        return percent(value, digits) if self.percent else _plain(value, digits + 2)

    def target(self, value: float) -> str:
        """A score that somebody named, with its unit and all the digits that were named."""
        if self.percent:
            return f"{100 * value:.6g} %"
        return max(f"{value:.2f}", f"{value:.6g}", key=len)

    def spread(self, mean: float | None, sd: float | None) -> str:
        """A mean and its deviation, with their unit."""
        if self.percent:
            return plus_minus(mean, sd)
        return _plain(mean, 3) if mean is None or sd is None else f"{_plain(mean, 3)} ± {_plain(sd, 3)}"

    def bare(self, mean: float | None, sd: float | None = None) -> str:
        """The same, under a heading that says the unit."""
        return self.spread(mean, sd).removesuffix(" %")

    def distance(self, value: float) -> str:
        """How far two values are apart."""
        return f"{100 * value:.1f} points" if self.percent else _plain(value, 3)


def measure(*runs: Run) -> Measure:
    """The measure that runs have in common; just a score where they differ in it."""
    names = {run.metric for run in runs}
    return Measure.named(names.pop()) if len(names) == 1 else Measure("score", not names & CORRELATIONS)


def _plain(value: float | None, digits: int) -> str:
    return GAP if value is None else f"{value:.{digits}f}"
