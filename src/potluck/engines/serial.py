"""The reference engines: one task after the other, as objects or as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import torch

from potluck.core import Reply, Task, pack, unpack
from potluck.engines.batched import BatchedFits, stacked
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.worker import Worker


class Engine(Protocol):
    """Whatever carries letters to devices and outcomes back, in the order of the letters."""

    @property
    def notes(self) -> list[str]:
        """What people should know of how the work is done; whoever reads them takes them away."""

    def carry(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]: ...
    def close(self) -> None: ...


class Serial:
    """Answers every letter here and now, or so many of them in one go as the world says."""

    def __init__(self, context: SimulationContext, workers: int = 1) -> None:
        torch.set_num_threads(1)
        self.notes: list[str] = []
        self.site = Worker(context)
        self.together = BatchedFits(self.site, stacked)

    def carry(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        if self.site.context.stack < 2:
            yield from map(self.site.answer, envelopes)
        rest = iter(envelopes)
        while chosen := list(islice(rest, self.site.context.stack)):
            yield from self.together.answer(chosen)

    def close(self) -> None:
        self.together.close()


class Wire(Serial):
    """Serial, with every message turned into bytes and back: proof that no object survives the trip."""

    def carry(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for envelope in envelopes:
            there = letter_of(pack(sheet(envelope)))
            yield outcome_of(posted(self.site.answer(there)))


def sheet(envelope: TaskEnvelope) -> dict[str, object]:
    """A letter as a value that packs."""
    return {"task": envelope.task, "memory": envelope.memory}


def letter_of(data: bytes) -> TaskEnvelope:
    found = unpack(data)
    task, memory = found["task"], found["memory"]
    assert isinstance(task, Task)
    return TaskEnvelope(task, memory)


def posted(outcome: TaskResult) -> bytes:
    """An outcome as bytes; a reply that cannot travel is a failure of the client that gave it."""
    try:
        return pack(dict(vars(outcome)))
    except (TypeError, ValueError, RecursionError) as fault:
        return pack(dict(vars(TaskResult(outcome.task, fault=f"its reply cannot travel: {fault}"))))


def outcome_of(data: bytes) -> TaskResult:
    found = unpack(data)
    assert isinstance(found["task"], Task)
    assert found["reply"] is None or isinstance(found["reply"], Reply)
    return TaskResult(**found)
