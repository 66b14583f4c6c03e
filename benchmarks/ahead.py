"""The time of a step of WIRE: with PyTorch's second derivatives, with ours and, on a GPU, captured as a CUDA graph.

    python benchmarks/ahead.py [--hardware cuda] [--batch 50] [--students resnet18,mobilenet_v2,lenet] [--every 1]

A ResNet18 teaches networks of three architectures a batch of pictures of 32 by 32. The ways take turns. The table has
the median of three turns of four steps each, in milliseconds a step; a first turn warms up and does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch

from potluck.core import Examples, Newborn, Spec, stream
from potluck.methods.moss.feature_matching import MetaNetworks
from potluck.methods.moss.wire import TransferLoop, WireSettings
from potluck.models import ModelZoo, make_spec

SHAPE: dict[str, Any] = {"input": (3, 32, 32), "classes": 10}
STEPS = 4
DOUBLE_BACKWARD = "potluck.methods.moss.wire.DoubleBackward"
"""Without it, second derivatives are PyTorch's own."""


def make_transfer(
    student: Spec, teacher: Spec, wire: WireSettings, hardware: torch.device, captured: bool
) -> TransferLoop:
    zoo = ModelZoo(teacher)
    nets = [zoo.build(Newborn(spec), stream(0)).to(hardware) for spec in (teacher, student)]
    matching = wire.matching(teacher, student, zoo)
    meta = MetaNetworks.from_arrays(MetaNetworks.initial(matching, stream(1)).snapshot(), hardware)
    transfer = TransferLoop(nets[0], nets[1], matching, meta, wire, update_statistics=True)
    for step in transfer.captured_steps:
        step.policy.wanted &= captured
    return transfer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--students", default="resnet18,mobilenet_v2,lenet")
    args = parser.parse_args()
    hardware = torch.device(args.hardware)
    torch.set_num_threads(1)
    wire = WireSettings(lr=1e-3, batch=args.batch, epochs=STEPS, ahead_every=args.every)
    x, y = torch.randn(args.batch, 3, 32, 32, generator=stream(2)), torch.arange(args.batch) % 10
    rows = Examples({"x": x.to(hardware), "y": y.to(hardware)})
    teacher = make_spec("resnet18", **SHAPE)
    ways = ["PyTorch's", "ours"] + ["ours, captured"] * (hardware.type == "cuda")
    print(f"{'student':14}" + "".join(f"{way:>16}" for way in ways) + "   ms a step")
    for name in args.students.split(","):
        transfers = {
            way: make_transfer(make_spec(name, **SHAPE), teacher, wire, hardware, way == ways[-1]) for way in ways
        }
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(4):
            for way, transfer in transfers.items():
                start = time.perf_counter()
                with patch(DOUBLE_BACKWARD, nullcontext) if way == ways[0] else nullcontext():
                    transfer.run(rows, wire.lr, stream(3))
                spent[way].append(1000 * (time.perf_counter() - start) / STEPS)
        medians = [statistics.median(times[1:]) for times in spent.values()]
        print(f"{name:14}" + "".join(f"{value:16.1f}" for value in medians), flush=True)


if __name__ == "__main__":
    main()
