"""What one open page is told, as server-sent events: what has changed since it was told last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from potluck.board.runs import FollowedRuns, FoundRun
from potluck.report.units import MetricFormat

RETRY = 2000
"""Milliseconds after which a browser asks again if the stream breaks off."""


class Listener:
    """One open page: which runs it looks at, and what it knows of them."""

    def __init__(self, chosen: Sequence[str], allow_stop: bool) -> None:
        self.chosen, self.allow_stop = tuple(dict.fromkeys(chosen))[:2], allow_stop
        self._rows: dict[str, str] | None = None
        self._left_out = -1
        self._details: dict[str, str] = {}
        self._curves: dict[str, tuple[int, int]] = {}

    def news(self, runs: FollowedRuns) -> Iterator[str]:
        """Events for the page: `runs`, the rows that have changed; `run`, the details of a run that is looked at."""
        rows = {id: _encode(run.row | {"can_stop": self._can_stop(run)}) for id, run in runs.runs.items()}
        known = self._rows or {}
        changed = [row for id, row in rows.items() if known.get(id) != row]
        gone = [id for id in known if id not in rows]
        if self._rows is None or changed or gone or self._left_out != runs.left_out:
            rest = _encode({"gone": gone, "left_out": runs.left_out, "whole": self._rows is None})
            yield _event("runs", f'{{"rows":[{",".join(changed)}],{rest[1:]}')
        self._rows, self._left_out = rows, runs.left_out
        for id in self.chosen:
            run = runs.runs.get(id)
            if run is None:
                self._details.pop(id, None)
                self._curves.pop(id, None)
            elif told := self._detail(run):
                yield _event("run", _encode(told))

    def _detail(self, run: FoundRun) -> dict[str, Any] | None:
        """What is new of a run: the rest of its curve, and all other facts if one of them has changed."""
        if run.view is None:
            return None
        curve = run.view.curve
        version, first = self._curves.get(run.id, (-1, 0))
        if version != curve.version:
            first = 0
        rest = _encode(run.detail())
        if version == curve.version and first == len(curve.rounds) and self._details.get(run.id) == rest:
            return None
        self._curves[run.id], self._details[run.id] = (curve.version, len(curve.rounds)), rest
        metric = MetricFormat.of_metric(curve.metric)
        return {
            "id": run.id,
            "metric": metric.name,
            "percent": metric.percent,
            "names": curve.names,
            "first": first,
            "points": curve.points(first),
            **run.detail(),
        }

    def _can_stop(self, run: FoundRun) -> bool:
        return self.allow_stop and run.row.get("status") == "running" and not run.row.get("where")


def _encode(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"
