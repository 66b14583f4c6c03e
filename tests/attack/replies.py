"""Hostile replies: each is accepted or quarantined, alike on every engine; none ends a run or spoils a model."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack.driver import Finding
from attack.forked import forked
from potluck.core import Device, Fit, Model, Reply, Skip, Spec, Task
from potluck.methods import FedAvg

HUGE = 10**400
FLOATS = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e308, 0.0, -0.0, 5e-324]
WEIGHTS: list[Any] = [
    *FLOATS,
    HUGE,
    -HUGE,
    -5,
    1e18,
    10**9,
    True,
    None,
    "1",
    [1.0],
    {},
    1j,
    np.float32(2),
    np.int64(3),
    torch.tensor(1.0),
]
PLAIN: list[Any] = [
    None,
    [],
    "text",
    7,
    {1: 2},
    {"a": {1}},
    {"\ud800": 1},
    {"loss": HUGE},
    {"loss": np.int64(3)},
    {"loss": np.float64(1)},
    {"loss": float("nan")},
    {"loss": torch.ones(2)},
    {"a": object()},
    {"x" * 100_000: 1},
    {"x": "y" * 10_000_000},
    {"deep": None},
    {"labels": [HUGE]},
    {"labels": "no"},
    b"bytes",
    {"b": b"bytes"},
    {"loss": 1j},
]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def odd_tensor(like: torch.Tensor, dice: random.Random) -> Any:
    """Something in the place of a tensor."""
    return dice.choice(
        [
            lambda: like.new_full(like.shape, dice.choice(FLOATS)) if like.is_floating_point() else like - 1,
            lambda: torch.zeros(1).expand(10**12),
            lambda: torch.empty(like.shape, device="meta"),
            lambda: like.to(torch.complex64),
            lambda: like.double(),
            lambda: like.half(),
            lambda: like.to(torch.int64),
            lambda: like[:0] if like.dim() else like.reshape(1),
            lambda: like.unsqueeze(0),
            lambda: like.to_sparse() if like.dim() else None,
            lambda: like.numpy(),
            lambda: like.tolist(),
            lambda: None,
            lambda: "tensor",
            lambda: torch.nn.Parameter(like.float().clone()) if like.is_floating_point() else like,
            lambda: torch.quantize_per_tensor(like.float(), 0.1, 0, torch.qint8),
            lambda: like.t() if like.dim() == 2 else like.flip(0) if like.dim() else like,
        ]
    )()


def spoil(reply: Reply, device: Device, dice: random.Random) -> Reply:
    """A reply with one thing, or two, that it should not hold."""
    for _ in range(dice.choice((1, 1, 2))):
        kind = dice.randrange(12)
        model = reply.models["model"] if isinstance(reply.models, dict) and "model" in reply.models else None
        if kind == 0:
            reply = replace(reply, weight=dice.choice(WEIGHTS))
        elif kind == 1:
            metrics = dice.choice(PLAIN)
            reply = replace(reply, metrics={"deep": deep(5000)} if metrics == {"deep": None} else metrics)
        elif kind in (2, 3) and isinstance(model, Model):
            name = dice.choice(list(model.arrays))
            arrays = {**model.arrays, name: odd_tensor(model.arrays[name], dice)}
            reply = replace(reply, models={"model": Model(model.spec, arrays)})
        elif kind == 4 and isinstance(model, Model):
            arrays = dict(model.arrays)
            arrays.pop(dice.choice(list(arrays)))
            reply = replace(reply, models={"model": Model(model.spec, arrays)})
        elif kind == 5 and isinstance(model, Model):
            names = [7, "\ud800", "x" * 100_000, "", "head.weight2", None]
            reply = replace(
                reply, models={"model": Model(model.spec, {**model.arrays, dice.choice(names): torch.ones(1)})}
            )
        elif kind == 6 and isinstance(model, Model):
            specs = [None, "mlp", Spec("no such family"), Spec("mlp", 99, {}, {}), 3]
            reply = replace(reply, models={"model": Model(dice.choice(specs), model.arrays)})
        elif kind == 7:
            reply = replace(
                reply, models=dice.choice([{}, None, [], {"model": None}, {"other": model}, {1: model}, model])
            )
        elif kind == 8:
            reply = replace(
                reply, arrays=dice.choice([{"x": torch.ones(1)}, None, [], {1: torch.ones(1)}, torch.ones(3)])
            )
        elif kind == 9:
            device.memory.update(
                dice.choice(
                    [
                        {1: 2},
                        {"\ud800": 1},
                        {"a": object()},
                        {"a": {1}},
                        {"a": deep(5000)},
                        {"a": torch.empty(2, device="meta")},
                        {"a": torch.zeros(1).expand(10**12)},
                        {"a": lambda: 0},
                        {("a",): 1},
                    ]
                )
            )
        elif kind == 10:
            return dice.choice([None, 7, "reply", [reply], reply.models])  # type: ignore[return-value]
        else:
            raise dice.choice(
                [
                    SystemExit(0),
                    SystemExit("bye"),
                    MemoryError(),
                    RecursionError(),
                    StopIteration(),
                    GeneratorExit(),
                    Skip("no"),
                    ValueError("x" * 1_000_000),
                    ValueError("a\nb\x1b[31m"),
                    UnicodeError(),
                    AssertionError(),
                    ZeroDivisionError(),
                ]
            )
    return reply


@dataclass(frozen=True)
class Hostile(FedAvg):
    """FedAvg whose clients of the lowest numbers lie."""

    dice: int = 0
    liars: int = 3

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        if int(device.client[1:]) >= self.liars:
            return reply
        return spoil(reply, device, random.Random(f"{self.dice}/{task.round}/{device.client}"))


def settings(engine: str, rounds: int) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "cohort": 8,
        "data": {"clients": 8},
        "model": {"name": "mlp", "hidden": 4, "depth": 1},
        "local": {"epochs": 1, "batch": 64},
        "score": {"every": rounds, "clients": 2},
        "gate": {"strikes": 0, "bound": 50.0},  # else one finite but huge step may be accepted, and ruin the model
        "run": {"engine": engine, "workers": 2} if engine == "pool" else {"engine": engine},
    }


def try_one(dice: random.Random, folder: Path) -> int:
    """One federation of six liars and two honest clients, on two engines or three."""
    seed, rounds, liars = dice.randrange(2**31), 6, 6
    engines = ["serial", "wire", *["pool"] * (dice.random() < 0.1)]
    found = {}
    for engine in engines:
        ended = forked(run(seed, engine, rounds, liars), folder, seconds=120)
        if ended.code:
            raise Finding(f"hostile replies end a run on {engine} (exit {ended.code}): {ended.err[-600:]!r}")
        found[engine] = json.loads(ended.out.splitlines()[-1])
        if not found[engine]["finite"]:
            raise Finding(f"hostile replies spoil the model on {engine}")
    first = found["serial"]
    for engine, other in found.items():
        for mine, theirs in zip(first["verdicts"], other["verdicts"], strict=True):
            if mine != theirs:
                raise Finding(f"the verdict depends on the engine: serial {mine}, {engine} {theirs}")
        if first["weights"] != other["weights"]:
            raise Finding(f"the weights depend on the engine: serial and {engine} differ")
    return rounds * liars


def run(seed: int, engine: str, rounds: int, liars: int) -> Callable[[], None]:
    def work() -> None:
        from potluck.core import Local
        from potluck.ledger import read_journal
        from potluck.run import run as run_potluck

        plain = settings(engine, rounds)
        method = Hostile(local=Local(**plain["local"]), dice=seed, liars=liars)
        result = run_potluck(plain, Path("run-" + engine), method=method)
        tasks = [line for line in read_journal(result.folder / "ledger.jsonl") if line.get("event") == "task"]
        verdicts = sorted([line["round"], line["client"], line["outcome"], line.get("reason") or ""] for line in tasks)
        accuracy = result.scores["global"]["test"]["loss"]
        finite = accuracy is not None and abs(accuracy) < 1e9
        sys.stdout.write(json.dumps({"verdicts": verdicts, "weights": result.weights_sha256, "finite": finite}) + "\n")
        sys.stdout.flush()

    return work
