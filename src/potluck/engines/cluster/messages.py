"""Tasks and results as arrays of bytes. Large sets of tensors are apart, so that each is sent once to many clients."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from potluck.core import Arrays, Bytes, Model, Newborn, Spec, Task, describe, pack_array, unpack_array
from potluck.engines.context import TaskEnvelope, TaskResult

APART = 64_000
"""Sets of tensors of at least this many bytes are apart from the message."""
KEPT = 512 << 20
"""Bytes of parcels that are remembered, so that they are not put again."""
KNOWN = 256
"""How many sets of tensors are known by identity."""

R = TypeVar("R")


class Parcels(Generic[R]):
    """Sets of tensors that were put where workers find them: equal sets once, whatever objects they are."""

    def __init__(self, put: Callable[[Bytes], R]) -> None:
        self._put = put
        self._refs: OrderedDict[bytes, tuple[R, int]] = OrderedDict()
        self._known: OrderedDict[tuple[Any, ...], tuple[list[Tensor], bytes]] = OrderedDict()
        self._bytes = 0
        self.puts = 0
        """How many parcels were put so far."""

    def put(self, arrays: Arrays) -> R:
        """The reference to these tensors."""
        mark = self._digest(arrays)
        if mark in self._refs:
            self._refs.move_to_end(mark)
            return self._refs[mark][0]
        data = pack_array(dict(arrays))
        ref = self._put(data)
        self.puts += 1
        self._refs[mark] = (ref, len(data))
        self._bytes += len(data)
        while self._bytes > KEPT and len(self._refs) > 1:
            self._bytes -= self._refs.popitem(last=False)[1][1]
        return ref

    def _digest(self, arrays: Arrays) -> bytes:
        """A hash of names and contents. Tensors that were hashed before and did not change are known again."""
        tensors = list(arrays.values())
        key = tuple((name, id(tensor), tensor._version) for name, tensor in arrays.items() if not tensor.is_inference())
        if len(key) == len(tensors) and key in self._known:
            self._known.move_to_end(key)
            return self._known[key][1]
        total = hashlib.sha256()
        for name, tensor in arrays.items():
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().data)
        if len(key) == len(tensors):
            self._known[key] = (tensors, total.digest())  # holding the tensors keeps their identities from being reused
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return total.digest()


def pack_tasks(envelopes: Sequence[TaskEnvelope], parcels: Parcels[R]) -> tuple[Bytes, list[R]]:
    """Tasks as a message, and the references to what is apart."""
    refs: list[R] = []
    places: dict[int, int] = {}

    def aside(arrays: Arrays) -> list[Any]:
        if sum(tensor.nbytes for tensor in arrays.values()) < APART:
            return ["here", dict(arrays)]
        ref = parcels.put(arrays)
        if id(ref) not in places:
            places[id(ref)] = len(refs)
            refs.append(ref)
        return ["apart", places[id(ref)]]

    plain = [_envelope_fields(envelope, aside) for envelope in envelopes]
    return pack_array(plain, once=True), refs


def unpack_tasks(message: Bytes, parcels: Iterable[Bytes]) -> list[TaskEnvelope]:
    """The tasks of a message; tasks with equal models share their tensors."""
    apart = [unpack_array(parcel) for parcel in parcels]

    def arrays(form: Sequence[Any]) -> Arrays:
        found: Arrays = form[1] if form[0] == "here" else apart[form[1]]
        return found

    return [_envelope(fields, arrays) for fields in unpack_array(message, shared=True)]


def _envelope_fields(envelope: TaskEnvelope, aside: Callable[[Arrays], list[Any]]) -> dict[str, Any]:
    task = envelope.task
    models = {
        key: [model.spec, None if isinstance(model, Newborn) else aside(model.arrays)]
        for key, model in task.models.items()
    }
    return {
        "task": Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory),
        "models": models,
        "arrays": aside(task.arrays),
        "memory": envelope.memory,
        "attempt": envelope.attempt,
    }


def _envelope(fields: Mapping[str, Any], arrays: Callable[[Sequence[Any]], Arrays]) -> TaskEnvelope:
    bare = fields["task"]
    models = {key: _model(spec, form, arrays) for key, (spec, form) in fields["models"].items()}
    task = Task(
        *(bare.verb, bare.to, bare.key, bare.round, models, arrays(fields["arrays"])),
        *(bare.config, bare.memory),
    )
    return TaskEnvelope(task, fields["memory"], fields["attempt"])


def _model(spec: Spec, form: Sequence[Any] | None, arrays: Callable[[Sequence[Any]], Arrays]) -> Model:
    return Newborn(spec) if form is None else Model(spec, arrays(form))


def pack_results(results: Iterable[TaskResult]) -> Bytes:
    """Results as a message; if a reply cannot be packed, its client failed."""
    found = list(results)
    try:
        return pack_array([vars(result) for result in found])
    except Exception:
        return pack_array([vars(_sendable(result)) for result in found])


def _sendable(result: TaskResult) -> TaskResult:
    try:
        pack_array(vars(result))
    except Exception as fault:
        return TaskResult(result.task, fault=f"its reply cannot travel: {describe(fault)}")
    return result


def unpack_results(message: Bytes) -> list[TaskResult]:
    """The results of a message, with tensors of their own."""
    found = unpack_array(message)
    if isinstance(found, dict):
        raise RuntimeError(f"a worker on the cluster failed: {found['fault']}")
    return [TaskResult(**fields) for fields in found]
