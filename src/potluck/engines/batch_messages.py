"""Messages between an engine and its workers: batches of tasks, and their results.

A message is JSON, and its tensors by name. Both sides are this program, so what the other side knows is left
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
    fold, parts = fold_fields(envelopes)
    every = [_model_fields(model, None, layouts) for model in models.values]
    plain, tensors = split_tensors([every, loose, parts], once=True)
    return [rows, fold, _layout_fields(layouts), plain], tensors


def read_batch(
    message: Sequence[Any], tensors: Mapping[str, Tensor], method: object, known: dict[Spec, Spec]
) -> list[TaskEnvelope]:
    """The batch of tasks that was written. `known` keeps one object for equal specs."""
    rows, fold, layout_fields, plain = message
    model_fields, loose, parts = join_tensors(plain, tensors, shared=True)
    layouts = [BufferLayout.of(*layout) for layout in layout_fields]
    every = [_read_model(model, None, layouts) for model in model_fields]
    every = [type(model)(known.setdefault(model.spec, model.spec), model.arrays) for model in every]
    folds: list[FoldTask] | list[None] = [None] * len(rows)
    if fold is not None:
        folds = read_fold(fold, parts, method)
    envelopes = []
    for number, (verb, to, key, index, numbers, config, version, attempt) in enumerate(rows):
        arrays, memory = loose.get(str(number), (EMPTY, EMPTY))
        models = {name: every[at] for name, at in numbers.items()}
        task = Task(verb, to, key, index, models, arrays, config, version)
        envelopes.append(TaskEnvelope(task, memory, attempt, fold=folds[number]))
    return envelopes


def write_results(
    envelopes: Sequence[TaskEnvelope], results: Sequence[TaskResult]
) -> tuple[list[Any], dict[str, Tensor]]:
    """The results of a batch as JSON values and tensors, with the sums that hold their models."""
    layouts, blocks = Numbered(), Numbered()
    rows, loose = [], {}
    for number, (envelope, result) in enumerate(zip(envelopes, results, strict=True)):
        reply, block = result.reply, None if result.block is None else blocks.number(result.block)
        row: list[Any] = [result.fault, result.skipped, result.refused, block]
        rows.append(row)
        models = {}
        if reply is not None:
            cost = reply.cost
            prices = [cost.bytes_down, cost.bytes_up, cost.flops, cost.memory, cost.seconds]
            row += [dict(result.measures) if result.measures else {}, reply.weight, dict(reply.metrics), prices]
            if block is None:
                sent = envelope.task.models
                models = {key: _model_fields(model, sent.get(key), layouts) for key, model in reply.models.items()}
        arrays = EMPTY if reply is None else reply.arrays
        if models or arrays or result.memory is not None:
            loose[str(number)] = [models, arrays, result.memory]
    plain, tensors = split_tensors([loose, [_sums_fields(sums, layouts) for sums in blocks.values]])
    return [rows, _layout_fields(layouts), plain], tensors


def read_results(
    message: Sequence[Any], tensors: Mapping[str, Tensor], envelopes: Sequence[TaskEnvelope]
) -> list[TaskResult]:
    """The results of these tasks that were written."""
    rows, layout_fields, plain = message
    loose, sums_fields = join_tensors(plain, tensors)
    layouts = [BufferLayout.of(*layout) for layout in layout_fields]
    blocks = [_read_sums(fields, layouts) for fields in sums_fields]
    results = []
    for number, (envelope, row) in enumerate(zip(envelopes, rows, strict=True)):
        fault, skipped, refused, at, *answer = row
        block = None if at is None else blocks[at]
        models, arrays, memory = loose.get(str(number), (EMPTY, EMPTY, None))
        sent, reply, measures = envelope.task, None, EMPTY
        task = Task(sent.verb, sent.to, sent.key, sent.round, config=sent.config, memory=sent.memory)
        if answer:
            measures, weight, metrics, cost = answer
            bare = {"model": Model(sent.models["model"].spec, EMPTY)} if block else {}
            found = {key: _read_model(model, sent.models.get(key), layouts) for key, model in models.items()}
            reply = Reply(found or bare, arrays, weight, metrics, task, Cost(*cost))
        results.append(TaskResult(task, reply, memory, fault, skipped, False, refused, block, measures))
    return results


def sendable(envelope: TaskEnvelope, result: TaskResult) -> TaskResult:
    """The result, or a failure of its client if it cannot be packed."""
    try:
        json.dumps(write_results([envelope], [result])[0])
    except Exception as fault:
        return TaskResult(result.task, fault=f"its reply cannot travel: {describe(fault)}")
    return result


def _sums_fields(sums: Sums, layouts: Numbered) -> Any:
    """Sums as plain values and tensors; each buffer once."""
    flat = [[layouts.number(layout), list(names), buffer] for (layout, names), buffer in sums.flat.items()]
    inside = {name for _, names in sums.flat for name in names}
    totals = {name: total for name, total in sums.totals.items() if name not in inside}
    return [flat, totals, sums.weights, {name: list(pair) for name, pair in sums.maxima.items()}]


def _read_sums(fields: Any, layouts: Sequence[BufferLayout]) -> Sums:
    flat, totals, weights, maxima = fields
    sums = Sums(totals, weights, {name: (maximum, seen) for name, (maximum, seen) in maxima.items()})
    for number, names, buffer in flat:
        sums.flat[layouts[number], tuple(names)] = buffer
        sums.totals |= dict(zip(names, layouts[number].cut(buffer).values(), strict=True))
    return sums


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
