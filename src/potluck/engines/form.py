"""The form of a reply: plain values and dense tensors of bounded size, whatever client code returned.

Every engine's worker reads a reply here, once, before anything is packed. So a reply gets the same verdict on all of
them, and what comes out can always be packed and unpacked. NumPy's numbers become Python's; tuples become lists. The
numbers in tensors are not read: that is for the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from potluck.core import (
    EMPTY,
    MESSAGE,
    Arrays,
    BufferLayout,
    FlatArrays,
    Model,
    Newborn,
    Reply,
    Spec,
    client_fault,
    count_nodes,
    describe,
    is_shape,
    one_line,
)

T = TypeVar("T")

DEPTH = 32
"""Nesting. A mapping takes up to two levels of a message, so this is well below the limit of a message."""
NODES = 200_000
"""Values, names and commas in texts: what a message counts. The rest of its limit is for the task and the cost."""
TEXT = 8 << 20
"""Bytes of texts and names, half of what the head of a message may have."""
BITS = 1023
"""Bits of an integer: one that has more is no float, and can be too long to write."""
TENSOR = 4
"""A tensor counts as this many values: its place in a message has as many."""
MOST = MESSAGE.bytes - 2 * MESSAGE.head
"""Bytes of tensors, so that a message has room for its head and its table."""
SPARE = 16 << 20
REPEATS = 8
"""A reply may claim as many bytes as its memory holds, times this, and some to spare. Views of one tensor may overlap;
but a tensor of a terabyte may not consist of one number, because packing writes all of it."""

_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


class Malformed(ValueError):
    """A reply that has no form in which it can be sent; the message says where and why."""


def clean_reply(reply: Reply, hardware: torch.device, known: Iterable[Spec] = ()) -> Reply:
    """The reply with only plain values and dense tensors; `Malformed` if it has others.

    `known`: specs that the server sent, which need no check.
    """
    return _guard(_Reader(hardware, known).reply, reply)


def clean_memory(memory: Any, hardware: torch.device, known: Iterable[Spec] = ()) -> dict[str, Any]:
    """A client's memory with only plain values, dense tensors, models and specs; `Malformed` if it has others."""
    return _guard(_Reader(hardware, known).memory, memory)


def _guard(read: Callable[[Any], T], value: Any) -> T:
    """Client code may run while a reply is read (a mapping of its own). Whatever it raises is a malformed reply."""
    try:
        return read(value)
    except Malformed as fault:
        raise Malformed(one_line(str(fault))) from None
    except BaseException as fault:
        raise Malformed(f"it cannot be read: {describe(client_fault(fault))}") from None


