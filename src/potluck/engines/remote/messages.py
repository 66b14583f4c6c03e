"""What the server and a node say to each other: tasks and results as parts of bytes (see `core/message.py`).

The first part of a message is its head. The models and the arrays of a task are parts of their own, each named by a
hash of its bytes, so that equal ones are packed once, and go to a node once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from potluck.core import (
    EMPTY,
    Arrays,
    Bytes,
    Cost,
    Limits,
    MessageError,
    Model,
    Reply,
    Task,
    Zoo,
    one_line,
    pack_array,
    payload,
    size,
    unpack_array,
)
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.form import Malformed, clean_memory, clean_reply
from potluck.engines.remote.transport import Parts
from potluck.engines.remote.updates import Updates, model_bytes, pack_model, read_model

CPU = torch.device("cpu")
MOST = 2.0**53
"""The most that a count or a number of seconds may be."""
MOST_HELD = 16
"""Models that a node keeps, at most: every answer names them."""
RECEIPT = {"sha256": str, "bytes": int, "tier": str}
"""What the server keeps of a node's memory."""


def mark_of(part: Bytes) -> str:
    """The name of a part: a hash of its bytes."""
    return hashlib.sha256(part.data).hexdigest()


@dataclass(frozen=True, eq=False)
class TaskMessage:
    """A task on its way to a node."""

    envelope: TaskEnvelope
    head: Bytes
    tensors: Mapping[str, Bytes]
    """The parts of its models and of its arrays, by mark."""

    def parts(self, held: Collection[str] = ()) -> tuple[Bytes, ...]:
        """The message for a node that holds these parts already."""
        return (self.head, *(part for mark, part in self.tensors.items() if mark not in held))


def pack_task(
    envelope: TaskEnvelope,
    models: Mapping[str, tuple[str, Bytes]],
    arrays: tuple[str, Bytes] | None,
    charter: str,
    oldest: int,
) -> TaskMessage:
    """A task as a message. `models` gives the mark and the part of each model, `arrays` those of the task's arrays, if
    it has some; `oldest` is the round of the server's oldest checkpoint, up to which a node keeps old memories."""
    head = {
        "kind": "task",
        "charter": charter,
        "task": replace(envelope.task, models=EMPTY, arrays=EMPTY),
        "models": {key: mark for key, (mark, _) in models.items()},
        "arrays": arrays[0] if arrays else "",
        "memory": dict(envelope.memory),
        "attempt": envelope.attempt,
        "oldest": oldest,
    }
    return TaskMessage(envelope, pack_array(head), dict([*models.values(), *([arrays] if arrays else [])]))


class ModelCache:
    """The parts with models and arrays that a node got, by mark; the oldest ones go when there are too many bytes."""

    def __init__(self, room: int) -> None:
        self._room, self._bytes = room, 0
        self._parts: OrderedDict[str, Bytes] = OrderedDict()

    def add(self, parts: Parts) -> None:
        for part in parts:
            if (mark := mark_of(part)) not in self._parts:
                self._parts[mark] = part
                self._bytes += len(part)

    def find(self, marks: Sequence[str]) -> list[str]:
        """Those of these parts that are missing; the others are the newest now."""
        for mark in marks:
            if mark in self._parts:
                self._parts.move_to_end(mark)
        return [mark for mark in marks if mark not in self._parts]

    def model(self, mark: str, limits: Limits) -> Model:
        found = unpack_array(self._parts[mark], views=True, limits=limits)
        if not isinstance(found, Model):
            raise MessageError(f"a part that is a {type(found).__name__}, not a model")
        return found

    def arrays(self, mark: str, limits: Limits) -> Arrays:
        found = unpack_array(self._parts[mark], limits=limits)
        if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
            raise MessageError("a part that holds no arrays")
        return found

    def part(self, mark: str) -> Bytes:
        return self._parts[mark]

    def prune(self) -> list[str]:
        """Lets old parts go; returns the marks of those that stay."""
        while len(self._parts) > (1 if self._bytes > self._room else MOST_HELD):
            self._bytes -= len(self._parts.popitem(last=False)[1])
        return list(self._parts)


def pack_result(
    result: TaskResult,
    sent: Task,
    memory: Mapping[str, Any] | None,
    fresh: bool,
    holds: Sequence[str],
    zoo: Zoo,
    updates: Updates,
) -> Parts:
    """A result as a message. `memory` is the receipt of the node's new memory, or None if it did not change."""
    reply = result.reply
    told: dict[str, Any] | None = None
    if reply is not None:
        models = reply.models.items()
        told = {
            "models": {key: pack_model(model, sent.models.get(key), updates, zoo) for key, model in models},
            "arrays": dict(reply.arrays),
            "weight": reply.weight,
            "metrics": reply.metrics,
            "cost": reply.cost,
        }
    head = {
        "kind": "result",
        "reply": told,
        "memory": memory,
        "fault": result.fault,
        "skipped": result.skipped,
        "refused": result.refused,
        "fresh": fresh,
        "holds": list(holds),
    }
    return (pack_array(head),)


