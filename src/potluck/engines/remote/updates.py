"""Trained models on their way to the server: exact, or as rounded differences from the models that were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from potluck.core import MessageError, Model, Newborn, Spec, Zoo, size

Updates: TypeAlias = Literal["exact", "16-bit", "8-bit"]
"""How a node sends a model that it trained: all its numbers, or its difference from the model that it got, rounded."""
STEPS = 127
"""8-bit: a difference is a multiple, from -127 to 127, of a 127th of the tensor's largest one."""
LEAST, MOST = 1e-35, 3e38
"""A largest difference between these can be a scale. A smaller one is no difference; a larger one is not finite."""
SCALE_BYTES = 4


def pack_model(model: Model, sent: Model | None, updates: Updates, zoo: Zoo) -> Any:
    """A trained model, or its rounded difference from the one that was sent. Buffers are sent as they are."""
    if updates == "exact" or sent is None or isinstance(model, Newborn) or isinstance(sent, Newborn):
        return model
    if model.spec != sent.spec or model.arrays.keys() != sent.arrays.keys():
        return model
    kept = zoo.buffers(model.spec)
    deltas: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in model.arrays.items():
        old = sent.arrays[name]
        if name in kept or tensor.dtype is not torch.float32 or tensor.shape != old.shape:
            whole[name] = tensor
            continue
        delta = tensor.detach().cpu() - old.cpu()
        largest = float(delta.abs().max()) if delta.numel() else 0.0
        if not largest < MOST:  # not finite: it goes as it is, and is refused by name
            whole[name] = tensor
            continue
        deltas[name], scales[name] = _round_off(delta, largest, updates)
    return {"spec": model.spec, "deltas": deltas, "scales": scales, "whole": whole}


def _round_off(delta: Tensor, largest: float, updates: Updates) -> tuple[Tensor, float]:
    """A difference as small numbers, and the scale that they are multiples of."""
    if updates == "8-bit":
        scale = largest / STEPS if largest > LEAST else 1.0
        return (delta / scale).round().to(torch.int8), scale
    scale = largest if largest > LEAST else 1.0
    return (delta / scale).to(torch.float16), scale


def read_model(key: str, value: Any, sent: Model | None) -> Model:
    """A model that a node sent; a `MessageError` if it is neither a model nor a difference from the one that it got."""
    if isinstance(value, Model):
        return value
    if not isinstance(value, Mapping) or sent is None or isinstance(sent, Newborn):
        raise MessageError(f"model '{key[:40]}' is none")
    spec = value.get("spec")
    deltas, scales, whole = (_mapping(value.get(name)) for name in ("deltas", "scales", "whole"))
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _add(sent: Tensor, delta: Any, scale: Any, name: str) -> Tensor:
    fits = isinstance(delta, Tensor) and delta.shape == sent.shape and delta.dtype in (torch.int8, torch.float16)
    if not fits or type(scale) is not float:
        raise MessageError(f"'{name[:60]}' is no difference from what was sent")
    found: Tensor = sent.detach().cpu() + delta.to(torch.float32) * scale
    return found


def model_bytes(value: Any) -> int:
    """Bytes of the tensors of a model as they were sent; of a scale, four."""
    if isinstance(value, Model):
        return value.nbytes
    return size(value["deltas"]) + size(value["whole"]) + SCALE_BYTES * len(value["scales"])
