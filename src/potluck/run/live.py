"""The live log of a run, live.jsonl: what happens as it happens, for `potluck board`.

The journals reach the disk at checkpoints alone; this file does at once. It is not synced, no result depends on it, and
a resumed run begins it anew. It has one JSON object per line:

    {"event": "start", "time": 1760000000.0, "round": 0, "rounds": 40}
    {"event": "task", "time": ..., "round": 1, "client": "c3", "tier": "phone", "verb": "train", "outcome": "accepted"}
    {"event": "round", "time": ..., "round": 1, "asked": 10, "answered": 9, "refused": 1, "loss": 0.7, "totals": {...},
     "scores": {...}}                                   scores: the main score alone, and only of rounds that have one
    {"event": "warning", "time": ..., "round": 1, "text": "..."}
    {"event": "end", "time": ..., "round": 40, "status": "done"}

It stays below 1 MB, whatever the run. In each round 100 tasks have a line, and then 100 more that were not accepted.
When the file is full, it is written anew, with the tasks of the last rounds, the newest warnings, and older rounds
thinned out.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.core import SERVER, one_line
from potluck.ledger.files import discard, open_new, open_regular, temporary_path, write_all
from potluck.ledger.folder import LIVE
from potluck.run.result import FailedRun
from potluck.run.watch import TaskObserver

if TYPE_CHECKING:
    from potluck.engines import LedgerEntry, RoundSession
    from potluck.fleet.population import Clients
    from potluck.run.result import Result

MOST_BYTES = 1_000_000
"""The file is never larger."""
KEPT_BYTES = 300_000
"""What a file that is written anew keeps at most of rounds, and of tasks."""
LONGEST = 50_000
"""A longer line is left out: that of a round with hundreds of tiers."""
TASK_LINES = 100
"""Lines of a round for its first tasks, and as many more for tasks that were not accepted."""
WRITES = 10
"""Tasks that are written at once, in a second. More than that wait for the next one, or for the end of the round."""

_quote = json.encoder.encode_basestring_ascii
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_TOTALS = ("bytes_down", "bytes_up", "joules", "device_seconds", "round_seconds", "seconds")


class LiveLog(TaskObserver):
    """Writes the live log of a run. An error, such as a full disk, is raised; then the run goes on without it."""

    def __init__(self, population: Clients, folder: Path) -> None:
        self.path, self.population = folder / LIVE, population
        self._size = 0
        self._started = False
        self._head = self._end = b""
        self._waiting: list[bytes] = []
        self._rounds, self._tasks, self._warnings = _Kept(_thin), _Kept(_drop_oldest), _Kept(_drop_oldest, 30_000)
        self._cohort = _Cohort(0, 0)
        self._heard: list[tuple[float, RoundSession, LedgerEntry]] = []
        self._due = 0.0
        self._done = 0

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(open_new(self.path))
        self._started, self._done = True, done
        self._head = _line("start", done, {"rounds": manifest.get("rounds")})
        self._waiting.insert(0, self._head)
        self._write()

    def task(self, session: RoundSession, entry: LedgerEntry) -> None:
        if session.everyone:  # scores are told with their round
            return
        # Lines are made when they are written: many at once cost less than one after each task.
        self._heard.append((time.time(), session, entry))
        now = time.monotonic()
        if now > self._due - 1:
            self._due = max(now, self._due) + 1 / WRITES
            self._write()

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self._make_task_lines()
        told = self._cohort.counts() | {"totals": {name: _short(totals.get(name, 0)) for name in _TOTALS}}
        line = _line("round", done, told | ({"scores": _main_scores(scores)} if scores else {}))
        self._done, self._cohort = done, _Cohort(done, 0)
        if len(line) <= LONGEST:
            self._rounds.add(line)
            self._waiting.append(line)
        self._write()

    def warn(self, text: str) -> None:
        self._make_task_lines()
        line = _line("warning", self._done, {"text": one_line(text, 500)})
        self._warnings.add(line)
        self._waiting.append(line)
        self._write()

    def end(self, outcome: Result | FailedRun) -> None:
        told = {"status": "done"}
        if isinstance(outcome, FailedRun):
            told = {"status": outcome.status, "reason": one_line(outcome.reason, 500)}
        self._make_task_lines()
        self._end = _line("end", self._done, told)
        self._waiting.append(self._end)
        self._write()

    def _make_task_lines(self) -> None:
        """Counts the tasks that were heard of, and makes the lines of those that get one."""
        heard, self._heard = self._heard, []
        for when, session, entry in heard:
            if self._cohort.attempt != (session.index, session.attempt):
                self._cohort = _Cohort(session.index, session.attempt)
            if self._cohort.add(entry):
                line = self._task_line(when, session.index, entry)
                self._tasks.add(line)
                self._waiting.append(line)

    def _task_line(self, when: float, index: int, entry: LedgerEntry) -> bytes:
        """The line of a task, put together by hand: there are many of them."""
        client, tier = entry.task.to, "server"
        if client != SERVER:
            tier = self.population.client(self.population.index(client), index).tier.name
        reason = f',"reason":{_quote(one_line(entry.reason, 200))}' if entry.reason else ""
        return (
            f'{{"event":"task","time":{when:.3f},"round":{index + 1},"client":{_quote(client)},'
            f'"tier":{_quote(tier)},"verb":{_quote(entry.task.verb)},"outcome":"{entry.verdict}"{reason}}}\n'
        ).encode()

    def _write(self) -> None:
        """Writes the lines that wait, once the run has started."""
        self._make_task_lines()
        if not self._started:
            return
        lines, self._waiting = b"".join(self._waiting), []
        try:
            if self._size + len(lines) > MOST_BYTES:
                self._write_anew()
            else:
                self._append(lines)
        except FileNotFoundError:
            if self.path.parent.exists():  # else the run itself will say that its folder is gone
                raise

    def _append(self, lines: bytes) -> None:
        # Opened each time: a run that is cut short leaves no open file, and one that was removed is noticed.
        descriptor = open_regular(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            write_all(descriptor, [lines])
        finally:
            os.close(descriptor)
        self._size += len(lines)

    def _write_anew(self) -> None:
        """Replaces the file by one that holds what is still of use."""
        lines = b"".join([self._head, *self._warnings.lines, *self._rounds.lines, *self._tasks.lines, self._end])
        part = temporary_path(self.path.parent)
        try:
            descriptor = open_new(part)
            try:
                write_all(descriptor, [lines])
            finally:
                os.close(descriptor)
            os.replace(part, self.path)
        except BaseException:
            discard(part)
            raise
        self._size = len(lines)


class _Cohort:
    """The clients of one attempt at a round: who was asked, who answered, who was refused."""

    def __init__(self, index: int, attempt: int) -> None:
        self.attempt = (index, attempt)
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._refused: set[str] = set()
        self._losses: list[float] = []
        self._lines = self._faults = 0

    def add(self, entry: LedgerEntry) -> bool:
        """Counts a task; returns whether it gets a line."""
        client, accepted = entry.task.to, entry.verdict == "accepted"
        if client != SERVER and not entry.skipped:
            self._asked.add(client)
            if accepted:
                self._answered.add(client)
                loss = entry.metrics.get("loss")
                if isinstance(loss, float) and math.isfinite(loss):
                    self._losses.append(loss)
            elif entry.verdict == "quarantined":
                self._refused.add(client)
        self._lines += 1
        if self._lines <= TASK_LINES:
            return True
        self._faults += not accepted
        return not accepted and self._faults <= TASK_LINES

    def counts(self) -> dict[str, Any]:
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        counts = {"asked": len(self._asked), "answered": len(self._answered), "refused": len(self._refused)}
        return counts | ({} if loss is None else {"loss": _short(loss)})


def _line(event: str, done: int, facts: Mapping[str, Any]) -> bytes:
    told = {"event": event, "time": round(time.time(), 3), "round": done, **facts}
    return _ENCODER.encode(told).encode() + b"\n"


def _short(value: float) -> float | None:
    """A number with six digits, or whole; None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.6g}")


