"""Replies that no honest client sends, by name: what each does, the verdict that it gets, and a part of the reason."""

import math
import sys
import warnings
from collections import UserDict, UserList, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from made_context import FULL, ZOO
from torch import Tensor, nn

from potluck.core import (
    BufferLayout,
    Expected,
    FitRequest,
    FlatArrays,
    Local,
    Model,
    Newborn,
    Reply,
    Skip,
    Spec,
    Task,
    on_client,
    stream,
)

START = ZOO.fresh(FULL, stream(0, "hostile"))
HONEST = Reply({"model": START}, weight=3.0, metrics={"loss": 0.5, "steps": 2})
OUT = "quarantined"
GONE = "absent"
IN = "accepted"


class OddTensor(Tensor):
    """A subclass of a tensor, whose methods may do anything."""


class Endless(Mapping):
    """A mapping that never ends."""

    def __getitem__(self, key):
        return 1

    def __iter__(self):
        number = 0
        while True:
            yield f"k{number}"
            number += 1

    def __len__(self):
        return 1


class Changing(dict):
    """A mapping that says something else whenever it is read."""

    def items(self):
        self["loss"] = object() if len(self) > 1 else self.setdefault("more", 1)
        return [("loss", 0.25)]


class Raises(dict):
    """A mapping that cannot be read."""

    def items(self):
        raise SystemExit("bye")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Level(IntEnum):
    HIGH = 3


Pair = namedtuple("Pair", "a b")


def metrics(value):
    return lambda device: replace(HONEST, metrics=value() if callable(value) else value)


def metric(make):
    return lambda device: replace(HONEST, metrics={"loss": 0.5, "odd": make()})


def weight(value):
    return lambda device: replace(HONEST, weight=value)


def tensor(make):
    """The model with one odd tensor instead of its head's weights, which have the shape (3, 3)."""
    return lambda device: replace(
        HONEST, models={"model": Model(FULL, {**START.arrays, "head.weight": make(START.arrays["head.weight"])})}
    )


def models(make):
    return lambda device: replace(HONEST, models=make())


def arrays(make):
    return lambda device: replace(HONEST, arrays=make())


def memory(make):
    def keep(device):
        device.memory["kept"] = make()
        return HONEST

    return keep


def whole_memory(make):
    def keep(device):
        device.memory = make()
        return HONEST

    return keep


def raises(make):
    def throw(device):
        raise make()

    return throw


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def circle():
    found = {}
    found["self"] = found
    return found


def freed(tensor):
    found = tensor.clone()
    found.untyped_storage().resize_(0)
    return found


def flat(buffer, *entries, others=None):
    return {"model": Model(FULL, FlatArrays(buffer, BufferLayout(entries), others or {}))}


def without_fields():
    return Reply.__new__(Reply)


def escaped():
    """A tensor that vmap was at work on when it got out."""
    found = []
    torch.vmap(lambda row: (found.append(row), row)[1])(torch.zeros(2, 3))
    return found[0]


def quietly(make):
    """Without torch's warnings about kinds of tensors that are new or old."""

    def made(tensor):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(tensor)

    return made


def quantised(t):
    return torch.quantize_per_tensor(torch.zeros(3, 3), 0.1, 0, torch.qint8)


