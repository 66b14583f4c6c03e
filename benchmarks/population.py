"""What a population of a million costs beside one of a thousand, with the same cohort, in one interleaved run.

    python benchmarks/population.py [--rounds 10]

Digits, 20 samples a client drawn from the client's own stream, a cohort of 100, an MLP, three tiers, the serial engine.
Prints CPU seconds a round, their ratio, and the peak memory of the whole process (both populations together).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

from potluck.engines import Serial
from potluck.ledger import RunFolder
from potluck.run import assemble, experiment
from potluck.run.interrupts import Interrupts
from potluck.run.loop import Loop
from potluck.run.watch import Silent

SIZES = (1_000, 1_000_000)


def federation(clients: int, folder: Path) -> Loop:
    """A run over this many clients, at round 0."""
    settings = {
        "rounds": 10**6,
        "cohort": 100,
        "data": {"clients": clients, "samples": 20},
        "model": {"name": "mlp", "depth": 3},
        "tier": [{"name": "weak", "depth": 1}, {"name": "middling", "depth": 2}, {"name": "strong", "depth": 3}],
        "method": {"name": "fedavg", "share": "layerwise"},
        "local": {"lr": 0.05, "epochs": 1, "batch": 10},
        "score": {"every": 5, "clients": 20},
        "run": {"engine": "serial", "checkpoint_every": 5},
    }
    setup = assemble(experiment(settings))
    return Loop(setup, Serial(setup.context), RunFolder.create(folder, "", {}, "benchmark"), Silent(), Interrupts())


def timed(loop: Loop) -> float:
    start = time.process_time()
    loop._round()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        starts, loops = [], []
        for size in SIZES:
            start = time.process_time()
            loops.append(federation(size, Path(folder) / str(size)))
            starts.append(time.process_time() - start)
        for loop in loops:
            loop._round()
        pairs = [tuple(timed(loop) for loop in loops) for _ in range(rounds)]
    small, large = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{'clients':>10}{'to start, s':>14}{'a round, s':>13}")
    for size, start, one in zip(SIZES, starts, (small, large), strict=True):
        print(f"{size:>10,}{start:>14.2f}{one:>13.3f}")
    ratio = statistics.median(b / a for a, b in pairs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"ratio {ratio:.3f} (median of {rounds} interleaved rounds, CPU time); peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