def _main_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The main score on the test set in a line of scores.jsonl, in the same places."""
    metric = scores.get("metric", "accuracy")

    def slim(found: Mapping[str, Any]) -> dict[str, Any]:
        test, clients = found.get("test") or {}, found.get("clients") or {}
        told = {"test": {metric: test[metric]}} if test.get(metric) is not None else {}
        return told | ({"clients": {"mean": clients["mean"]}} if clients.get("mean") is not None else {})

    tiers = {name: slim(tier) for name, tier in scores["tiers"].items()}
    return {"metric": metric, "global": slim(scores.get("global") or {}), "tiers": tiers} | slim(
        {"clients": scores.get("clients")}
    )


class _Kept:
    """Lines to keep for a file that is written anew. If they become too many, `shorten` removes some."""

    def __init__(self, shorten: Callable[[list[bytes]], list[bytes]], most: int = KEPT_BYTES) -> None:
        self.lines: list[bytes] = []
        self._size, self._shorten, self._most = 0, shorten, most

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self._size += len(line)
        while self._size > self._most and len(self.lines) > 1:
            self.lines = self._shorten(self.lines)
            self._size = sum(map(len, self.lines))


def _drop_oldest(lines: list[bytes]) -> list[bytes]:
    """The newer half of the lines."""
    return lines[len(lines) // 2 + len(lines) % 2 :]


def _thin(lines: list[bytes]) -> list[bytes]:
    """The newer half of the lines, and every second one of the older half."""
    half = len(lines) // 2
    return lines[:half:2] + lines[half:] if half > 1 else lines[-1:]
