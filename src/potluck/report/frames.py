"""Runs as pandas frames: scores, costs and tasks. The only file that imports pandas.

Every row says which run it is from: ``run`` (the folder), ``name``, ``method``, ``label``, ``variant`` and ``seed``.
Numbers are those of ``scores.jsonl`` and ``ledger.jsonl``; what is not known is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.ledger import RunFiles, read_run
from potluck.report.json_values import Json, mapping, text
from potluck.report.read import read_record

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame

FRAMES = ("scores", "costs", "tasks")
WHOLE = "all"
"""In the column ``tier``: the whole run, that is the server's model and all clients."""
RUN = ("run", "name", "method", "label", "variant", "seed")
COSTS = (
    *("seconds", "device_seconds", "round_seconds", "bytes_down", "bytes_up", "flops", "joules"),
    *("sent", "accepted", "loss", "least_trained"),
)
MEASURED = {"bytes_down": "bytes_down", "bytes_up": "bytes_up", "seconds": "seconds"}
MODELLED = {"flops": "flops", "memory": "memory", "modelled_seconds": "seconds", "joules": "joules"}
WORDS = ("client", "tier", "verb", "key", "outcome", "reason")
TASK = ("round", "attempt", *WORDS, *MEASURED, *MODELLED, "loss", "samples")
LARGEST = 2**63

Cell = int | float | str | None


class Frames:
    """The frames of some runs: `scores`, `costs` and `tasks`. Each is made when it is asked for.

    scores: a row for each run, scored round and tier; ``tier`` is "all" for the whole run. ``score`` is the main score:
    of the model on the test set, or the clients' mean if only clients have models. The other columns are named as in
    scores.jsonl: ``test.accuracy``, ``validation.loss``, ``clients.worst``.

    costs: a row for each run and round. Bytes, FLOPs and joules are of all clients in that round, without the server.

    tasks: a row for each task of the ledger. ``seconds`` were measured, ``modelled_seconds`` are those of the device.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)

    @cached_property
    def scores(self) -> DataFrame:
        rows = (row for folder in self._folders for row in _score_rows(read_run(folder)))
        return make_frame(rows, (*RUN, "round", "tier", "metric", "score"))

    @cached_property
    def costs(self) -> DataFrame:
        rows = (row for folder in self._folders for row in _cost_rows(folder))
        return make_frame(rows, (*RUN, "round", *COSTS))

    @cached_property
    def tasks(self) -> DataFrame:
        rows = (row for folder in self._folders for row in _task_rows(read_run(folder)))
        return make_frame(rows, (*RUN, *TASK))

    def __getitem__(self, name: str) -> DataFrame:
        if name not in FRAMES:
            raise KeyError(f"there is no frame '{name}'; there are {', '.join(FRAMES)}")
        found: DataFrame = getattr(self, name)
        return found

    def __repr__(self) -> str:
        many = "1 run" if len(self._folders) == 1 else f"{len(self._folders)} runs"
        return f"frames of {many}\n.scores  by run, round and tier\n.costs   by run and round\n.tasks   by task"


def make_frames(folders: Sequence[Path]) -> Frames:
    """The frames of the runs in these folders."""
    return Frames(folders)


def make_frame(rows: Iterable[Mapping[str, object]], first: Sequence[str] = ()) -> DataFrame:
    """Rows as a frame, with these columns first."""
    import pandas as pd

    found = pd.DataFrame(list(rows))
    rest = [name for name in found.columns if name not in first]
    return found.reindex(columns=[*first, *rest])


def _of_run(run: RunFiles) -> dict[str, Cell]:
    """Which run it is, for every row."""
    told = run.manifest
    names = {name: text(told.get(name)) for name in ("name", "method", "label", "variant")}
    return {"run": str(run.path), **names, "seed": _number(told.get("seed"))}


def _score_rows(run: RunFiles) -> Iterator[dict[str, Cell]]:
    of_run, last = _of_run(run), {_number(line.get("round")) or 0: line for line in run.scores}
    for round_, line in sorted(last.items()):
        metric = text(line.get("metric"), "accuracy")
        kinds = {name: line.get(name) for name in ("clients", "local", "personal")}
        groups = {WHOLE: {**mapping(line.get("global")), **kinds}, **mapping(line.get("tiers"))}
        for tier, scores in groups.items():
            found = dict(_leaves(mapping(scores)))
            score = found.get(f"test.{metric}", found.get("clients.mean"))
            start = {"round": round_, "tier": text(tier), "metric": metric, "score": score}
            yield {**of_run, **start, **found}


def _leaves(scores: Json, prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """The numbers in these scores, by their path; lists are left out."""
    for key, value in scores.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{text(key)}.")
        elif (found := _number(value)) is not None:
            yield f"{prefix}{text(key)}", found


def _cost_rows(folder: Path) -> Iterator[dict[str, Cell]]:
    of_run = _of_run(read_run(folder))
    for each in read_record(folder).rounds:
        yield {**of_run, "round": each.number, **{name: getattr(each, name, None) for name in COSTS}}


def _task_rows(run: RunFiles) -> Iterator[dict[str, Cell]]:
    of_run = _of_run(run)
    for event in run.events():
        if event.get("event") != "task":
            continue
        measured, modelled = mapping(event.get("measured")), mapping(event.get("modelled"))
        yield {
            **of_run,
            **{name: _number(event.get(name)) for name in ("round", "attempt", "loss", "samples")},
            **{name: text(event.get(name)) for name in WORDS},
            **{name: _number(measured.get(key)) for name, key in MEASURED.items()},
            **{name: _number(modelled.get(key)) for name, key in MODELLED.items()},
        }


def _number(value: object) -> int | float | None:
    """A finite number as it was written, or None."""
    if type(value) is int:
        return value if -LARGEST <= value < LARGEST else None
    return value if type(value) is float and math.isfinite(value) else None