def pack_plain(kind: str, **facts: Any) -> Parts:
    """A message that has no tensors."""
    return (pack_array({"kind": kind, **facts}),)


def read_head(parts: Parts, limits: Limits) -> dict[str, Any]:
    """The head of a message, with its kind; a `MessageError` if it has none."""
    if not parts:
        raise MessageError("a message without parts")
    found = unpack_array(parts[0], limits=limits)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise MessageError("a message that does not say what it is")
    return found


@dataclass(frozen=True, eq=False)
class ReadResult:
    """What a node's answer to a task says."""

    result: TaskResult
    missing: bool = False
    """Whether the node lacks parts of the task, and so has done nothing."""
    fresh: bool = False
    """Whether the node had lost the memory that the task named, and started without one."""
    holds: frozenset[str] = frozenset()
    """The marks of the parts that the node holds now."""


def read_result(parts: Parts, envelope: TaskEnvelope, limits: Limits) -> ReadResult:
    """The result in a node's answer. Whatever it holds, this raises nothing: an answer that makes no sense is refused.
    A node that says why it cannot do the task is absent, and has done nothing wrong.

    The task of the result is the one that was sent, whatever the answer says. Its cost counts all models of the task,
    as in a simulation, although a node may hold some already.
    """
    bare, down = bare_task(envelope.task), payload(envelope.task)
    try:
        return _read_result(read_head(parts, limits), envelope.task, bare, down)
    except (MessageError, Malformed) as fault:
        reason = one_line(f"its answer makes no sense: {fault}")
        return ReadResult(TaskResult(bare, Reply(task=bare, cost=Cost(down)), refused=reason))


def bare_task(task: Task) -> Task:
    """The task without its tensors."""
    return Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)


def _read_result(told: Mapping[str, Any], task: Task, bare: Task, down: int) -> ReadResult:
    match told["kind"]:
        case "missing":
            odd = "its answer makes no sense: it lacks models that were just sent"  # the second time, it got all
            return ReadResult(TaskResult(bare, Reply(task=bare, cost=Cost(down)), refused=odd), missing=True)
        case "declined" | "refused" as kind:  # it says why it cannot do the task: no nonsense, and no strike
            return ReadResult(TaskResult(bare, fault=f"it {kind}: {word(told, 'reason') or 'it gave no reason'}"))
        case "result":
            marks = _items(told.get("holds"))[-MOST_HELD:]
            holds = frozenset(mark for mark in marks if isinstance(mark, str) and len(mark) == 64)
            return ReadResult(_result(told, task, bare, down), False, told.get("fresh") is True, holds)
        case odd:
            raise MessageError(f"it is a '{odd[:40]}', not a result")


def _result(told: Mapping[str, Any], task: Task, bare: Task, down: int) -> TaskResult:
    reply, memory = told.get("reply"), told.get("memory")
    if reply is None:
        return TaskResult(bare, fault=word(told, "fault") or "it gave no reason", skipped=told.get("skipped") is True)
    if not isinstance(reply, Mapping):
        raise MessageError("its reply is none")
    models = _mapping(reply.get("models"), "models")
    loose = _mapping(reply.get("arrays"), "arrays")
    found = {key: read_model(key, value, task.models.get(key)) for key, value in models.items()}
    known = [model.spec for model in task.models.values()]
    clean = clean_reply(Reply(found, loose, reply.get("weight"), reply.get("metrics")), CPU, known)  # type: ignore[arg-type]
    up = sum(model_bytes(value) for value in models.values()) + size(clean.arrays)
    whole = Reply(clean.models, clean.arrays, clean.weight, clean.metrics, bare, _cost(reply.get("cost"), down, up))
    return TaskResult(bare, whole, None if memory is None else _receipt(memory), refused=word(told, "refused"))


def word(told: Mapping[str, Any], name: str) -> str:
    """A text in a message, as one line; empty if there is none, or something else."""
    found = told.get(name)
    return one_line(found) if isinstance(found, str) else ""


def _receipt(memory: Any) -> dict[str, Any]:
    """The receipt of a memory. It is kept in every checkpoint, so it must be small."""
    found = clean_memory(memory, CPU)
    if not found.keys() <= RECEIPT.keys() or not all(_fits(name, value) for name, value in found.items()):
        raise MessageError("the receipt of its memory is none")
    return found


def _fits(name: str, value: Any) -> bool:
    """Whether this may stand in a receipt: it is kept in every checkpoint, so it must be small."""
    return type(value) is RECEIPT[name] and len(str(value)) <= 300


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise MessageError(f"its {what} are no mapping")
    return value


def _cost(told: Any, down: int, up: int) -> Cost:
    """What a node says that its work cost, with the bytes that were counted here."""
    found = told if isinstance(told, Cost) else Cost()
    numbers = (found.flops, found.memory, found.seconds)
    if any(isinstance(n, bool) or not isinstance(n, int | float) or not 0 <= n <= MOST for n in numbers):
        raise MessageError("its cost is none")
    return Cost(down, up, int(found.flops), int(found.memory), float(found.seconds))
