"""The server's work in a round of Moss, for more and more devices and for more and more architectures.

    python benchmarks/moss.py [--rounds 3]

Digits, 10 rows a device, all devices in every round, 100 public rows, one epoch a transfer, the serial engine.
Transfers and the average of proxies count as the server's work, in CPU seconds and in modelled FLOPs. Everything else
in a round (devices, averages within tiers, the ledger) is counted apart. Federations take turns, round by round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from potluck.engines import Serial
from potluck.ledger import RunFolder
from potluck.methods import Moss
from potluck.run import assemble, experiment
from potluck.run.interrupts import Interrupts
from potluck.run.loop import Loop
from potluck.run.watch import Silent

TYPES: dict[str, Any] = {
    "cnn": {"model": {"name": "cnn"}},
    "lenet": {"model": {"name": "lenet"}},
    "mlp": {"model": {"name": "mlp"}},
    "narrow cnn": {"model": {"name": "cnn", "width": 16}},
}
CASES = ((30, 3), (100, 3), (300, 3), (60, 2), (60, 3), (60, 4))
"""Number of devices, and of architectures (the first ones of TYPES)."""


@dataclass
class Federation:
    """A federation, and the CPU seconds of its rounds."""

    devices: int
    types: int
    loop: Loop
    server: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def round(self) -> None:
        start = time.process_time()
        with time_server() as spent:
            self.loop._round()
        self.server.append(sum(spent))
        self.others.append(time.process_time() - start - sum(spent))

    @property
    def flops(self) -> float:
        """The server's modelled FLOPs in a round."""
        return self.loop.progress.totals["server_flops"] / len(self.server)


@contextmanager
def time_server() -> Iterator[list[float]]:
    """CPU seconds of what Moss's server does after the averages within tiers, one number for each round."""
    spent: list[float] = []
    original = Moss.transfer_through_proxies

    def timed(self: Moss, *args: Any) -> Any:
        start = time.process_time()
        try:
            return original(self, *args)
        finally:
            spent.append(time.process_time() - start)

    with patch.object(Moss, "transfer_through_proxies", timed):
        yield spent


def make_federation(devices: int, types: int, folder: Path) -> Federation:
    """A run of these devices, before its first round."""
    settings = {
        "rounds": 10**6,
        "cohort": devices,
        "data": {"clients": devices, "samples": 10, "public": 100},
        "model": TYPES["cnn"]["model"],
        "tier": [{"name": name, **TYPES[name]} for name in list(TYPES)[:types]],
        "method": {"name": "moss", "wire": {"epochs": 1}},
        "local": {"lr": 0.05, "epochs": 1, "batch": 10},
        "score": {"every": 10**6},
        "run": {"engine": "serial", "checkpoint_every": 10**6},
    }
    setup = assemble(experiment(settings))
    run = RunFolder.create(folder, "", {}, "benchmark")
    return Federation(devices, types, Loop(setup, Serial(setup.context), run, Silent(), Interrupts()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = [make_federation(*case, Path(folder) / str(at)) for at, case in enumerate(CASES)]
        for _ in range(rounds + 1):  # the first warms up
            for case in cases:
                case.round()
        print("devices  architectures  server, s  modelled, GFLOP  all else, s")
        for case in cases:
            server, others = (statistics.median(each[1:]) for each in (case.server, case.others))
            print(f"{case.devices:7}  {case.types:13}  {server:9.2f}  {case.flops / 1e9:15.1f}  {others:11.2f}")
    print(f"median of {rounds} interleaved rounds, CPU seconds on one core")


if __name__ == "__main__":
    main()
