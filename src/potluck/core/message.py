"""The message format: a JSON head and a safetensors body. Nothing is pickled.

``pack`` takes tasks, replies, models, costs, and any nesting of mappings, lists, tensors and plain values. Tensors go
into the body; booleans take one bit each. ``unpack`` checks every length before it uses it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from potluck.core.model import Model, Newborn, Spec
from potluck.core.round import Cost, Reply, Task

MAGIC = b"potluck1"
MOST_BYTES = 2 << 30
MOST_NAMES = 100_000
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


class MessageError(ValueError):
    """Bytes that are not a Potluck message, or a message that is too large."""


def pack(value: Any) -> bytes:
    """A value as bytes."""
    plain, body = split_tensors(value)
    head = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join((MAGIC, struct.pack("<Q", len(head)), head, *_safetensors(body)))


def split_tensors(value: Any, once: bool = False) -> tuple[Any, dict[str, Tensor]]:
    """Splits a value into plain JSON values and its tensors by name.

    With `once`, a tensor that occurs twice is stored once, and comes back as one tensor.
    """
    body = _Body(once)
    return _encode(value, body), body.tensors


def detach_all(value: Any) -> Any:
    """The value that packing and unpacking would give, but with the same tensors, detached, on their device."""
    body = _Body(near=True)
    return _decode(_encode(value, body), body.tensors)


def join_tensors(plain: Any, body: Mapping[str, Tensor]) -> Any:
    """The value that `split_tensors` split; a `MessageError` if the parts are damaged."""
    try:
        return _decode(plain, body)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as fault:
        raise MessageError(f"a damaged message: {type(fault).__name__} {fault}") from None


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


def unpack(data: bytes, most: int = MOST_BYTES) -> Any:
    """The value that was packed into these bytes; a `MessageError` if they are damaged."""
    if len(data) > most:
        raise MessageError(f"a message of {len(data)} bytes; at most {most} are read")
    if data[:8] != MAGIC or len(data) < 16:
        raise MessageError("not a potluck message")
    (length,) = struct.unpack("<Q", data[8:16])
    if length > len(data) - 16:
        raise MessageError(f"the head claims {length} bytes of {len(data) - 16}")
    try:
        head = json.loads(data[16 : 16 + length])
        body = safetensors.torch.load(bytes(data[16 + length :]))
    except (ValueError, RecursionError, safetensors.SafetensorError, RuntimeError, KeyError) as fault:
        raise MessageError(f"a damaged message: {fault}") from None
    if len(body) > MOST_NAMES:
        raise MessageError(f"a message of {len(body)} names; at most {MOST_NAMES} are read")
    return join_tensors(head, body)


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


def _safetensors(body: dict[str, Tensor]) -> Iterator[bytes]:
    """The body in the safetensors layout. The library's writer refuses tensors that share storage; ours may."""
    head, end = {}, 0
    for key, tensor in body.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[key] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text))
    yield text
    for tensor in body.values():
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _decode(value: Any, body: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, body) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("$")
    if kind is None:
        return {key: _decode(item, body) for key, item in value.items()}
    if kind == "tensor":
        return _load(value, body)
    if kind == "map":
        return {key: _decode(item, body) for key, item in value["items"].items()}
    if kind == "spec":
        return Spec.of(value)
    if kind == "model":
        spec = Spec.of(value["spec"])
        return Newborn(spec) if value["arrays"] is None else Model(spec, _decode(value["arrays"], body))
    fields = {name: _decode(item, body) for name, item in value.items() if name != "$"}
    nouns: dict[str, type] = {"task": Task, "reply": Reply, "cost": Cost}
    return nouns[kind](**fields)


def _load(node: dict[str, Any], body: Mapping[str, Tensor]) -> Tensor:
    tensor = body[node["at"]]
    if "bits" not in node:
        return tensor
    shape = [int(length) for length in node["bits"]]
    count = math.prod(shape)
    if tensor.dtype is not torch.uint8 or tensor.numel() != (count + 7) // 8:
        raise MessageError(f"{tensor.numel()} bytes of bits for the shape {shape}")
    return torch.from_numpy(np.unpackbits(tensor.numpy(), count=count).astype(bool)).reshape(shape)
