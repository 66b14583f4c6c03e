"""What the serial engine costs beside a bare PyTorch loop that does the same steps, in one interleaved run.

    python benchmarks/overhead.py [--repeats 15]

Two workloads: LeNet on 28x28 with 600 samples x 10 clients, and an MLP with 20 samples x 200 clients. The bare loop is
what one would write by hand: load the model, a fresh torch.optim.SGD, batches, backward, step, a weighted sum. Ours is
the whole round of a real run: cohort, tasks, local training, gate, mean, prices, ledger. CPU seconds, one thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from potluck.core import Newborn
from potluck.data import from_arrays
from potluck.engines import Serial
from potluck.ledger import RunFolder
from potluck.run import assemble, experiment
from potluck.run.interrupts import Interrupts
from potluck.run.loop import Loop
from potluck.run.watch import Silent

WORKLOADS: dict[str, dict[str, Any]] = {
    "LeNet 28x28, 600 x 10": {"model": "lenet", "shape": (1, 28, 28), "clients": 10, "samples": 600, "batch": 32},
    "MLP 64, 20 x 200": {"model": "mlp", "shape": (1, 8, 8), "clients": 200, "samples": 20, "batch": 10},
}


def setting(work: dict[str, Any], folder: Path) -> tuple[Loop, Callable[[], None]]:
    """Our round, and the bare loop over the same clients."""
    rows = work["clients"] * work["samples"]
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(rows + 200, *work["shape"], generator=draw), torch.randint(0, 10, (rows + 200,), generator=draw)
    source = from_arrays(x[:rows].numpy(), y[:rows].numpy(), x_test=x[rows:].numpy(), y_test=y[rows:].numpy())
    settings = {
        "rounds": 10**6,
        "cohort": work["clients"],
        "data": {"clients": work["clients"], "samples": work["samples"], "validation": 0.0},
        "model": {"name": work["model"]},
        "local": {"lr": 0.05, "epochs": 1, "batch": work["batch"]},
        "score": {"every": 10**6, "clients": 0},
        "run": {"engine": "serial", "checkpoint_every": 10**6},
    }
    setup = assemble(experiment(settings), source)
    folder_ = RunFolder.create(folder, "", {}, "benchmark")
    ours = Loop(setup, Serial(setup.context), folder_, Silent(), Interrupts())
    net = setup.context.zoo.build(Newborn(setup.context.zoo.full), torch.Generator().manual_seed(0))
    shards = [setup.context.datasets.shard(f"c{index}").train for index in range(work["clients"])]
    data = [(shard.all()["x"], shard.all()["y"]) for shard in shards]
    return ours, lambda: bare(net, data, 0.05, work["batch"])


def bare(net: torch.nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]], lr: float, batch: int) -> None:
    """One round of FedAvg, by hand."""
    whole = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
    total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in whole.items()}
    for x, y in clients:
        net.load_state_dict(whole)
        optimiser = torch.optim.SGD(net.parameters(), lr=lr)
        net.train()
        for rows in torch.randperm(len(y)).split(batch):
            optimiser.zero_grad()
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
        for name, tensor in net.state_dict().items():
            total[name] += len(y) * tensor
    count = sum(len(y) for _, y in clients)
    net.load_state_dict({name: (tensor / count).to(whole[name].dtype) for name, tensor in total.items()})


def seconds(work: Callable[[], None]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(f"CPU seconds a round, median of {repeats} interleaved rounds")
    print(f"{'workload':<24}{'bare loop':>10}{'potluck':>11}{'ratio':>8}")
    for name, work in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = setting(work, Path(folder) / "run")
            ours._round()
            theirs()
            pairs = [(seconds(theirs), seconds(ours._round)) for _ in range(repeats)]
            ratio = statistics.median(b / a for a, b in pairs)
            a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"{name:<24}{a:>10.3f}{b:>11.3f}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
