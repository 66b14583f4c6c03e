"""What a step of WIRE takes: with torch's own second derivatives, with ours and, on a GPU, recorded.

    python benchmarks/ahead.py [--hardware cuda] [--batch 50] [--students resnet18,mobilenet_v2,lenet] [--every 1]

A ResNet18 teaches networks of three architectures a batch of pictures of 32 by 32. Ways take turns; the median of three
turns of four steps each is shown, in milliseconds a step, after a first turn that is not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import potluck.learn.transfer as module
from potluck.core import Examples, Model, Spec, stream
from potluck.learn import Meta, Transfer, Wire
from potluck.models import ModelZoo, make_spec

SHAPE: dict[str, Any] = {"input": (3, 32, 32), "classes": 10}
STEPS = 4


@contextmanager
def torchs_own() -> Iterator[None]:
    """While this lasts, layers are differentiated twice as torch does it."""
    ours = module.DoubleBackward
    module.DoubleBackward = nullcontext  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        module.DoubleBackward = ours  # type: ignore[misc]


def made(student: Spec, teacher: Spec, wire: Wire, hardware: torch.device, recorded: bool) -> Transfer:
    zoo = ModelZoo(teacher)
    nets = [zoo.build(Model(spec), stream(0)).to(hardware) for spec in (teacher, student)]
    bridge = wire.bridge(teacher, student, zoo)
    found = Transfer(*nets, bridge, Meta.of(Meta.newborn(bridge, stream(1)).rest(), hardware), wire, gather=True)
    for reel in found.reels:
        reel.recordings.wanted &= recorded
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--students", default="resnet18,mobilenet_v2,lenet")
    asked = parser.parse_args()
    hardware = torch.device(asked.hardware)
    torch.set_num_threads(1)
    wire = Wire(lr=1e-3, batch=asked.batch, epochs=STEPS, ahead_every=asked.every)
    x, y = torch.randn(asked.batch, 3, 32, 32, generator=stream(2)), torch.arange(asked.batch) % 10
    rows = Examples({"x": x.to(hardware), "y": y.to(hardware)})
    teacher = make_spec("resnet18", **SHAPE)
    ways = ["torch's own", "ours"] + ["ours, recorded"] * (hardware.type == "cuda")
    print(f"{'student':14}" + "".join(f"{way:>16}" for way in ways) + "   ms a step")
    for name in asked.students.split(","):
        transfers = {way: made(make_spec(name, **SHAPE), teacher, wire, hardware, way == ways[-1]) for way in ways}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(4):
            for way, transfer in transfers.items():
                start = time.perf_counter()
                with torchs_own() if way == ways[0] else nullcontext():
                    transfer.run(rows, wire.lr, stream(3))
                spent[way].append(1000 * (time.perf_counter() - start) / STEPS)
        medians = [statistics.median(times[1:]) for times in spent.values()]
        print(f"{name:14}" + "".join(f"{value:16.1f}" for value in medians), flush=True)


if __name__ == "__main__":
    main()
