"""What the server and a node say to each other: tasks and results as parts of bytes (see `core/message.py`).

The first part of a message is its head. The models of a task are parts of their own, each named by a hash of its bytes,
so that a model goes to a node once, also if several tasks need it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from potluck.core import (
    EMPTY,
    Arrays,
    Bytes,
    Cost,
    Limits,
    MessageError,
    Model,
    Newborn,
    Reply,
    Spec,
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

Updates: TypeAlias = Literal["exact", "16-bit", "8-bit"]
"""How a node sends a model that it trained: all its numbers, or its difference from the model that it got, rounded."""
CPU = torch.device("cpu")
MOST = 2.0**53
"""The most that a count or a number of seconds may be."""
MOST_HELD = 256
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
    models: Mapping[str, Bytes]
    """The parts of its models, by mark."""

    def parts(self, held: frozenset[str] = frozenset()) -> tuple[Bytes, ...]:
        """The message for a node that holds these models already."""
        return (self.head, *(part for mark, part in self.models.items() if mark not in held))


def pack_task(
    envelope: TaskEnvelope, models: Mapping[str, tuple[str, Bytes]], charter: str, oldest: int, updates: Updates
) -> TaskMessage:
    """A task as a message. `models` gives the mark and the part of each model; `oldest` is the round of the server's
    oldest checkpoint, up to which a node keeps old memories."""
    head = {
        "kind": "task",
        "charter": charter,
        "task": replace(envelope.task, models=EMPTY),
        "models": {key: mark for key, (mark, _) in models.items()},
        "memory": dict(envelope.memory),
        "attempt": envelope.attempt,
        "oldest": oldest,
        "updates": updates,
    }
    return TaskMessage(envelope, pack_array(head), dict(models.values()))


class ModelCache:
    """The models that a node got, by mark; the oldest ones go when there are too many bytes."""

    def __init__(self, room: int) -> None:
        self._room, self._bytes = room, 0
        self._parts: OrderedDict[str, Bytes] = OrderedDict()

    def add(self, parts: Parts) -> None:
        for part in parts:
            if (mark := mark_of(part)) not in self._parts:
                self._parts[mark] = part
                self._bytes += len(part)

    def find(self, marks: Sequence[str]) -> list[str]:
        """Those of these models that are missing; the others are the newest now."""
        for mark in marks:
            if mark in self._parts:
                self._parts.move_to_end(mark)
        return [mark for mark in marks if mark not in self._parts]

    def model(self, mark: str, limits: Limits) -> Model:
        found = unpack_array(self._parts[mark], views=True, limits=limits)
        if not isinstance(found, Model):
            raise MessageError(f"a part that is a {type(found).__name__}, not a model")
        return found

    def prune(self) -> list[str]:
        """Lets old models go; returns the marks of those that stay."""
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
            "models": {key: _pack_model(model, sent.models.get(key), updates, zoo) for key, model in models},
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
    """Whether the node lacks models of the task, and so has done nothing."""
    fresh: bool = False
    """Whether the node had lost the memory that the task named, and started without one."""
    holds: frozenset[str] = frozenset()
    """The models that the node holds now."""


def read_result(parts: Parts, envelope: TaskEnvelope, limits: Limits) -> ReadResult:
    """The result in a node's answer. Whatever it holds, this raises nothing: an answer that makes no sense is refused.

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
    marks = _items(told.get("holds"))[-MOST_HELD:]
    holds = frozenset(mark for mark in marks if isinstance(mark, str) and len(mark) == 64)
    if told["kind"] == "missing":
        odd = "its answer makes no sense: it lacks models that were just sent"  # the second time, it had all of them
        return ReadResult(TaskResult(bare, Reply(task=bare, cost=Cost(down)), refused=odd), missing=True)
    if told["kind"] in ("declined", "refused"):  # it says why it cannot do the task: no nonsense, and no strike
        reason = one_line(str(told.get("reason") or "it gave no reason"))
        return ReadResult(TaskResult(bare, fault=one_line(f"it {told['kind']}: {reason}")))
    if told["kind"] != "result":
        raise MessageError(f"it is a '{told['kind'][:40]}', not a result")
    fresh = told.get("fresh") is True
    reply, memory = told.get("reply"), told.get("memory")
    fault, refused = (one_line(str(told.get(name) or "")) for name in ("fault", "refused"))
    if reply is None:
        skipped = told.get("skipped") is True
        return ReadResult(TaskResult(bare, fault=fault or "it gave no reason", skipped=skipped), False, fresh, holds)
    if not isinstance(reply, Mapping):
        raise MessageError("its reply is none")
    models = _mapping(reply.get("models"), "models")
    loose = _mapping(reply.get("arrays"), "arrays")
    found = {key: _read_model(key, value, task.models.get(key)) for key, value in models.items()}
    known = [model.spec for model in task.models.values()]
    clean = clean_reply(Reply(found, loose, reply.get("weight"), reply.get("metrics")), CPU, known)  # type: ignore[arg-type]
    up = sum(_model_bytes(value) for value in models.values()) + size(clean.arrays)
    whole = Reply(clean.models, clean.arrays, clean.weight, clean.metrics, bare, _cost(reply.get("cost"), down, up))
    receipt = None if memory is None else clean_memory(memory, CPU)
    if receipt is not None and not (receipt.keys() <= RECEIPT.keys() and all(map(_fits, receipt, receipt.values()))):
        raise MessageError("the receipt of its memory is none")
    return ReadResult(TaskResult(bare, whole, receipt, refused=refused), False, fresh, holds)


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