class _Reader:
    """Reads one reply or memory, and counts what it has read."""

    def __init__(self, hardware: torch.device, known: Iterable[Spec]) -> None:
        self._where = {"cpu", hardware.type}
        self._known = {id(spec): spec for spec in known}
        self._nodes = self._text = self._claimed = self._held = 0
        self._storages: set[int] = set()

    def reply(self, reply: Reply) -> Reply:
        weight = self.plain(reply.weight, "weight")
        metrics = {name: self.plain(item, f"metrics.{name}", 1) for name, item in self._items(reply.metrics, "metrics")}
        models = {key: self._model(model, key, 1) for key, model in self._items(reply.models, "models")}
        return Reply(models, self._arrays(reply.arrays, "arrays"), weight, metrics)

    def memory(self, memory: Any) -> dict[str, Any]:
        return {name: self.value(item, f"memory.{name}", 1) for name, item in self._items(memory, "memory")}

    def plain(self, value: Any, path: str, depth: int = 0) -> Any:
        """A plain value: a number, a truth value, text, None, or lists and mappings of these."""
        self._count(1, path, depth)
        if value is None or value is True or value is False or type(value) is float:
            return value
        if type(value) is int:
            return self._integer(value, path)
        if isinstance(value, str):
            return self._string(value, path)
        if isinstance(value, int | np.integer):
            return self._integer(int(value), path)
        if isinstance(value, float | np.floating):
            return float(value)
        if isinstance(value, np.bool_):
            return bool(value)
        if isinstance(value, Mapping):
            return {name: self.plain(item, f"{path}.{name}", depth + 1) for name, item in self._items(value, path)}
        if isinstance(value, list | tuple):
            return [self.plain(item, path, depth + 1) for item in value]
        raise Malformed(f"{path} is a {_kind(value)}; plain values are numbers, text, lists and mappings")

    def value(self, value: Any, path: str, depth: int) -> Any:
        """What a memory may hold: plain values, tensors, models, specs, and lists and mappings of these."""
        if isinstance(value, Tensor):
            self._count(TENSOR, path, depth)
            return self._tensor(value, path)
        if isinstance(value, Model):
            return self._model(value, path, depth)
        if isinstance(value, Spec):
            return self._spec(value, path, depth)
        if isinstance(value, FlatArrays):
            return self._flat(value, path)
        if isinstance(value, Mapping):
            self._count(1, path, depth)
            return {name: self.value(item, f"{path}.{name}", depth + 1) for name, item in self._items(value, path)}
        if isinstance(value, list | tuple):
            self._count(1, path, depth)
            return [self.value(item, path, depth + 1) for item in value]
        return self.plain(value, path, depth)

    def _model(self, model: Any, key: str, depth: int) -> Model:
        self._count(TENSOR, key, depth)
        if type(model) not in (Model, Newborn):
            raise Malformed(f"model '{key}' is a {_kind(model)}")
        spec = self._spec(model.spec, key, depth)
        if type(model) is Newborn:
            return Newborn(spec)
        arrays = self._arrays(model.arrays, f"model '{key}'")
        return model if spec is model.spec and arrays is model.arrays else Model(spec, arrays)

    def _spec(self, spec: Any, key: str, depth: int) -> Spec:
        if id(spec) in self._known:
            return self._known[id(spec)]
        named = f"the spec of '{key}'"
        if type(spec) is not Spec:
            raise Malformed(f"{named} is a {_kind(spec)}")
        fields = {name: self.plain(item, f"{named}.{name}", depth + 1) for name, item in spec.plain().items()}
        if not isinstance(fields["family"], str):
            raise Malformed(f"{named} has no family")
        return Spec.of(fields)

    def _arrays(self, arrays: Any, path: str) -> Arrays:
        if type(arrays) is FlatArrays:
            return self._flat(arrays, path)
        found = {}
        for name, tensor in self._items(arrays, path):
            self._count(TENSOR, path, 0)
            found[name] = self._tensor(tensor, f"'{name}'")
        return found

    def _flat(self, arrays: FlatArrays, path: str) -> FlatArrays:
        """Arrays in one buffer stay there, if every place lies in it."""
        named = f"the flat buffer of {path}"
        layout, buffer, others = arrays.layout, self._tensor(arrays.buffer, named), self._arrays(arrays.others, path)
        flat = buffer.dtype is torch.float32 and buffer.dim() == 1 and buffer.is_contiguous()
        if type(layout) is not BufferLayout or not flat or not 0 <= layout.end <= buffer.numel():
            raise Malformed(f"{named} does not hold what its layout says")
        if others.keys() & layout.views.keys():
            raise Malformed(f"{named} has a name twice")
        self._count((TENSOR + 1) * len(layout.entries), path, 0)
        self._claim(max(0, layout.nbytes - buffer.nbytes), buffer.nbytes, named)
        same = buffer is arrays.buffer and all(tensor is arrays.others[name] for name, tensor in others.items())
        return arrays if same else FlatArrays(buffer, layout, others)

    def _tensor(self, tensor: Any, path: str) -> Tensor:
        """A dense tensor of real numbers, detached; its numbers are not read."""
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
            raise Malformed(f"{path} is a {_kind(tensor)}, not a tensor")
        if tensor.dtype not in _DTYPES:
            raise Malformed(f"{path} of {str(tensor.dtype).removeprefix('torch.')} cannot be sent")
        inside = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if tensor.layout is not torch.strided or tensor.is_nested or inside:
            raise Malformed(f"{path} is not a dense tensor")
        if tensor.device.type not in self._where:
            raise Malformed(f"{path} is on the device '{tensor.device.type}'")
        self._check_extent(tensor, path)
        found: Tensor = tensor.detach() if tensor.requires_grad or type(tensor) is nn.Parameter else tensor
        return found.resolve_neg() if found.is_neg() else found

    def _check_extent(self, tensor: Tensor, path: str) -> None:
        """Checks that a tensor's shape can be sent and that it lies in its memory."""
        if not is_shape(list(tensor.shape)):
            raise Malformed(f"{path} has a shape that cannot be sent")
        storage, numel = tensor.untyped_storage(), tensor.numel()
        held, last = storage.nbytes(), numel - 1
        if not tensor.is_contiguous():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if numel and (tensor.storage_offset() + last + 1) * tensor.element_size() > held:
            raise Malformed(f"{path} reaches beyond its memory")
        if (address := storage.data_ptr()) not in self._storages:
            self._storages.add(address)
            self._held += held
        self._claim(numel * tensor.element_size(), held, path)

    def _claim(self, claims: int, held: int, path: str) -> None:
        """Compares the bytes that all tensors claim with those that their memory holds."""
        self._claimed += claims
        if self._claimed > SPARE + REPEATS * self._held:
            raise Malformed(f"{path} claims {claims} bytes, and its memory holds {held}")
        if self._claimed > MOST:
            raise Malformed(f"its tensors have {self._claimed} bytes; a reply has at most {MOST}")

    def _items(self, mapping: Any, path: str) -> Iterator[tuple[str, Any]]:
        if mapping is EMPTY:
            return
        if type(mapping) is not dict and not isinstance(mapping, Mapping):
            raise Malformed(f"{path} is a {_kind(mapping)}, not a mapping")
        for key, item in mapping.items():
            self._count(1, path, 0)
            if not isinstance(key, str):
                raise Malformed(f"{path} has a key that is a {_kind(key)}, not text")
            yield self._string(key, f"a key of {path}"), item

    def _string(self, text: str, path: str) -> str:
        if type(text) is str and text.isidentifier() and text.isascii():  # as most names are
            self._text += len(text)
        else:
            try:
                data = str.encode(text)
            except UnicodeEncodeError:
                raise Malformed(f"{path} has a lone surrogate") from None
            self._text += len(data)
            self._count(count_nodes(data) - 1, path, 0)
            text = data.decode()
        if self._text > TEXT:
            raise Malformed(f"it has more than {TEXT} bytes of text")
        return text

    def _integer(self, value: int, path: str) -> int:
        if value.bit_length() > BITS:
            raise Malformed(f"{path} is an integer of {value.bit_length()} bits")
        return value

    def _count(self, nodes: int, path: str, depth: int) -> None:
        self._nodes += nodes
        if depth > DEPTH:
            raise Malformed(f"{path[:80]} is nested more than {DEPTH} deep")
        if self._nodes > NODES:
            raise Malformed(f"it has more than {NODES} values")


def _kind(value: object) -> str:
    return one_line(type(value).__name__)
