"""The reference engines: tasks run one after the other, as objects or as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import torch

from potluck.core import MessageError, Reply, Task, describe, one_line, pack, unpack
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.worker import Worker
from potluck.learn import run_stacked


class Engine(Protocol):
    """Runs tasks and returns their results, in the order of the tasks."""

    @property
    def notes(self) -> list[str]:
        """Messages for the user about how the work is done. The reader removes them from the list."""

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]: ...
    def close(self) -> None: ...


class Serial:
    """Runs tasks in this process: one by one, or stacked in groups of ``run.stack``."""

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
    """Like `Serial`, but every message becomes bytes and is read back. It proves that no objects are shared."""

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for envelope in envelopes:
            there = unpack_envelope(pack(envelope_fields(envelope)))
            result = self.worker.run(there)
            try:
                yield unpack_result(pack_result(result))
            except MessageError as fault:
                yield TaskResult(result.task, Reply(task=result.task), refused=one_line(str(fault)))


def envelope_fields(envelope: TaskEnvelope) -> dict[str, object]:
    """An envelope as a mapping that `pack` accepts."""
    return {"task": envelope.task, "memory": envelope.memory, "attempt": envelope.attempt}


def unpack_envelope(data: bytes) -> TaskEnvelope:
    """The envelope that was packed into these bytes."""
    found = unpack(data)
    assert isinstance(found["task"], Task)
    return TaskEnvelope(**found)


def pack_result(result: TaskResult) -> bytes:
    """A result as bytes; if a reply cannot be packed, its client failed."""
    try:
        return pack(dict(vars(result)))
    except Exception as fault:
        return pack(dict(vars(TaskResult(result.task, fault=f"its reply cannot travel: {describe(fault)}"))))


def unpack_result(data: bytes) -> TaskResult:
    """The result that was packed into these bytes."""
    found = unpack(data)
    assert isinstance(found["task"], Task)
    assert found["reply"] is None or isinstance(found["reply"], Reply)
    return TaskResult(**found)