def _pack_model(model: Model, sent: Model | None, updates: Updates, zoo: Zoo) -> Any:
    """A trained model, or its rounded difference from the one that was sent. Buffers are sent as they are."""
    if updates == "exact" or sent is None or isinstance(model, Newborn) or isinstance(sent, Newborn):
        return model
    if model.spec != sent.spec or model.arrays.keys() != sent.arrays.keys():
        return model
    kept = zoo.buffers(model.spec)
    deltas: dict[str, torch.Tensor] = {}
    scales: dict[str, float] = {}
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in model.arrays.items():
        if name in kept or tensor.dtype is not torch.float32:
            whole[name] = tensor
            continue
        deltas[name], scales[name] = _round_off(tensor.detach().cpu() - sent.arrays[name], updates)
    return {"spec": model.spec, "deltas": deltas, "scales": scales, "whole": whole}


def _round_off(delta: torch.Tensor, updates: Updates) -> tuple[torch.Tensor, float]:
    """A difference as small numbers and the scale that they are multiples of; one that is not finite stays so."""
    largest = float(delta.abs().max()) if delta.numel() else 0.0
    if updates == "8-bit":
        scale = largest / 127 if 0 < largest < float("inf") else 1.0
        if largest == largest and largest < float("inf"):
            return (delta / scale).round().to(torch.int8), scale
        return delta, 1.0
    scale = largest if 0 < largest < float("inf") else 1.0
    return (delta / scale).to(torch.float16), scale


def _read_model(key: str, value: Any, sent: Model | None) -> Model:
    if isinstance(value, Model):
        return value
    if not isinstance(value, Mapping) or sent is None or isinstance(sent, Newborn):
        raise MessageError(f"model '{key[:40]}' is none")
    spec, deltas = value.get("spec"), _mapping(value.get("deltas"), "deltas")
    scales, whole = _mapping(value.get("scales"), "scales"), _mapping(value.get("whole"), "tensors")
    if not isinstance(spec, Spec) or deltas.keys() != scales.keys() or deltas.keys() & whole.keys():
        raise MessageError(f"model '{key[:40]}' is no difference from what was sent")
    arrays: dict[str, Any] = {}
    for name in sent.arrays:  # in the order of what was sent, so that sums are the same
        if name in whole:
            arrays[name] = whole[name]
        elif name in deltas:
            arrays[name] = _add(sent.arrays[name], deltas[name], scales[name], name)
    if len(arrays) != len(deltas) + len(whole):
        raise MessageError(f"model '{key[:40]}' has tensors that were not sent")
    return Model(spec, arrays)


def _add(sent: torch.Tensor, delta: Any, scale: Any, name: str) -> torch.Tensor:
    fits = isinstance(delta, torch.Tensor) and delta.shape == sent.shape
    if not fits or not isinstance(scale, float) or delta.dtype not in (torch.int8, torch.float16, torch.float32):
        raise MessageError(f"'{name[:60]}' is no difference from what was sent")
    found: torch.Tensor = sent.detach().cpu() + delta.to(torch.float32) * scale
    return found


def _model_bytes(value: Any) -> int:
    """Bytes of the tensors of a model as they were sent."""
    if isinstance(value, Model):
        return value.nbytes
    arrays: list[Arrays] = [value["deltas"], value["whole"]]
    return sum(size(each) for each in arrays) + 4 * len(value["scales"])