KINDS = {
    # What is as it should be, in an unusual dress: every engine reads it alike.
    "honest": (lambda device: HONEST, IN, ""),
    "numpy integers": (metric(lambda: np.int64(3)), IN, ""),
    "numpy numbers of every kind": (
        metric(lambda: [np.float32(0.5), np.bool_(True), np.uint8(3), np.float64(1)]),
        IN,
        "",
    ),
    "a numpy weight": (weight(np.int32(3)), IN, ""),
    "an enumeration": (metric(lambda: Level.HIGH), IN, ""),
    "a named tuple": (metric(lambda: Pair(1, 2)), IN, ""),
    "a loss that is not a number": (metrics({"loss": math.nan, "other": -math.inf}), IN, ""),
    "a parameter": (tensor(lambda t: nn.Parameter(t.clone())), IN, ""),
    "a tensor with a gradient": (tensor(lambda t: t.clone().requires_grad_() * 1), IN, ""),
    "a transposed view": (tensor(lambda t: t.clone().t()), IN, ""),
    "one number for all entries": (tensor(lambda t: torch.zeros(()).expand(3, 3)), IN, ""),
    "metrics that change when read": (metrics(Changing), IN, ""),
    "a reply without fields": (
        lambda device: without_fields(),
        OUT,
        "models ['model'] were not expected or are missing",
    ),
    # Weights
    "weight 10**400": (weight(10**400), OUT, "weight is an integer of 1329 bits"),
    "weight -10**5000": (weight(-(10**5000)), OUT, "weight is an integer of 16610 bits"),
    "weight nan": (weight(math.nan), OUT, "weight nan is not a finite number"),
    "weight None": (weight(None), OUT, "weight None is not a finite number"),
    "weight of a list": (weight([3.0]), OUT, "weight [3.0] is not a finite number"),
    "weight of a long text": (weight("x" * 10**6), OUT, "is not a finite number"),
    "weight of a tensor": (weight(torch.tensor(3.0)), OUT, "weight is a Tensor"),
    "weight of a complex number": (weight(3 + 0j), OUT, "weight is a complex"),
    "weight of a numpy nan": (weight(np.float32("nan")), OUT, "weight nan is not a finite number"),
    # Metrics
    "metrics None": (metrics(None), OUT, "metrics is a NoneType, not a mapping"),
    "metrics of a list": (metrics([1]), OUT, "metrics is a list, not a mapping"),
    "metrics of a reply": (metrics(lambda: HONEST), OUT, "metrics is a Reply, not a mapping"),
    "metrics with numbers for keys": (metrics({3: 1}), OUT, "metrics has a key that is a int, not text"),
    "metrics with a lone surrogate": (metrics({"loss\ud800": 1}), OUT, "a key of metrics has a lone surrogate"),
    "a text with a lone surrogate": (metric(lambda: "\udfff"), OUT, "metrics.odd has a lone surrogate"),
    "an object": (metric(object), OUT, "metrics.odd is a object"),
    "a generator": (metric(lambda: (n for n in range(3))), OUT, "metrics.odd is a generator"),
    "a set": (metric(lambda: {1, 2}), OUT, "metrics.odd is a set"),
    "bytes": (metric(lambda: b"abc"), OUT, "metrics.odd is a bytes"),
    "a user's list": (metric(lambda: UserList([1])), OUT, "metrics.odd is a UserList"),
    "a tensor among metrics": (metric(lambda: torch.zeros(2)), OUT, "metrics.odd is a Tensor"),
    "a model among metrics": (metric(lambda: START), OUT, "metrics.odd is a Model"),
    "an integer of 5000 digits": (metric(lambda: 10**5000), OUT, "metrics.odd is an integer of 16610 bits"),
    "metrics too deep": (metric(lambda: nested(40)), OUT, "nested more than 32 deep"),
    "metrics far too deep": (metric(lambda: nested(5000)), OUT, "nested more than 32 deep"),
    "metrics that hold themselves": (metric(circle), OUT, "nested more than 32 deep"),
    "metrics with too many values": (metric(lambda: [[] for _ in range(250_000)]), OUT, "more than 200000 values"),
    "metrics with too long a text": (metric(lambda: "x" * (9 << 20)), OUT, "more than 8388608 bytes of text"),
    "a text of commas": (metric(lambda: "," * 300_000), OUT, "more than 200000 values"),
    "metrics without an end": (metrics(Endless), OUT, "more than 200000 values"),
    "metrics that end the process": (metrics(lambda: Raises(loss=1)), OUT, "cannot be read: SystemExit: bye"),
    # Models
    "models None": (models(lambda: None), OUT, "models is a NoneType, not a mapping"),
    "models of a list": (models(lambda: [START]), OUT, "models is a list, not a mapping"),
    "a spec of None": (models(lambda: {"model": Model(None, START.arrays)}), OUT, "the spec of 'model' is a NoneType"),
    "a spec of nothing": (
        models(lambda: {"model": Model(Spec(None), START.arrays)}),
        OUT,
        "the spec of 'model' has no family",
    ),
    "a spec with an object": (
        models(lambda: {"model": Model(Spec("mlp", options={"a": object()}), START.arrays)}),
        OUT,
        "the spec of 'model'.options.a is a object",
    ),
    "another spec": (
        models(lambda: {"model": Model(Spec("mlp"), START.arrays)}),
        OUT,
        "of another shape than was sent",
    ),
    "a newborn": (models(lambda: {"model": Newborn(FULL)}), OUT, "8 names are missing"),
    "a live network": (models(lambda: {"model": nn.Linear(2, 2)}), OUT, "model 'model' is a Linear"),
    "arrays of a model None": (
        models(lambda: {"model": Model(FULL, None)}),
        OUT,
        "model 'model' is a NoneType, not a mapping",
    ),
    "numbers for the names of tensors": (
        models(lambda: {"model": Model(FULL, dict(enumerate(START.arrays.values())))}),
        OUT,
        "has a key that is a int",
    ),
    "a surrogate in the name of a tensor": (
        models(lambda: {"model": Model(FULL, {**START.arrays, "a\ud800": torch.zeros(1)})}),
        OUT,
        "a lone surrogate",
    ),
    "a user's mapping of tensors": (models(lambda: UserDict(model=START)), IN, ""),
    "100 thousand tensors": (
        arrays(lambda: dict.fromkeys(map(str, range(100_000)), torch.zeros(1))),
        OUT,
        "more than 200000 values",
    ),
    # Tensors
    "a text for a tensor": (tensor(lambda t: "weights"), OUT, "'head.weight' is a str, not a tensor"),
    "a list for a tensor": (tensor(lambda t: t.tolist()), OUT, "'head.weight' is a list, not a tensor"),
    "a numpy array": (tensor(lambda t: t.numpy()), OUT, "'head.weight' is a ndarray, not a tensor"),
    "complex": (tensor(lambda t: t.to(torch.complex64)), OUT, "'head.weight' of complex64 cannot be sent"),
    "8-bit floats": (tensor(lambda t: t.to(torch.float8_e4m3fn)), OUT, "'head.weight' of float8_e4m3fn cannot be sent"),
    "another float": (tensor(lambda t: t.double()), OUT, "'head.weight' of float64; its part holds float32"),
    "sparse": (tensor(lambda t: t.to_sparse()), OUT, "'head.weight' is not a dense tensor"),
    "sparse rows": (tensor(quietly(lambda t: t.to_sparse_csr())), OUT, "'head.weight' is not a dense tensor"),
    "mkldnn": (tensor(lambda t: t.to_mkldnn()), OUT, "'head.weight' is not a dense tensor"),
    "quantised": (tensor(quietly(quantised)), OUT, "'head.weight' of qint8 cannot be sent"),
    "nested tensors": (
        tensor(quietly(lambda t: torch.nested.nested_tensor([t, t]))),
        OUT,
        "'head.weight' is not a dense tensor",
    ),
    "on the meta device": (tensor(lambda t: t.to("meta")), OUT, "'head.weight' is on the device 'meta'"),
    "a subclass": (
        tensor(lambda t: t.clone().as_subclass(OddTensor)),
        OUT,
        "'head.weight' is a OddTensor, not a tensor",
    ),
    "10**12 entries in four bytes": (
        tensor(lambda t: torch.zeros(()).expand(10**12)),
        OUT,
        "claims 4000000000000 bytes, and its memory holds 4",
    ),
    "2 GB in four bytes": (
        tensor(lambda t: torch.zeros(()).expand(500_000_000)),
        OUT,
        "claims 2000000000 bytes, and its memory holds 4",
    ),
    "overlapping windows": (
        tensor(lambda t: torch.zeros(10**4).as_strided((5000, 5000), (1, 1))),
        OUT,
        "claims 100000000 bytes",
    ),
    "no entries of a huge shape": (tensor(lambda t: torch.empty(0, 10**15)), OUT, "of shape (0, 1000000000000000)"),
    "memory that is freed": (tensor(freed), OUT, "'head.weight' reaches beyond its memory"),
    "not finite": (tensor(lambda t: t * math.inf), OUT, "'head.weight' is not finite"),
    "a negated view": (tensor(lambda t: torch.zeros(3, 3, dtype=torch.complex64).conj().imag), IN, ""),
    "a tensor out of vmap": (tensor(lambda t: escaped()), OUT, "'head.weight' is not a dense tensor"),
    "a flat buffer of float64": (
        models(lambda: flat(torch.zeros(9, dtype=torch.float64), ("w", 0, (3, 3)))),
        OUT,
        "the flat buffer of model 'model'",
    ),
    "a flat buffer that is too short": (
        models(lambda: flat(torch.zeros(8), ("w", 0, (3, 3)))),
        OUT,
        "the flat buffer of model 'model'",
    ),
    "a flat buffer that begins before its start": (
        models(lambda: flat(torch.zeros(8), ("w", -1, (3, 3)))),
        OUT,
        "the flat buffer of model 'model'",
    ),
    "a flat buffer with one name twice": (
        models(lambda: flat(torch.zeros(9), ("w", 0, (3, 3)), others={"w": torch.zeros(3, 3)})),
        OUT,
        "the flat buffer of model 'model'",
    ),
    "loose arrays None": (arrays(lambda: None), OUT, "arrays is a NoneType, not a mapping"),
    "loose arrays of one tensor": (arrays(lambda: torch.zeros(3)), OUT, "arrays is a Tensor, not a mapping"),
    # Memories
    "memory keys that are no text": (whole_memory(lambda: {3: 1}), OUT, "memory has a key that is a int, not text"),
    "memory keys with a lone surrogate": (
        whole_memory(lambda: {"\ud800": 1}),
        OUT,
        "a key of memory has a lone surrogate",
    ),
    "a memory of None": (whole_memory(lambda: None), OUT, "memory is a NoneType, not a mapping"),
    "a memory of a list": (whole_memory(lambda: [1]), OUT, "memory is a list, not a mapping"),
    "an object in the memory": (memory(object), OUT, "memory.kept is a object"),
    "a set in the memory": (memory(lambda: {1}), OUT, "memory.kept is a set"),
    "a network in the memory": (memory(lambda: nn.Linear(1, 1)), OUT, "memory.kept is a Linear"),
    "a memory that holds itself": (memory(circle), OUT, "nested more than 32 deep"),
    "a complex tensor in the memory": (
        memory(lambda: torch.zeros(1, dtype=torch.complex64)),
        OUT,
        "memory.kept of complex64 cannot be sent",
    ),
    "a meta tensor in the memory": (memory(lambda: torch.zeros(1, device="meta")), OUT, "memory.kept is on the device"),
    "10**12 entries in the memory": (memory(lambda: torch.zeros(()).expand(10**12)), OUT, "its memory holds 4"),
    "a reply in the memory": (memory(lambda: HONEST), OUT, "memory.kept is a Reply"),
    "numpy in the memory": (memory(lambda: [np.int64(3), {"deep": np.float32(0.5)}]), IN, ""),
    "models and specs in the memory": (memory(lambda: [START, FULL, (1, 2)]), IN, ""),
    # Client code that raises
    "SystemExit": (raises(lambda: SystemExit(3)), GONE, "failed: SystemExit: 3"),
    "sys.exit": (lambda device: sys.exit("bye"), GONE, "failed: SystemExit: bye"),
    "KeyboardInterrupt": (raises(KeyboardInterrupt), GONE, "failed: KeyboardInterrupt:"),
    "GeneratorExit": (raises(GeneratorExit), GONE, "failed: GeneratorExit:"),
    "BaseException": (raises(lambda: BaseException("base")), GONE, "failed: BaseException: base"),
    "MemoryError": (raises(MemoryError), GONE, "failed: MemoryError:"),
    "a deep recursion": (raises(lambda: RecursionError("deep")), GONE, "failed: RecursionError: deep"),
    "an exception without words": (raises(Mute), GONE, "failed: Mute: (its text cannot be read)"),
    "an exception with a surrogate": (raises(lambda: ValueError("a\ud800b")), GONE, "failed: ValueError: a b"),
    "an exception of 10 MB": (raises(lambda: ValueError("x" * 10**7)), GONE, "failed: ValueError: xxx"),
    "a note of 10 MB": (raises(lambda: Skip("y" * 10**7)), GONE, "yyy"),
    "no reply": (lambda device: None, GONE, "failed: TypeError: Hostile.answer returned NoneType, not a Reply"),
    "a generator of nothing": (
        lambda device: (n for n in ()),
        GONE,
        "failed: TypeError: Hostile.answer returned NoneType",
    ),
    "a generator of numbers": (
        lambda device: (n for n in (1,)),
        GONE,
        "failed: TypeError: Hostile.answer returned int",
    ),
}


def exits(net, batch):
    raise SystemExit("in a loss")


@dataclass(frozen=True)
class Hostile:
    """Clients that answer as their task's config says."""

    @on_client
    def answer(self, task, device):
        return KINDS[task.config["kind"]][0](device)

    @on_client
    def fit(self, task, device):
        """Its loss ends the process; the verb says so, or dies of it."""
        try:
            yield FitRequest(task.models["model"], device.data, Local(steps=1), exits)
        except SystemExit:
            if task.config["kind"] == "caught":
                return Reply({"model": task.models["model"]}, metrics={"caught": True})
            raise


def task(client, kind, verb="answer"):
    return Task(
        verb, client, kind, models={"model": START}, config={"kind": kind}, expects=Expected({"model": START.shapes})
    )
