"""What all trackers share: which rounds they are told of, and how they find the same tracker run again."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from potluck.ledger import LedgerError, RunFolder, read_journal, read_regular, write_atomically
from potluck.track.values import Costs, Setting, flat_costs, flat_scores, flat_settings

FILE = "track.json"
"""In the run folder: under which ids trackers know the run."""
TAGS = ("method", "label", "seed", "variant", "name")
Line = tuple[int, Mapping[str, float]]
"""A round, with its scores and costs by name."""


class TrackedRun:
    """A run as its trackers see it."""

    def __init__(self, folder: RunFolder, settings: Mapping[str, Any]) -> None:
        self.folder, self.path = folder, folder.path
        self.settings: dict[str, Setting] = flat_settings(settings)
        self.name = folder.path.resolve().name
        self.group = folder.path.resolve().parent.name
        """All runs of a comparison have the same one."""
        self._ids = _read_ids(folder.path)

    @property
    def id(self) -> str:
        """An id of this run's own. It is kept, so that a resumed run has the same one."""
        if "id" not in self._ids:
            self.keep_id("id", secrets.token_hex(8))
        return self._ids["id"]

    def id_at(self, tracker: str) -> str | None:
        """The id that a tracker gave this run, if it did."""
        return self._ids.get(tracker)

    def keep_id(self, tracker: str, id: str) -> None:
        """Keeps the id that a tracker gave this run."""
        self._ids[tracker] = id
        write_atomically(self.path / FILE, json.dumps(self._ids).encode() + b"\n")

    def tags(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        """Method, label, seed, variant, name, data and the group, as texts."""
        data = manifest.get("data")
        named = {name: str(manifest.get(name, "")) for name in TAGS}
        return {**named, "data": str(data.get("name", "")) if isinstance(data, Mapping) else "", "group": self.group}

    def saved(self) -> int:
        """The last round that is saved; -1 if there is none. What came later would be done again after a kill."""
        return max(self.folder.checkpoints.rounds(), default=-1)

    def lines(self, after: int, up_to: int) -> Iterator[Line]:
        """The rounds in the folder with their scores and costs: those after a round, up to another."""
        scores = {line["round"]: flat_scores(line) for line in read_journal(self.path / "scores.jsonl")}
        costs = _costs_by_round(self.path)
        for round in sorted(scores.keys() | costs.keys()):
            if after < round <= up_to:
                yield round, {**scores.get(round, {}), **costs.get(round, {})}

    @cached_property
    def report(self) -> Path:
        """The run's report, written now."""
        from potluck.report import write_report

        return write_report([self.path], self.path / "report.html")


def _costs_by_round(path: Path) -> dict[int, dict[str, float]]:
    """The costs after each round that is over."""
    found: dict[int, dict[str, float]] = {}
    costs, done = Costs(), 0
    for event in read_journal(path / "ledger.jsonl"):
        round = event.get("round")
        if isinstance(round, int) and round > done:
            if done:
                found[done] = flat_costs(costs.totals)
            done = round
        costs.add(event)
    return {**found, done: flat_costs(costs.totals)} if done else {}


def _read_ids(path: Path) -> dict[str, str]:
    """The ids in a run folder. They are used in names of folders, so only plain ones count."""
    if not os.path.lexists(path / FILE):
        return {}
    try:
        found = json.loads(read_regular(path / FILE))
    except (LedgerError, ValueError, RecursionError):
        return {}
    ids = found.items() if isinstance(found, dict) else ()
    return {name: id for name, id in ids if isinstance(id, str) and re.fullmatch(r"[0-9a-f]{8,64}", id)}


class Tracking:
    """A watch that tells a tracker of a run; the base of all trackers.

    A tracker hears only of rounds that are saved. So no round that it was told of is done again, and nothing that it
    holds can contradict scores.jsonl. What it missed, because the process was killed or the tracker failed, it is told
    when the run is resumed.
    """

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self._told = -1
        self._waiting: list[Line] = []

    def open(self, tags: Mapping[str, str], done: int) -> int:
        """Starts the tracker run, or goes on with it; returns the last round that it holds completely, or -1.

        `done` is the number of rounds that the run has done.
        """
        raise NotImplementedError

    def log(self, line: Line) -> None:
        """Adds a round. Rounds come in order."""
        raise NotImplementedError

    def close(self, status: str) -> None:
        """The run is over for now: "done", "diverged", "failed" or "interrupted"."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Lets go of what is open. It is called last, after an error too."""
        raise NotImplementedError

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        """Opens the tracker run. A resumed run's earlier rounds are told now, if the tracker does not have them."""
        with self._unless_it_fails():
            self._told = self.open(self.run.tags(manifest), done)
            self._tell(done - 1)  # not `done`: its scores may be missing still

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        """Tells of this round, or keeps it until it is saved."""
        self._waiting.append((done, {**flat_scores(scores or {}), **flat_costs(totals)}))
        with self._unless_it_fails():
            self._tell(self.run.saved())

    def warn(self, text: str) -> None:
        """Warnings are not told: they may name files and machines."""

    def end(self, outcome: Any) -> None:
        """Tells what is left, and closes the tracker run."""
        with self._unless_it_fails():
            self._tell(self.run.saved())
            self.close(getattr(outcome, "status", "done"))
        self.let_go()

    @contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        """Lets go after an error: a tracker that fails is not called again."""
        try:
            yield
        except Exception:
            with suppress(Exception):  # a second error must not hide the first
                self.let_go()
            raise

    def _tell(self, up_to: int) -> None:
        """Tells of all rounds up to this one: first of those that were not heard of, as the folder has them."""
        heard = self._waiting[0][0] - 1 if self._waiting else up_to
        if self._told < min(heard, up_to):
            self._log(self.run.lines(self._told, min(heard, up_to)))
            self._told = min(heard, up_to)
        ready = [line for line in self._waiting if line[0] <= up_to]
        del self._waiting[: len(ready)]
        self._log(ready)

    def _log(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if line[0] > self._told:
                self.log(line)
                self._told = line[0]
