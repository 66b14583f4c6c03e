"""What a worker does with a batch of tasks: it runs them, and adds up the replies if they are blocks of a fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from potluck.engines.batch_messages import sendable, write_results
from potluck.engines.block_sums import BlockSum
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.worker import Worker
from potluck.learn import run_stacked

T = TypeVar("T")
RunAll: TypeAlias = Callable[[Sequence[TaskEnvelope]], list[TaskResult]]


def run_batch(
    worker: Worker,
    read_tasks: Callable[[], Sequence[TaskEnvelope]],
    pack: Callable[[list[Any], Mapping[str, Tensor]], T],
    run_all: RunAll | None = None,
) -> T:
    """Runs a batch of tasks; returns the message with their results, and with their sums if they are whole blocks.

    `read_tasks` gives the tasks as they were sent, also a second time. `run_all` runs them in another way than this
    worker would.
    """
    envelopes = read_tasks()
    if envelopes[0].fold is not None:
        try:
            return pack(*write_results(envelopes, _add_up(worker, envelopes)))
        except Exception:  # the server gets each reply instead, and tells what is wrong
            envelopes = read_tasks()
    results = _run(worker, envelopes) if run_all is None else run_all(envelopes)
    try:
        return pack(*write_results(envelopes, results))
    except Exception:
        return pack(*write_results(envelopes, list(map(sendable, envelopes, results))))


def _run(worker: Worker, envelopes: Sequence[TaskEnvelope]) -> list[TaskResult]:
    stacked = worker.context.stack > 1
    return worker.run_side_by_side(envelopes, run_stacked) if stacked else list(map(worker.run, envelopes))


def _add_up(worker: Worker, envelopes: Sequence[TaskEnvelope]) -> list[TaskResult]:
    """Runs blocks of tasks and adds up the replies one by one, so that only one model is in memory."""
    assert envelopes[0].fold is not None
    rules, results = envelopes[0].fold.rules, list[TaskResult]()
    for _, block in groupby(envelopes, lambda envelope: envelope.fold and envelope.fold.block):
        sums = BlockSum(worker.context, rules)
        results += [sums.add(envelope, worker.run(envelope)) for envelope in block]
    return results
