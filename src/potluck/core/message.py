"""The message format: a JSON head and a safetensors body. Nothing is pickled.

``pack`` takes tasks, replies, models, costs, and any nesting of mappings, lists, tensors and plain values. Tensors go
into the body; booleans take one bit each. ``unpack`` checks every length before it uses it, counts names and values
before it reads them, and takes every tensor once.
"""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core.model import Model, Newborn, Spec
from potluck.core.round import Cost, Reply, Task

MAGIC = b"potluck1"
Bytes: TypeAlias = NDArray[np.uint8]
KEPT_HERE = frozenset({"expects"})
"""Fields of a task that stay on the server."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}


@dataclass(frozen=True)
class Limits:
    """The most that bytes may hold to be read at all. The defaults are for messages, whose sender may be hostile."""

    bytes: int = 2 << 30
    head: int = 16 << 20
    """Bytes of the JSON head, and of the table of tensors."""
    nodes: int = 250_000
    """Values in the head. An empty list takes 3 bytes in a message and 64 in memory, so bytes alone are no limit."""
    names: int = 50_000
    """Tensors. The largest networks have a few thousand; each costs a kilobyte before its numbers."""
    depth: int = 128
    """Nesting of the head. Reading is recursive, and Python's stack has room for about a thousand calls."""


MESSAGE = Limits()
STORED = Limits(bytes=1 << 40, head=1 << 30, nodes=100_000_000, names=1_000_000)
"""For checkpoints: this program wrote them, with a checksum, and they may count a million clients."""
LARGEST = 1 << 62
"""The most entries of a tensor, dimensions of length zero left out: torch counts entries in 64 bits, with a sign."""
MOST_DIMS = 64


class MessageError(ValueError):
    """Bytes that are not a Potluck message, or a message that is too large."""


def pack(value: Any) -> bytes:
    """A value as bytes."""
    plain, body = split_tensors(value)
    head = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join((MAGIC, struct.pack("<Q", len(head)), head, *_safetensors(body)))


def pack_array(value: Any, once: bool = False) -> Bytes:
    """A value as an array of bytes, in the same format; `once` as in `split_tensors`. Tensors are copied once."""
    plain, body = split_tensors(value, once)
    head = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    text = _table_text(body)
    head += b" " * (-(24 + len(head) + len(text)) % 64)  # the first tensor begins at a multiple of 64 bytes
    front = b"".join((MAGIC, struct.pack("<Q", len(head)), head, struct.pack("<Q", len(text)), text))
    out = np.empty(len(front) + sum(tensor.nbytes for tensor in body.values()), np.uint8)
    out[: len(front)] = np.frombuffer(front, np.uint8)
    at = len(front)
    for tensor in body.values():
        out[at : at + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8).numpy()
        at += tensor.nbytes
    return out


def unpack_array(data: Bytes, shared: bool = False, views: bool = False, limits: Limits = MESSAGE) -> Any:
    """The value that was packed into this array; `shared` as in `join_tensors`.

    With `views`, tensors are views of the array, which must not be changed, instead of copies.
    """
    if len(data) > limits.bytes:
        raise MessageError(f"a message of {len(data)} bytes; at most {limits.bytes} are read")
    if data[:8].tobytes() != MAGIC or len(data) < 16:
        raise MessageError("not a potluck message")
    (length,) = struct.unpack("<Q", data[8:16].tobytes())
    if length > len(data) - 16:
        raise MessageError(f"the head claims {length} bytes of {len(data) - 16}")
    head = _read_json(data[16 : 16 + length].tobytes(), 0, length, "head", limits.head, limits.nodes)
    start = 16 + length
    width = struct.unpack("<Q", data[start : start + 8].tobytes())[0] if len(data) >= start + 8 else 0
    table = _check_table(data[start : start + 8 + min(width, limits.head + 1)].tobytes(), 0, limits)
    body = data[start + 8 + width :]
    tensors = {name: _tensor_in(body, row, views) for name, row in table.items()}
    return join_tensors(head, tensors, shared, limits.depth)


def _tensor_in(body: Bytes, row: Mapping[str, Any], view: bool) -> Tensor:
    """One tensor of a body, by its row in the table."""
    where, shape, dtype = row["data_offsets"], row["shape"], _BY_NAME[row["dtype"]]
    start, end = where if isinstance(where, list) and [type(at) for at in where] == [int, int] else (-1, -1)
    if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * dtype.itemsize:
        raise MessageError("a damaged message: a tensor lies outside of it")
    if start == end:
        return torch.empty(shape, dtype=dtype)
    piece = body[start:end]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of arrays that must not be changed
        return torch.from_numpy(piece if view else piece.copy()).view(dtype).view(shape)


