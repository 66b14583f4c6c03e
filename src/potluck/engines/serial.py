"""The reference engines: one task after the other, as objects or as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import torch

from potluck.core import Reply, Task, pack, unpack
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.worker import Worker
from potluck.learn import run_stacked


class Engine(Protocol):
    """Whatever carries tasks to devices and results back, in the order of the tasks."""

    @property
    def notes(self) -> list[str]:
        """What people should know of how the work is done; whoever reads them takes them away."""

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]: ...
    def close(self) -> None: ...


class Serial:
    """Runs every task here and now, or as many in one go as ``run.stack`` says."""

    def __init__(self, context: SimulationContext, workers: int = 1) -> None:
        torch.set_num_threads(1)
        self.notes: list[str] = []
        self.worker = Worker(context)

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        if self.worker.context.stack < 2:
            yield from map(self.worker.run, envelopes)
            return
        rest = iter(envelopes)
        while chosen := list(islice(rest, self.worker.context.stack)):
            yield from self.worker.run_side_by_side(chosen, run_stacked)

    def close(self) -> None:
        self.worker.close()


class Wire(Serial):
    """Serial, with every message turned into bytes and back: proof that no object survives the trip."""

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for envelope in envelopes:
            there = unpack_envelope(pack(envelope_fields(envelope)))
            yield unpack_result(pack_result(self.worker.run(there)))


def envelope_fields(envelope: TaskEnvelope) -> dict[str, object]:
    """An envelope as a value that packs."""
    return {"task": envelope.task, "memory": envelope.memory}


def unpack_envelope(data: bytes) -> TaskEnvelope:
    """The envelope of these bytes."""
    found = unpack(data)
    task, memory = found["task"], found["memory"]
    assert isinstance(task, Task)
    return TaskEnvelope(task, memory)


def pack_result(result: TaskResult) -> bytes:
    """A result as bytes; a reply that cannot be packed is a failure of the client that gave it."""
    try:
        return pack(dict(vars(result)))
    except (TypeError, ValueError, RecursionError) as fault:
        return pack(dict(vars(TaskResult(result.task, fault=f"its reply cannot travel: {fault}"))))


def unpack_result(data: bytes) -> TaskResult:
    """The result of these bytes."""
    found = unpack(data)
    assert isinstance(found["task"], Task)
    assert found["reply"] is None or isinstance(found["reply"], Reply)
    return TaskResult(**found)
