"""Sums in the workers: a block of replies is checked and added up where the replies are made.

The mean adds its contributions in fixed blocks of tasks. If one worker runs all tasks of a block, it checks each reply
with the server's own gate, weighs it with the method's own function, and returns one sum instead of all the models. The
sum has the same bits as on the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core import EMPTY, Expected, Model, Reply, Shapes, Task
from potluck.engines.context import FoldRules, FoldTask, SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.gate import Gate
from potluck.engines.usual import Usual
from potluck.parts import Mask, OverlapMean, Part, Place, Sums


@dataclass
class KnownLimits(Usual):
    """The limits that follow from earlier rounds, without the numbers that they follow from."""

    limits: Mapping[str, float] = EMPTY

    def limit(self, kind: str, times: float) -> float | None:
        return self.limits.get(kind)


def can_check(expects: Expected, method: object) -> bool:
    """Whether a worker can check the metrics: with a function of the method, and plain arguments by name."""
    check = expects.metrics
    if check is None:
        return True
    if not isinstance(check, partial) or check.args or getattr(check.func, "__self__", None) is not method:
        return False
    return all(isinstance(value, bool | int | float | str) for value in check.keywords.values())


def fold_fields(envelopes: Sequence[TaskEnvelope]) -> tuple[dict[str, Any] | None, list[Any]]:
    """The places of a block of tasks in their fold: JSON values, and parts that `split_tensors` accepts.

    None if the tasks have no places. What several tasks have in common is written once.
    """
    folds = [envelope.fold for envelope in envelopes if envelope.fold is not None]
    if not folds or len(folds) < len(envelopes):
        return None, []
    rules, shapes, parts = folds[0].rules, Numbered(), Numbered()
    whole = shapes.number(rules.whole)
    tasks = []
    for fold in folds:
        expects, check = fold.expects, fold.expects.metrics
        tasks.append([
            fold.position,
            parts.number(fold.held),
            {key: shapes.number(model) for key, model in expects.models.items()},
            shapes.number(expects.arrays),
            [check.func.__name__, check.keywords] if isinstance(check, partial) else None,
        ])  # fmt: skip
    fields = {
        "gate": vars(rules.gate),
        "limits": rules.gate.limits(rules.usual),
        "known": rules.known,
        "whole": whole,
        "shapes": [_shapes_fields(found) for found in shapes.values],
        "tasks": tasks,
    }
    return fields, [_part_fields(found) for found in parts.values]


def read_fold(fields: Mapping[str, Any], part_fields: Sequence[Any], method: object) -> list[FoldTask]:
    """The places that `fold_fields` described, for a worker with this method."""
    shapes, parts = list(map(_read_shapes, fields["shapes"])), list(map(_read_part, part_fields))
    usual = KnownLimits(limits=fields["limits"])
    rules = FoldRules(Gate(**fields["gate"]), usual, fields["known"], shapes[fields["whole"]], len(fields["tasks"]))
    found = []
    for position, part, models, arrays, check in fields["tasks"]:
        metrics = None if check is None else partial(getattr(method, check[0]), **check[1])
        expects = Expected({key: shapes[number] for key, number in models.items()}, shapes[arrays], metrics)
        found.append(FoldTask(rules, position, parts[part], expects))
    return found


class BlockSum:
    """Checks the replies to one block of tasks, and adds up those that pass."""

    def __init__(self, context: SimulationContext, rules: FoldRules) -> None:
        self._context, self._rules = context, rules
        # The mean looks at shapes and dtypes of the whole, not at its numbers.
        self._mean = OverlapMean({
            name: torch.zeros((), dtype=dtype).expand(shape) for name, (shape, dtype) in rules.whole.items()
        })  # fmt: skip
        self.sums: Sums = self._mean.block
        """The sum so far."""

    def add(self, envelope: TaskEnvelope, result: TaskResult) -> TaskResult:
        """Adds the model of a reply that passes the gate. Returns the result without it, or with the refusal."""
        fold, reply, rules = envelope.fold, result.reply, self._rules
        if reply is None or result.refused:
            return result
        assert fold is not None
        sent = envelope.task
        task = Task(sent.verb, sent.to, models=sent.models, expects=fold.expects)
        samples = partial(self._context.samples, sent.to) if rules.known else None
        if refused := rules.gate.refusal(task, reply, samples, rules.usual):
            return TaskResult(result.task, Reply(task=result.task, cost=reply.cost), refused=refused)
        model, weight = reply.models["model"], self._context.method.weigh(reply, self._context.zoo)
        self._mean.add(model.arrays, fold.held, weight, fold.position)
        bare = {"model": Model(model.spec, EMPTY)}
        stamped = Reply(bare, reply.arrays, reply.weight, reply.metrics, reply.task, reply.cost)
        measures = rules.gate.measures(task, reply, rules.known)
        return TaskResult(result.task, stamped, result.memory, block=self.sums, measures=measures)


class Numbered:
    """Values that are written once, each with a number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """The number of this object; equal shapes have one number."""
        found = self._numbers.get(id(value))
        if found is None:
            equal = (n for n, other in enumerate(self.values) if isinstance(value, Mapping) and other == value)
            found = self._numbers[id(value)] = next(equal, len(self.values))
            if found == len(self.values):
                self.values.append(value)
        return found


def _shapes_fields(shapes: Shapes) -> list[list[Any]]:
    return [[name, list(shape), str(dtype).removeprefix("torch.")] for name, (shape, dtype) in shapes.items()]


def _read_shapes(fields: Sequence[Sequence[Any]]) -> Shapes:
    return {name: (tuple(shape), getattr(torch, dtype)) for name, shape, dtype in fields}


def _part_fields(held: Part | Mask) -> Any:
    """A part as plain values and tensors. Units are left out: only the server counts them."""
    if isinstance(held, Mask):
        return {"masks": held.masks}
    if held.entire:
        return {}
    places = {
        name: [place.name, [_index_fields(index) for index in place.dims], list(place.copies)]
        for name, place in held.places.items()
    }
    return {"places": places}


def _index_fields(index: tuple[slice, ...] | Tensor | None) -> Any:
    return [[run.start, run.stop] for run in index] if isinstance(index, tuple) else index


def _read_part(fields: Mapping[str, Any]) -> Part | Mask:
    if "masks" in fields:
        return Mask(fields["masks"])
    if not fields:
        return Part(entire=True)
    return Part({
        name: Place(there, tuple(_read_index(index) for index in dims), tuple(copies))
        for name, (there, dims, copies) in fields["places"].items()
    })  # fmt: skip


def _read_index(index: Any) -> tuple[slice, ...] | Tensor | None:
    return tuple(slice(start, stop) for start, stop in index) if isinstance(index, list) else index
