"""Batches of tasks as arrays of bytes. Large sets of tensors are apart, so that each is sent once to many clients."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from potluck.core import EMPTY, Arrays, Bytes, Model, Newborn, Spec, Task, pack_array, unpack_array
from potluck.engines.batch_messages import read_batch, write_batch
from potluck.engines.context import TaskEnvelope

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
    """Tasks as a message, and the references to the tensors that are apart."""
    refs: list[R] = []
    places: dict[int, int] = {}
    stubs: dict[tuple[int, Spec], Model] = {}
    apart: list[tuple[int, str, int]] = []

    def aside(number: int, key: str, arrays: Arrays) -> int | None:
        """The place of the parcel with these tensors; None if they stay in the message."""
        if sum(tensor.nbytes for tensor in arrays.values()) < APART:
            return None
        ref = parcels.put(arrays)
        place = places.setdefault(id(ref), len(refs))
        if place == len(refs):
            refs.append(ref)
        apart.append((number, key, place))
        return place

    slim = []
    for number, envelope in enumerate(envelopes):
        task, models = envelope.task, {}
        for key, model in task.models.items():
            place = None if isinstance(model, Newborn) else aside(number, key, model.arrays)
            models[key] = model if place is None else stubs.setdefault((place, model.spec), Model(model.spec, EMPTY))
        arrays = task.arrays if aside(number, "", task.arrays) is None else EMPTY
        bare = Task(task.verb, task.to, task.key, task.round, models, arrays, task.config, task.memory)
        slim.append(replace(envelope, task=bare))
    message, tensors = write_batch(slim)
    return pack_message([*message, apart], tensors), refs


def unpack_tasks(
    message: Bytes, parcels: Sequence[Bytes], method: object, known: dict[Spec, Spec]
) -> list[TaskEnvelope]:
    """The tasks of a message; tasks with equal models share their tensors."""
    (*batch, apart), tensors = unpack_message(message)
    envelopes = read_batch(batch, tensors, method, known)
    contents: list[Arrays] = [unpack_array(parcel) for parcel in parcels]
    whole: dict[tuple[int, Spec], Model] = {}
    for number, key, place in apart:
        task = envelopes[number].task
        models, arrays = dict(task.models), task.arrays
        if key:
            spec = models[key].spec
            models[key] = whole.setdefault((place, spec), Model(spec, contents[place]))
        else:
            arrays = contents[place]
        full = Task(task.verb, task.to, task.key, task.round, models, arrays, task.config, task.memory)
        envelopes[number] = replace(envelopes[number], task=full)
    return envelopes


def pack_message(message: list[Any], tensors: Mapping[str, Tensor]) -> Bytes:
    """JSON values and tensors as one array of bytes."""
    return pack_array([json.dumps(message, separators=(",", ":")), dict(tensors)])


def unpack_message(data: Bytes) -> tuple[list[Any], dict[str, Tensor]]:
    """The JSON values and tensors of an array of bytes; an error if it tells of a fault of the worker itself."""
    found = unpack_array(data)
    if isinstance(found, dict):
        raise RuntimeError(f"a worker failed: {found['fault']}")
    text, tensors = found
    return json.loads(text), tensors
