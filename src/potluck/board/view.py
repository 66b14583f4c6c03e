"""What the board knows of one run: its curve, its last rounds, its costs, and how long it may take."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from potluck.board.tail import Tail
from potluck.ledger.folder import EVENTS, LIVE, SCORES
from potluck.report.json_values import Json, integer, mapping, number, text

MOST_POINTS = 1000
"""Points of a curve. When there are more, every second one is left out, but never the last."""
MOST_TIERS = 24
LAST_ROUNDS = 30
LAST_FAULTS = 20
RECENT = 20
"""Rounds whose pace tells how long the rest will take."""
LONGEST_TEXT = 300
COSTS = ("bytes_down", "bytes_up", "joules", "device_seconds", "round_seconds", "seconds")


class Curve:
    """Scores by round: of the server's model, and of each tier. Bounded in both directions."""

    def __init__(self, version: int = 0) -> None:
        self.names: list[str] = []
        self.metric = "accuracy"
        self.rounds: list[int] = []
        self.values: dict[int, tuple[float | None, ...]] = {}
        self.version = version
        """Changes when anything but the end of the curve has changed."""

    def add(self, round: int, scores: Json) -> None:
        """Adds a line of scores.jsonl, or what a live log holds of it."""
        self.metric = text(scores.get("metric"), "accuracy")[:40]
        tiers = {text(name)[:80]: tier for name, tier in mapping(scores.get("tiers")).items()}
        for name in tiers:
            if name not in self.names and len(self.names) < MOST_TIERS:
                self.names.append(name)
                self.version += 1
        whole = _score(mapping(scores.get("global")), self.metric)
        if whole is None:
            whole = number(mapping(scores.get("clients")).get("mean"))
        found = (whole, *(_score(mapping(tiers.get(name)), self.metric) for name in self.names))
        known = self.values.get(round)
        if known == found:
            return
        self.values[round] = found
        if known is not None:
            self.version += 1
        elif self.rounds and round < self.rounds[-1]:
            insort(self.rounds, round)
            self.version += 1
        else:
            self.rounds.append(round)
        if len(self.rounds) > MOST_POINTS:
            self.rounds = [*self.rounds[:-1][::2], self.rounds[-1]]
            self.values = {each: self.values[each] for each in self.rounds}
            self.version += 1

    def points(self, first: int = 0) -> list[list[float | None]]:
        """[round, the server's score, each tier's score], from a point on."""
        width = len(self.names) + 1
        rows = ((each, self.values[each]) for each in self.rounds[first:])
        return [[each, *values, *[None] * (width - len(values))] for each, values in rows]


