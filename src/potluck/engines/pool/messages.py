"""Messages between the pool and its workers: batches of tasks, and their results.

A message is JSON; its tensors are in shared memory. Both sides are this program, so what the other side knows is left
out: a result does not repeat its task. What tasks share is written once: models, parts and shapes. Arrays that lie in
one buffer stay in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from potluck.core import (
    EMPTY,
    BufferLayout,
    Cost,
    FlatArrays,
    Model,
    Reply,
    Spec,
    Task,
    describe,
    join_tensors,
    split_tensors,
    to_plain,
)
from potluck.engines.block_sums import Numbered, fold_fields, read_fold
from potluck.engines.context import FoldTask, TaskEnvelope, TaskResult
from potluck.parts import Sums


def write_batch(envelopes: Sequence[TaskEnvelope]) -> tuple[list[Any], dict[str, Tensor]]:
    """A batch of tasks as JSON values and tensors."""
    models, layouts = Numbered(), Numbered()
    rows, loose = [], {}
    for number, envelope in enumerate(envelopes):
        task = envelope.task
        numbers = {key: models.number(model) for key, model in task.models.items()}
        config = to_plain(task.config) if task.config else {}
        rows.append([task.verb, task.to, task.key, task.round, numbers, config, task.memory, envelope.attempt])
        if task.arrays or envelope.memory:
            loose[str(number)] = [task.arrays, envelope.memory]
    fields = {
        "models": [_model_fields(model, None, layouts) for model in models.values],
        "layouts": _layout_fields(layouts),
        "loose": loose,
        "fold": fold_fields(envelopes),
    }
    plain, tensors = split_tensors(fields, once=True)
    return [rows, plain], tensors


def read_batch(
    message: Sequence[Any], tensors: Mapping[str, Tensor], method: object, known: dict[Spec, Spec]
) -> list[TaskEnvelope]:
    """The batch of tasks that was written. `known` keeps one object for equal specs."""
    rows, plain = message
    fields = join_tensors(plain, tensors, shared=True)
    layouts = [BufferLayout.of(*layout) for layout in fields["layouts"]]
    every = [_read_model(model, None, layouts) for model in fields["models"]]
    every = [type(model)(known.setdefault(model.spec, model.spec), model.arrays) for model in every]
    folds: list[FoldTask] | list[None] = [None] * len(rows)
    if fields["fold"] is not None:
        folds = read_fold(fields["fold"], method)
    envelopes = []
    for number, (verb, to, key, index, numbers, config, version, attempt) in enumerate(rows):
        arrays, memory = fields["loose"].get(str(number), (EMPTY, EMPTY))
        models = {name: every[at] for name, at in numbers.items()}
        task = Task(verb, to, key, index, models, arrays, config, version)
        envelopes.append(TaskEnvelope(task, memory, attempt, fold=folds[number]))
    return envelopes


def write_results(
    envelopes: Sequence[TaskEnvelope], results: Sequence[TaskResult], sums: Sums | None = None
) -> tuple[list[Any], dict[str, Tensor]]:
    """The results of a batch as JSON values and tensors, and the sum of those that say so."""
    layouts = Numbered()
    rows, loose = [], {}
    for number, (envelope, result) in enumerate(zip(envelopes, results, strict=True)):
        reply, summed = result.reply, result.block is not None
        row: list[Any] = [result.fault, result.skipped, result.refused, summed, dict(result.measures)]
        rows.append(row)
        models = {}
        if reply is not None:
            cost = reply.cost
            prices = [cost.bytes_down, cost.bytes_up, cost.flops, cost.memory, cost.seconds]
            row += [reply.weight, dict(reply.metrics), prices]
            if not summed:
                sent = envelope.task.models
                models = {key: _model_fields(model, sent.get(key), layouts) for key, model in reply.models.items()}
        arrays = EMPTY if reply is None else reply.arrays
        if models or arrays or result.memory is not None:
            loose[str(number)] = [models, arrays, result.memory]
    fields = {
        "layouts": _layout_fields(layouts),
        "loose": loose,
        "sums": None if sums is None else sums.fields(),
    }
    plain, tensors = split_tensors(fields)
    return [rows, plain], tensors


def read_results(
    message: Sequence[Any], tensors: Mapping[str, Tensor], envelopes: Sequence[TaskEnvelope]
) -> list[TaskResult]:
    """The results of these tasks that were written."""
    rows, plain = message
    fields = join_tensors(plain, tensors)
    layouts = [BufferLayout.of(*layout) for layout in fields["layouts"]]
    sums = None if fields["sums"] is None else Sums.of(fields["sums"])
    results = []
    for number, (envelope, row) in enumerate(zip(envelopes, rows, strict=True)):
        fault, skipped, refused, summed, measures, *answer = row
        models, arrays, memory = fields["loose"].get(str(number), (EMPTY, EMPTY, None))
        sent, reply = envelope.task, None
        task = Task(sent.verb, sent.to, sent.key, sent.round, config=sent.config, memory=sent.memory)
        if answer:
            weight, metrics, cost = answer
            bare = {"model": Model(sent.models["model"].spec, EMPTY)} if summed else {}
            found = {key: _read_model(model, sent.models.get(key), layouts) for key, model in models.items()}
            reply = Reply(found or bare, arrays, weight, metrics, task, Cost(*cost))
        block = sums if summed else None
        results.append(TaskResult(task, reply, memory, fault, skipped, False, refused, block, measures))
    return results


def sendable(envelope: TaskEnvelope, result: TaskResult) -> TaskResult:
    """The result, or a failure of its client if it cannot be packed."""
    try:
        json.dumps(write_results([envelope], [result])[0])
    except Exception as fault:
        return TaskResult(result.task, fault=f"its reply cannot travel: {describe(fault)}")
    return result


def _layout_fields(layouts: Numbered) -> list[Any]:
    return [[layout.entries, layout.channels_last] for layout in layouts.values]


def _model_fields(model: Model, sent: Model | None, layouts: Numbered) -> Any:
    """A model with its arrays in one buffer, if they are. The spec of the model that was sent is left out."""
    arrays = model.arrays
    if type(model) is not Model or not isinstance(arrays, FlatArrays):
        return model
    spec = None if sent is not None and sent.spec is model.spec else model.spec
    return [spec, layouts.number(arrays.layout), arrays.buffer, arrays.others]


def _read_model(fields: Any, sent: Model | None, layouts: Sequence[BufferLayout]) -> Model:
    if isinstance(fields, Model):
        return fields
    spec, layout, buffer, others = fields
    return Model(sent.spec if spec is None and sent is not None else spec, FlatArrays(buffer, layouts[layout], others))
