"""The cost of secure sums: CPU seconds of a round with [secure] over those of the plain round, interleaved in one run.

    python benchmarks/secure.py [--clients 30] [--repeats 3] [--networks lenet,resnet18]

HeteroFL with three equal tiers (widths 1/4, 1/2, 1) on random pictures of 3x32x32, on `serial`, one thread. In the
timing: training, all five phases on both sides, the sum. Bytes are those of all clients together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from potluck.core import stream
from potluck.data import Source, from_arrays
from potluck.engines import Dispatcher, Serial
from potluck.run import config
from potluck.run.assemble import Setup, assemble

SAMPLES = {"lenet": 500, "resnet18": 100}
BATCH = 20


def pictures(clients: int, samples: int) -> Source:
    """Random pictures of ten classes."""
    rng = np.random.default_rng(0)
    rows = 2 * clients * samples
    return from_arrays(rng.integers(0, 256, (rows, 3, 32, 32), np.uint8), rng.integers(0, 10, rows), name="noise")


def setup_of(network: str, clients: int, secure: bool) -> Setup:
    samples = SAMPLES.get(network, 100)
    model = {"name": network} | ({"norm": "group"} if network != "lenet" else {})
    plain: dict[str, Any] = {
        "rounds": 1,
        "cohort": clients,
        "data": {"clients": clients, "samples": samples},
        "model": model,
        "tier": [{"name": f"x{width:g}", "width": width} for width in (0.25, 0.5, 1.0)],
        "method": {"name": "heterofl", "label_mask": False},
        "local": {"lr": 0.01, "epochs": 1, "batch": BATCH},
        "secure": {"enabled": secure},
    }
    plain["data"]["name"] = "own"
    return assemble(config.experiment(plain), pictures(clients, samples))


def round_of(setup: Setup, number: int) -> tuple[float, int]:
    """CPU seconds of a round, and the bytes that clients upload."""
    context = setup.context
    run = Dispatcher(Serial(context), context.method, context.zoo, samples=context.samples, secure=context.secure)
    run.session_label = f"round {number}"
    session = run.open(0)
    state = context.method.init(context.zoo, stream(0, "init"))
    began = time.process_time()
    context.method.round(state, setup.view(0, session))
    spent = time.process_time() - began
    return spent, sum(entry.cost.bytes_up for entry in session.entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--networks", default="lenet,resnet18")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'network':12}{'parameters':>12}{'plain':>10}{'[secure]':>10}{'ratio':>8}{'bytes up':>12}{'times':>8}")
    for network in asked.networks.split(","):
        plain, secure = (setup_of(network, asked.clients, wanted) for wanted in (False, True))
        found: list[tuple[float, float]] = []
        for number in range(asked.repeats + 1):  # the first one loads libraries
            (one, sent), (other, masked) = round_of(plain, number), round_of(secure, number)
            found += [(one, other)] if number else []
        zoo = plain.context.zoo
        ratio = statistics.median(other / one for one, other in found)
        middle = (statistics.median(values) for values in zip(*found, strict=True))
        numbers = "".join(f"{value:10.2f}" for value in middle)
        size = zoo.cost(zoo.full, 1).parameters
        print(f"{network:12}{size:12,}{numbers}{ratio:8.2f}{masked / 1e6:10.1f} MB{masked / sent:8.2f}")


if __name__ == "__main__":
    main()
