"""Mutated messages: each is unpacked, or refused with a `MessageError`, within a second and 64 MB."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from contextlib import suppress
from pathlib import Path

import torch

from attack.driver import Finding
from potluck.core import Cost, MessageError, Model, Newborn, Reply, Spec, Task, pack, unpack
from potluck.core.message import MAGIC

BATCH = 500
"""Messages in one forked process."""
SECONDS, MEGABYTES = 1.0, 64
ODD = [
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    1e308,
    -0.5,
    True,
    None,
    "",
    "a" * 999,
    [],
    {},
    [[]],
    "\ud800",
    "$",
    {"$": "tensor"},
]


def originals() -> list[bytes]:
    """Messages of every kind."""
    spec = Spec("mlp", (1, 2), {"hidden": 3}, {"classes": 2, "input": [1, 8, 8]})
    model = Model(spec, {"w": torch.ones(4, 3), "bits": torch.tensor([True, False, True]), "n": torch.tensor(3)})
    task = Task("train", "c3", "k", 7, {"model": model, "born": Newborn(spec)}, {"x": torch.arange(5)}, {"lr": 0.1})
    reply = Reply({"model": model}, {"g": torch.zeros(3)}, 2.5, {"loss": 0.25}, task, Cost(1, 2, 3, 4, 0.5))
    nested = {"a": [1, {"b": [None, True, "é"]}], "t": torch.ones(2, dtype=torch.bfloat16), "$": 1}
    return [pack(value) for value in (task, reply, nested, {"memory": {"model": model}})]


def parts(data: bytes) -> tuple[object, dict[str, object], bytes]:
    """Head, safetensors header and numbers of a message."""
    (length,) = struct.unpack("<Q", data[8:16])
    rest = data[16 + length :]
    (inner,) = struct.unpack("<Q", rest[:8])
    return json.loads(data[16 : 16 + length]), json.loads(rest[8 : 8 + inner]), rest[8 + inner :]


def joined(head: object, header: object, numbers: bytes) -> bytes:
    text, inner = (json.dumps(each).encode("utf-8", "surrogatepass") for each in (head, header))
    return MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(inner)) + inner + numbers


def places(value: object, found: list[tuple[object, object]]) -> list[tuple[object, object]]:
    """Every (container, key) in nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        found.append((value, key))
        places(item, found)
    return found


def mutate(data: bytes, dice: random.Random) -> bytes:
    """One message that lies. Large lies are rare: they take long to make."""
    if dice.random() < 0.005:
        return large(data, dice)
    kind = dice.randrange(5)
    if kind < 3:
        return scratch(data, kind, dice)
    head, header, numbers = parts(data)
    if kind == 3 or not header:
        holder, key = dice.choice(places(head, []))
        holder[key] = dice.choice(ODD)  # type: ignore[index]
    else:
        name = dice.choice(list(header))
        field, odd = dice.choice(("shape", "data_offsets", "dtype")), dice.choice([*ODD, [0, 2**63], [2**40]])
        header[name] = {**header[name], field: odd}  # type: ignore[dict-item]
    return joined(head, header, numbers)


def scratch(data: bytes, kind: int, dice: random.Random) -> bytes:
    """A message with some bytes changed, left out or added."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(changed))
        if kind == 0:
            changed[at] = dice.randrange(256)
        elif kind == 1:
            del changed[at : at + dice.choice((1, 8, 100))]
        else:
            changed[at:at] = dice.randbytes(dice.choice((1, 8)))
        if not changed:
            break
    return bytes(changed)


def large(data: bytes, dice: random.Random) -> bytes:
    """A message that would be much larger, deeper or longer than it looks."""
    head, header, numbers = parts(data)
    kind = dice.randrange(4)
    if kind == 0:
        return joined({"many": [head] * dice.choice((50, 2000))}, header, numbers)
    if kind == 1:
        count = dice.choice((1000, 200_000))
        names = {f"n{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}
        return joined(head, names, b"")
    depth = dice.choice((10, 500, 50_000))
    deep = (b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth + b"]" * depth, b"[" + b"[]," * depth + b"1]")
    text, inner = dice.choice(deep), json.dumps(header).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(inner)) + inner + numbers


def try_batch(dice: random.Random, folder: Path) -> int:
    """A batch of mutated messages in one forked process, which tells the worst of them."""
    seeds, base = [dice.randrange(2**62) for _ in range(BATCH)], originals()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        said = ""
        try:
            said = worst_of(base, seeds)
        except BaseException as fault:
            said = f"{type(fault).__name__}: {fault}"
        os.write(writing, said.encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if status or said:
        raise Finding(said or f"the reader died with status {status}")
    return BATCH


def worst_of(base: list[bytes], seeds: list[int]) -> str:
    """Unpacks every mutation; says what went wrong, or nothing."""
    for seed in seeds:
        dice = random.Random(seed)
        data = mutate(dice.choice(base), dice)
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        try:
            unpack(data)
        except MessageError:
            pass
        except Exception as fault:
            return f"message {seed}: {type(fault).__name__} {fault}, not a MessageError"
        seconds = time.perf_counter() - started
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if more > MEGABYTES + len(data) / 2**20:
            return f"message {seed} of {len(data):,} bytes took {more:.0f} MB"
        if seconds > SECONDS:
            again = time.process_time()
            with suppress(MessageError):
                unpack(data)
            if time.process_time() - again > SECONDS:  # not only a busy machine
                return f"message {seed} of {len(data):,} bytes took {seconds:.1f} s"
    return ""