def split_tensors(value: Any, once: bool = False) -> tuple[Any, dict[str, Tensor]]:
    """Splits a value into plain JSON values and its tensors by name.

    With `once`, a tensor that occurs twice is stored once, and comes back as one tensor.
    """
    body = _Body(once)
    return _encode(value, body), body.tensors


def detach_all(value: Any) -> Any:
    """The value that packing and unpacking would give, but with the same tensors, detached, on their device."""
    body = _Body(near=True)
    return join_tensors(_encode(value, body), body.tensors)


def join_tensors(plain: Any, body: Mapping[str, Tensor], shared: bool = False, depth: int = MESSAGE.depth) -> Any:
    """The value that `split_tensors` split; a `MessageError` if the parts are damaged.

    Every tensor belongs to one place; with `shared`, it may occur several times (`split_tensors(..., once=True)`).
    """
    parts = _Parts(dict(body), shared, depth)
    try:
        value = parts.decode(plain, 0)
    except MessageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as fault:
        raise MessageError(f"a damaged message: {type(fault).__name__} {fault}") from None
    if parts.tensors and not shared:
        raise MessageError(f"a message with {len(parts.tensors)} tensors that its head does not name")
    return value


class _Body:
    """Collects the tensors of a value.

    `near`: tensors stay on their device, and booleans are not packed.
    """

    def __init__(self, once: bool = False, near: bool = False) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._once, self._near = once, near
        self._notes: dict[int, tuple[Tensor, dict[str, Any]]] = {}

    def store(self, tensor: Tensor) -> dict[str, Any]:
        """Stores a tensor and returns the JSON that refers to it."""
        if not self._once:
            return self._add(tensor)
        if id(tensor) not in self._notes:
            self._notes[id(tensor)] = (tensor, self._add(tensor))
        return self._notes[id(tensor)][1]

    def _add(self, tensor: Tensor) -> dict[str, Any]:
        place: dict[str, Any] = {"$": "tensor", "at": str(len(self.tensors))}
        bits = tensor.dtype is torch.bool
        if not bits and tensor.dtype not in _DTYPES:
            raise TypeError(f"a tensor of {tensor.dtype} cannot cross the wire")
        flat = tensor.detach() if self._near else tensor.detach().cpu().contiguous()
        if bits and not self._near:
            place["bits"] = list(flat.shape)
            flat = torch.from_numpy(np.packbits(flat.numpy().reshape(-1)))
        self.tensors[place["at"]] = flat
        return place


def unpack(data: bytes, limits: Limits = MESSAGE) -> Any:
    """The value that was packed into these bytes; a `MessageError` if they are damaged or exceed the limits."""
    if len(data) > limits.bytes:
        raise MessageError(f"a message of {len(data)} bytes; at most {limits.bytes} are read")
    if data[:8] != MAGIC or len(data) < 16:
        raise MessageError("not a potluck message")
    (length,) = struct.unpack("<Q", data[8:16])
    if length > len(data) - 16:
        raise MessageError(f"the head claims {length} bytes of {len(data) - 16}")
    head = _read_json(data, 16, length, "head", limits.head, limits.nodes)
    _check_table(data, 16 + length, limits)
    try:
        tensors = safetensors.torch.load(data[16 + length :])
    except (ValueError, TypeError, OverflowError, safetensors.SafetensorError, RuntimeError, KeyError) as fault:
        raise MessageError(f"a damaged message: {fault}") from None
    return join_tensors(head, tensors, depth=limits.depth)


