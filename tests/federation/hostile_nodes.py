"""Answers that no honest node gives, by name, and messages that no honest server sends."""

import json
import math
import pickle
import struct

import numpy as np
import torch

from potluck.core import MESSAGE, Cost, Model, pack_array, unpack_array
from potluck.core.message import MAGIC


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def raw(data):
    return (np.frombuffer(bytes(data), np.uint8),)


def with_head(head):
    """A message with this head, written by hand, and no tensors."""
    text = head.encode() if isinstance(head, str) else head
    return raw(MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<Q", 2) + b"{}")


def nested(depth):
    return "[" * depth + "]" * depth


def told(parts):
    """What a message says."""
    return unpack_array(parts[0])


def changed(parts, **changes):
    """An answer with other values in its head."""
    return (pack_array(told(parts) | changes),)


def in_reply(parts, **changes):
    """An answer with other values in its reply."""
    return changed(parts, reply=told(parts)["reply"] | changes)


def in_tensors(parts, change):
    """An answer whose model has other tensors."""
    model = model_of(parts)
    arrays = {name: change(name, tensor.clone()) for name, tensor in model.arrays.items()}
    return in_reply(
        parts, models={"model": Model(model.spec, {name: t for name, t in arrays.items() if t is not None})}
    )


def model_of(parts):
    return told(parts)["reply"]["models"]["model"]


def filled(number):
    def answer(parts, bomb):
        return in_tensors(parts, lambda name, tensor: tensor.fill_(number) if tensor.is_floating_point() else tensor)

    return answer


def without_one(parts, bomb):
    name = next(iter(model_of(parts).arrays))
    return in_tensors(parts, lambda each, tensor: None if each == name else tensor)


def reshaped(parts, bomb):
    return in_tensors(parts, lambda name, tensor: torch.zeros(3, 5))


def of_another_dtype(parts, bomb):
    return in_tensors(parts, lambda name, tensor: tensor.double())


def claims_more(parts, bomb):
    """A message whose table claims a terabyte."""
    table = json.dumps({"a": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}).encode()
    head = b'{"kind":"result"}'
    return raw(MAGIC + struct.pack("<Q", len(head)) + head + struct.pack("<Q", len(table)) + table)


OUT, GONE, IN = "quarantined", "absent", "accepted"
NONSENSE = "its answer makes no sense: "
ANSWERS = {
    "no parts": (lambda parts, bomb: (), OUT, NONSENSE + "a message without parts"),
    "no bytes": (lambda parts, bomb: raw(b""), OUT, NONSENSE + "not a potluck message"),
    "noise": (lambda parts, bomb: raw(np.random.default_rng(0).bytes(4096)), OUT, NONSENSE + "not a potluck message"),
    "a pickle": (lambda parts, bomb: raw(pickle.dumps(Bomb(bomb))), OUT, NONSENSE + "not a potluck message"),
    "half of it": (lambda parts, bomb: (parts[0][: len(parts[0]) // 2],), OUT, NONSENSE + "a damaged message"),
    "a head that claims more": (
        lambda parts, bomb: raw(MAGIC + struct.pack("<Q", 1 << 60)),
        *(OUT, NONSENSE + f"the head claims {1 << 60} bytes of 0"),
    ),
    "a table that claims a terabyte": (claims_more, OUT, NONSENSE + "a damaged message"),
    "deep JSON": (
        lambda parts, bomb: with_head('{"kind":"result","reply":' + nested(120_000) + "}"),
        *(OUT, NONSENSE + "a damaged message"),
    ),
    "too many values": (
        lambda parts, bomb: with_head('{"kind":"result","reply":[' + "[],[]," * 200_000 + "0]}"),
        *(OUT, NONSENSE + "a head of"),
    ),
    "a head above the limit": (
        lambda parts, bomb: with_head('{"kind":"' + "x" * (MESSAGE.head + 1) + '"}'),
        *(OUT, NONSENSE + "a head of"),
    ),
    "a number of 5000 digits": (
        lambda parts, bomb: with_head('{"kind":"result","reply":' + "9" * 5000 + "}"),
        *(OUT, NONSENSE + "a damaged message"),
    ),
    "a list": (lambda parts, bomb: (pack_array([1, 2]),), OUT, NONSENSE + "a message that does not say what it is"),
    "another kind": (
        lambda parts, bomb: changed(parts, kind="agreed"),
        OUT,
        NONSENSE + "it is a 'agreed', not a resul",
    ),
    "a reply that is none": (lambda parts, bomb: changed(parts, reply=7), OUT, NONSENSE + "its reply is none"),
    "models that are none": (lambda parts, bomb: in_reply(parts, models=[1]), OUT, NONSENSE + "its models are no map"),
    "a model that is a text": (
        lambda parts, bomb: in_reply(parts, models={"model": "mine"}),
        *(OUT, NONSENSE + "model 'model' is none"),
    ),
    "no models": (lambda parts, bomb: in_reply(parts, models={}), OUT, ""),
    "a model too many": (
        lambda parts, bomb: in_reply(parts, models=dict.fromkeys(("model", "more"), model_of(parts))),
        *(OUT, ""),
    ),
    "a tensor too few": (without_one, OUT, ""),
    "wrong shapes": (reshaped, OUT, ""),
    "wrong dtypes": (of_another_dtype, OUT, ""),
    "not a number": (filled(math.nan), OUT, "not finite"),
    "infinite": (filled(math.inf), OUT, "not finite"),
    "no weight": (lambda parts, bomb: in_reply(parts, weight=None), OUT, "weight"),
    "a negative weight": (lambda parts, bomb: in_reply(parts, weight=-1.0), OUT, "weight"),
    "a weight above its samples": (lambda parts, bomb: in_reply(parts, weight=1e9), OUT, "weight"),
    "endless seconds": (lambda parts, bomb: in_reply(parts, cost=Cost(seconds=math.inf)), OUT, NONSENSE + "its cost"),
    "negative work": (lambda parts, bomb: in_reply(parts, cost=Cost(flops=-1)), OUT, NONSENSE + "its cost is none"),
    "work in words": (lambda parts, bomb: in_reply(parts, cost=Cost(memory="all")), OUT, NONSENSE + "its cost is no"),
    "a receipt of a megabyte": (
        lambda parts, bomb: changed(parts, memory={"sha256": "f" * (1 << 20), "bytes": 1, "tier": "large"}),
        *(OUT, NONSENSE + "the receipt of its memory is none"),
    ),
    "a receipt with tensors": (
        lambda parts, bomb: changed(parts, memory={"sha256": torch.zeros(1 << 16)}),
        *(OUT, NONSENSE + "the receipt of its memory is none"),
    ),
    "a receipt that is a list": (lambda parts, bomb: changed(parts, memory=[1]), OUT, NONSENSE),
    "it lacks what was sent": (
        lambda parts, bomb: (pack_array({"kind": "missing", "marks": ["0" * 64]}),),
        *(OUT, NONSENSE + "it lacks models that were just sent"),
    ),
    "it declines": (
        lambda parts, bomb: (pack_array({"kind": "declined", "reason": "a full\ndisk\x1b[2J"}),),
        *(GONE, "failed: it declined: a full disk"),
    ),
    "no reason": (lambda parts, bomb: (pack_array({"kind": "result"}),), GONE, "failed: it gave no reason"),
    "it claims to hold all models": (
        lambda parts, bomb: changed(parts, holds=["0" * 64, 7, "x", *(f"{n:064x}" for n in range(5_000))]),
        *(IN, ""),
    ),
    "another address": (
        lambda parts, bomb: changed(parts, task={"to": "server", "round": 77}, to="somebody", round=77),
        *(IN, ""),
    ),
    "untrue costs": (
        lambda parts, bomb: in_reply(parts, cost=Cost(1 << 50, 1 << 50, 5, 6, 7.0)),
        *(IN, ""),
    ),
}
"""By name: the answer in place of an honest one, the verdict that it gets, and a part of the reason."""
