"""The runs of a folder: which there are, and how each of them stands."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck.board.tail import last_objects, read_object
from potluck.board.view import COSTS, Curve, RunView, round_of
from potluck.ledger import owner_of
from potluck.ledger.folder import EVENTS, LIVE, MANIFEST, SCORES
from potluck.report.json_values import Json, integer, mapping, number, sequence, text

MOST_RUNS = 1000
MOST_FOLDERS = 10_000
LONGEST_NAME = 200
ENDED = ("done", "interrupted", "diverged", "failed")


@dataclass
class FoundRun:
    """A run folder, and what is known of it."""

    id: str
    path: Path
    folder: str
    """Its path from the board's folder on."""
    manifest: Json = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    view: RunView | None = None
    _seen: tuple[int, int, int] | None = None

    def update(self, chosen: bool) -> None:
        """Reads what has changed. `chosen`: someone looks at its details."""
        seen = _signature(self.path / MANIFEST)
        if seen == self._seen and not chosen and self.row.get("status", "running") != "running":
            return  # a run that goes on again writes its manifest first
        self._seen = seen
        manifest = read_object(self.path / MANIFEST)
        self.manifest = manifest if manifest is not None else {}
        status, where = self._status()
        if status == "running" or chosen:
            self.view = self.view or RunView(self.path)
            self.view.read(whole=chosen)
        else:
            self.view = None
        self.row = self._describe(status, where)

    def _status(self) -> tuple[str, str]:
        """How the run stands, and the other machine that it runs on, if that is so."""
        status = text(self.manifest.get("status"))
        if status != "running":
            return status if status in ENDED else "unreadable", ""
        owner = owner_of(self.path)
        if owner is not None:
            return "running", "" if owner.here else owner.host[:LONGEST_NAME]
        # It may have ended since its manifest was read.
        self.manifest = read_object(self.path / MANIFEST) or {}
        status = text(self.manifest.get("status"))
        return ("dead" if status == "running" else status if status in ENDED else "unreadable"), ""

    def _describe(self, status: str, where: str) -> dict[str, Any]:
        told, rounds = self.manifest, integer(self.manifest.get("rounds"))
        done, score, metric = self._progress()
        parts = (text(told.get("label")) or text(told.get("method")), text(told.get("variant")))
        label = ", ".join(part for part in parts if part) or self.path.name
        view = self.view
        left = view.seconds_left(rounds) if view and status == "running" else None
        return {
            "id": self.id,
            "folder": _shown(self.folder),
            "name": _shown(text(told.get("name"))),
            "label": _shown(label),
            "seed": integer(told.get("seed")),
            "status": status,
            "where": _shown(where),
            "reason": "" if status in ("done", "running") else text(told.get("fault"))[:500],
            "fault_round": integer(told.get("fault_round")),
            "started": text(told.get("started"))[:40],
            "rounds": rounds,
            "done": done,
            "score": score,
            "metric": metric,
            "left": None if left is None else float(f"{left:.3g}"),
        }

    def _progress(self) -> tuple[int, float | None, str]:
        """Rounds that are done, the last score, and what it is."""
        view = self.view
        if view and (view.curve.rounds or view.done):
            last = view.curve.values[view.curve.rounds[-1]][0] if view.curve.rounds else None
            return max(view.done, view.curve.rounds[-1] if view.curve.rounds else 0), last, view.curve.metric
        result = mapping(self.manifest.get("result"))
        if result:
            metric = text(result.get("metric"), "accuracy")[:40]
            whole = mapping(mapping(mapping(result.get("scores")).get("global")).get("test"))
            if (score := number(whole.get(metric))) is not None:
                return integer(result.get("rounds")) or 0, score, metric
        curve = Curve()
        for line in last_objects(self.path / SCORES, 1 << 20)[-1:]:
            curve.add(round_of(line), line)
        ended = [*last_objects(self.path / EVENTS), *last_objects(self.path / LIVE)]
        rounds = []
        for event in ended:
            if event.get("event") == "round":
                rounds.append(round_of(event))
                if scores := mapping(event.get("scores")):
                    curve.add(rounds[-1], scores)
        score = curve.values[curve.rounds[-1]][0] if curve.rounds else None
        return max([*rounds, *curve.rounds], default=0), score, curve.metric

    def detail(self) -> dict[str, Any]:
        """All but the curve of a run that someone looks at."""
        view, told = self.view, self.manifest
        if view is None:
            return {}
        names = {text(key): _shown(text(name)) for key, name in mapping(told.get("nodes")).items()}
        faults = [{**fault, "client": names.get(fault["client"], fault["client"])} for fault in view.faults]
        totals = view.totals or {
            name: found for name in COSTS if (found := number(mapping(told.get("result")).get(name))) is not None
        }
        return {
            "tiers": [
                {"name": _shown(text(tier.get("name"))), "clients": integer(tier.get("clients"))}
                for tier in map(mapping, sequence(told.get("tiers"))[:24])
            ],
            "engine": _shown(text(told.get("engine"))),
            "cohort": integer(told.get("cohort")),
            "totals": totals,
            "now": view.now(),
            "last_rounds": list(view.last_rounds),
            "faults": faults,
            "warnings": list(view.warnings),
            "latest": view.latest or None,
        }


class FollowedRuns:
    """The runs directly in a folder and one level below it. Links are not followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: dict[str, FoundRun] = {}
        self.left_out = 0

    def update(self, chosen: Collection[str]) -> None:
        """Looks for new runs and lost ones, and reads what has changed in the others."""
        found: dict[str, FoundRun] = {}
        self.left_out = 0
        for folder, path in _run_folders(self.root):
            if len(found) == MOST_RUNS:
                self.left_out += 1
                continue
            id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
            found[id] = self.runs.get(id) or FoundRun(id, path, folder)
            found[id].update(id in chosen)
        self.runs = found


def _run_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Every run folder, with its name from the root on."""
    if _is_run(root):
        yield root.resolve().name, root
    below = _folders(root)
    for name in below:
        if _is_run(root / name):
            yield name, root / name
        else:
            for inner in _folders(root / name):
                if _is_run(root / name / inner):
                    yield f"{name}/{inner}", root / name / inner


def _folders(path: Path) -> list[str]:
    """The folders in a folder, sorted; links to folders are none."""
    found: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                    if len(found) == MOST_FOLDERS:
                        break
    except OSError:
        return []
    return sorted(found)


def _is_run(path: Path) -> bool:
    return _signature(path / MANIFEST) is not None


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Changes when a regular file is replaced or written; None if there is none."""
    try:
        state = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (state.st_ino, state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else None


def _shown(name: str) -> str:
    """A name that fits on the page, without control characters and without halves of letters."""
    whole = name[:LONGEST_NAME].encode(errors="replace").decode()
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in whole)