class RunView:
    """One run folder, read as it grows: live.jsonl, and for details the journals as well."""

    def __init__(self, path: Path) -> None:
        self._live, self._scores, self._ledger = (Tail(path / name) for name in (LIVE, SCORES, EVENTS))
        self._clear()

    def _clear(self) -> None:
        self.curve = Curve()
        self.done = 0
        self.latest = 0.0
        self.totals: dict[str, float] = {}
        self.last_rounds: deque[dict[str, Any]] = deque(maxlen=LAST_ROUNDS)
        self.faults: deque[dict[str, Any]] = deque(maxlen=LAST_FAULTS)
        self.warnings: deque[dict[str, Any]] = deque(maxlen=LAST_FAULTS)
        self._pace: deque[tuple[int, float]] = deque(maxlen=RECENT + 1)
        self._now: dict[str, str] = {}
        self._summed: dict[str, float] = {}
        self._from_live = False

    def read(self, whole: bool) -> None:
        """Reads what is new. `whole`: the journals, too, for a run that someone looks at."""
        fresh, events = self._live.read()
        if fresh:
            self._restart()
        self._take(events, live=True)
        if not whole:
            return
        fresh, scores = self._scores.read()
        if fresh:
            self.curve = Curve(self.curve.version + 1)
        for line in scores:
            self.curve.add(round_of(line), line)
        if not self._from_live:
            fresh, events = self._ledger.read()
            if fresh:
                self._summed.clear()
            self._take(events, live=False)

    def _restart(self) -> None:
        """Another process has begun to write: what was read before may have been undone."""
        version = self.curve.version + 1
        for tail in (self._scores, self._ledger):
            tail.forget()
        self._clear()
        self.curve = Curve(version)

    def _take(self, events: Iterable[Json], live: bool) -> None:
        for event in events:
            match event.get("event"):
                case "start":
                    self.done = round_of(event)
                    self._note_time(event)
                case "task":
                    self._task(event)
                case "round":
                    self._end_round(event, live)
                case "warning":
                    told = text(event.get("text"))[:LONGEST_TEXT]
                    self.warnings.append({"round": round_of(event), "text": told})

    def _task(self, event: Json) -> None:
        round, client = round_of(event), text(event.get("client"))[:80]
        outcome, server = text(event.get("outcome")), client == "server"
        self.latest = max(self.latest, number(event.get("time")) or 0.0)
        if not server:
            measured, modelled = mapping(event.get("measured")), mapping(event.get("modelled"))
            for name, source in (("bytes_down", measured), ("bytes_up", measured), ("joules", modelled)):
                self._summed[name] = self._summed.get(name, 0.0) + (number(source.get(name)) or 0.0)
        if round > self.done and not server and len(self._now) < 100_000 and self._now.get(client) != "accepted":
            self._now[client] = outcome
        if outcome not in ("accepted", ""):
            reason = text(event.get("reason"))[:LONGEST_TEXT]
            tier = text(event.get("tier"))[:80]
            self.faults.append({"round": round, "client": client, "tier": tier, "outcome": outcome, "reason": reason})

    def _end_round(self, event: Json, live: bool) -> None:
        round, now = round_of(event), self.now()
        self.done = max(self.done, round)
        counts = {name: integer(event.get(name)) for name in ("asked", "answered", "refused")}
        if counts["asked"] is None:
            counts = {name: now[name] for name in counts}
        self.last_rounds.append({"round": round, **counts, "loss": number(event.get("loss"))})
        self._now.clear()
        if live:
            self._from_live = True
            totals = mapping(event.get("totals"))
            self.totals = {name: found for name in COSTS if (found := number(totals.get(name))) is not None}
            self._note_time(event)
            if scores := mapping(event.get("scores")):
                self.curve.add(round, scores)
            return
        for name in ("device_seconds", "round_seconds", "seconds"):
            self._summed[name] = self._summed.get(name, 0.0) + (number(event.get(name)) or 0.0)
        self.totals = dict(self._summed)

    def _note_time(self, event: Json) -> None:
        when = number(event.get("time"))
        if when is not None:
            self.latest = max(self.latest, when)
            self._pace.append((self.done, when))

    def now(self) -> dict[str, int]:
        """The clients of the round that goes on, as far as they are known."""
        outcomes = list(self._now.values())
        return {
            "asked": len(outcomes),
            "answered": outcomes.count("accepted"),
            "refused": outcomes.count("quarantined"),
        }

    def seconds_left(self, rounds: int | None) -> float | None:
        """How long the remaining rounds will take at the pace of the last ones, by the log's own clock."""
        if rounds is None or len(self._pace) < 2:
            return None
        (first, began), (last, ended) = self._pace[0], self._pace[-1]
        if last <= first or ended < began:
            return None
        return max(rounds - self.done, 0) * (ended - began) / (last - first)


def round_of(event: Json) -> int:
    """The round of an event; 0 if it is none that a run can have."""
    found = integer(event.get("round"))
    return found if found is not None and 0 <= found < 10**9 else 0


def _score(scores: Mapping[str, object], metric: str) -> float | None:
    """The main score on the test set; of models that live with clients, their mean."""
    found = number(mapping(scores.get("test")).get(metric))
    return number(mapping(scores.get("clients")).get("mean")) if found is None else found