def count_nodes(text: str | bytes) -> int:
    """At least the number of values in JSON text, before it is read. Such characters inside strings count too."""
    if isinstance(text, str):
        return 1 + text.count(",") + text.count("[") + text.count("{")
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _read_json(data: bytes, start: int, length: int, what: str, most_bytes: int, most_nodes: int) -> Any:
    """A JSON value in these bytes, read only if it is small enough; keys may not repeat."""
    if length > most_bytes:
        raise MessageError(f"a {what} of {length} bytes; at most {most_bytes} are read")
    text = data[start : start + length]
    if (nodes := count_nodes(text)) > most_nodes:
        raise MessageError(f"a {what} of {nodes} values; at most {most_nodes} are read")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as fault:
        raise MessageError(f"a damaged message: {fault}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _check_table(data: bytes, start: int, limits: Limits) -> dict[str, Any]:
    """The table of tensors, after a check of their number, dtypes and shapes, before any tensor is made."""
    if len(data) < start + 8:
        raise MessageError("a damaged message: it ends before its tensors")
    (length,) = struct.unpack("<Q", data[start : start + 8])
    start += 8
    if length > len(data) - start:
        raise MessageError(f"the table of tensors claims {length} bytes of {len(data) - start}")
    # Each row has four colons, about six of the characters that are counted, and one more for each dimension.
    names = data.count(b":", start, start + min(length, limits.head)) // 4
    if names > limits.names:
        raise MessageError(f"a message of {names} names; at most {limits.names} are read")
    table = _read_json(data, start, length, "table of tensors", limits.head, 16 * limits.names + 16)
    if not isinstance(table, dict):
        raise MessageError("a damaged message: no table of tensors")
    for name, row in table.items():
        if not isinstance(row, dict) or row.keys() != {"dtype", "shape", "data_offsets"}:
            raise MessageError(f"a damaged message: no place for tensor {name[:40]!r}")
        if row["dtype"] not in _DTYPES.values():
            raise MessageError(f"a tensor of dtype {str(row['dtype'])[:20]!r} is not read")
        if not is_shape(row["shape"]):
            raise MessageError(f"{str(row['shape'])[:60]} is not the shape of a tensor")
    return table


def is_shape(shape: Any) -> bool:
    """Whether a tensor can have this shape, and be sent."""
    if not isinstance(shape, list) or len(shape) > MOST_DIMS:
        return False
    whole = all(type(length) is int and 0 <= length <= LARGEST for length in shape)
    return whole and math.prod(length for length in shape if length) <= LARGEST


def _encode(value: Any, body: _Body) -> Any:
    """The JSON form of a value; its tensors go into the body."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return body.store(value)
    if isinstance(value, Spec):
        return {"$": "spec", **value.plain()}
    if isinstance(value, Model):
        arrays = None if isinstance(value, Newborn) else _encode(value.arrays, body)
        return {"$": "model", "spec": value.spec.plain(), "arrays": arrays}
    if isinstance(value, Cost):
        return {"$": "cost", **vars(value)}
    if isinstance(value, Task | Reply):
        kind = "task" if isinstance(value, Task) else "reply"
        fields = {name: field for name, field in vars(value).items() if name not in KEPT_HERE}
        return {"$": kind, **{name: _encode(field, body) for name, field in fields.items()}}
    if isinstance(value, Mapping):
        items = {key: _encode(item, body) for key, item in value.items()}
        if any(not isinstance(key, str) for key in value):
            raise TypeError(f"a mapping on the wire has text keys, not {list(value)[:3]}")
        return {"$": "map", "items": items} if "$" in items else items
    if isinstance(value, list | tuple):
        return [_encode(item, body) for item in value]
    raise TypeError(f"a {type(value).__name__} cannot cross the wire")


def _table_text(body: dict[str, Tensor]) -> bytes:
    """The table of tensors as safetensors has it: where each lies, of which type and shape."""
    head, end = {}, 0
    for key, tensor in body.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[key] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _safetensors(body: dict[str, Tensor]) -> Iterator[bytes]:
    """The body in the safetensors layout. The library's writer refuses tensors that share storage; ours may."""
    text = _table_text(body)
    yield struct.pack("<Q", len(text))
    yield text
    for tensor in body.values():
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


class _Parts:
    """The tensors of a message, and how its head puts them together."""

    def __init__(self, tensors: dict[str, Tensor], shared: bool, depth: int) -> None:
        self.tensors = tensors
        """Those that nothing has named yet; if tensors are shared, all."""
        self._shared, self._depth = shared, depth

    def decode(self, value: Any, depth: int) -> Any:
        if not isinstance(value, list | dict):
            return value
        if depth > self._depth:
            raise MessageError(f"a message nested more than {self._depth} deep")
        if isinstance(value, list):
            return [self.decode(item, depth + 1) for item in value]
        kind = value.get("$")
        if kind is None:
            return self._items(value.items(), depth)
        if kind == "tensor":
            return self._load(value)
        if kind == "map":
            return self._items(value["items"].items(), depth)
        if kind == "spec":
            return Spec.of(value)
        if kind == "model":
            spec, arrays = Spec.of(value["spec"]), value["arrays"]
            return Newborn(spec) if arrays is None else Model(spec, self.decode(arrays, depth + 1))
        nouns: dict[str, type] = {"task": Task, "reply": Reply, "cost": Cost}
        return nouns[kind](**self._items(((name, item) for name, item in value.items() if name != "$"), depth))

    def _items(self, items: Iterable[tuple[str, Any]], depth: int) -> dict[str, Any]:
        return {name: self.decode(item, depth + 1) for name, item in items}

    def _load(self, node: dict[str, Any]) -> Tensor:
        name = node["at"]
        if name not in self.tensors:
            raise MessageError(f"tensor {str(name)[:40]!r} is missing, or named twice")
        tensor = self.tensors[name] if self._shared else self.tensors.pop(name)
        if "bits" not in node:
            return tensor
        shape = node["bits"]
        count = math.prod(shape) if is_shape(shape) else -1
        if tensor.dtype is not torch.uint8 or tensor.numel() != (count + 7) // 8:
            raise MessageError(f"{tensor.numel()} bytes of bits for the shape {str(shape)[:60]}")
        return torch.from_numpy(np.unpackbits(tensor.numpy(), count=count).astype(bool)).reshape(shape)
