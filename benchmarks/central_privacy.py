"""What privacy costs in accuracy: noise of the server beside noise of every device and none, at the same epsilon.

    python benchmarks/central_privacy.py [--epsilons 2,8] [--rounds 80] [--seeds 0,1] [--out DIR]

One thousand clients with 20 rows of their own each: scikit-learn's digits, shifted by up to a pixel and with noise on
every pixel, so that they are harder; label mixes are skewed (Dirichlet, 1.0). Half of the clients can train half of the
hidden units (HeteroFL). Some 100 clients take part in a round. Delta is 1e-5. Every way chooses its clip and its local
learning rate by validation accuracy with a seed of its own, then runs with the other seeds; the table has test
accuracies. Test rows come from digits of which no client has a copy.

"server, coins": fleet.draw = "poisson", epsilon for a client that is there or not. "server, coins, replaced": the same
for a client whose data is any other, which is also what epsilon means for noise of devices. "server, fixed": cohorts of
exactly 100, for a client whose data is any other. "server, tree": noise on prefix sums, for a client that is left out,
without any trust in the draw.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from potluck.core import Examples
from potluck.data import Source
from potluck.run import run

CLIENTS, ROWS, COHORT = 1000, 20, 100
TUNING_SEED = 1000
CLIPS = {"none": (1.0,), "device": (0.03, 0.1, 0.3, 1.0, 3.0), "server": (0.5, 1.0)}
RATES = (0.3, 0.6)


def shifted(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], count: int, seed: int) -> Examples:
    """So many rows: a digit, shifted by up to one pixel each way, with noise of 0.15 of the range."""
    rng = np.random.default_rng(seed)
    picked = rng.integers(len(images), size=count)
    padded = np.pad(images[picked], ((0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(3, size=(2, count))
    rows, columns = down[:, None] + np.arange(8), right[:, None] + np.arange(8)
    x = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]] / 16
    x = (x + rng.normal(0, 0.15, x.shape)).astype(np.float32)[:, None]
    return Examples({"x": torch.from_numpy(x), "y": torch.from_numpy(labels[picked].astype(np.int64))})


def harder_digits() -> Source:
    """Rows for all clients, some for validation, and test rows of other digits."""
    found = load_digits()
    train, test = slice(0, 1400), slice(1400, None)
    rows = shifted(found.images[train], found.target[train], int(CLIENTS * ROWS / 0.9), 1)
    return Source("harder digits", rows, shifted(found.images[test], found.target[test], 2000, 2), 10, (1, 8, 8))


def settings(privacy: dict[str, Any], draw: str, rounds: int, rate: float, seed: int) -> dict[str, Any]:
    return {
        "name": "central privacy",
        "seed": seed,
        "rounds": rounds,
        "cohort": COHORT,
        "data": {"name": "own", "clients": CLIENTS, "partition": "dirichlet", "alpha": 1.0, "samples": ROWS},
        "model": {"name": "mlp", "hidden": 32, "depth": 1},
        "tier": [{"name": "half", "width": 0.5}, {"name": "whole"}],
        "fleet": {"draw": draw},
        "method": {"name": "heterofl", "label_mask": False, "scaler": False},
        "local": {"epochs": 2, "batch": 10, "lr": rate},
        "privacy": {"delta": 1e-5, **privacy},
        "score": {"every": rounds, "clients": 0},
        "run": {"engine": "serial", "stack": 50, "checkpoint_every": rounds, "live": False},
    }


WAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "none": ("none", {}, "poisson"),
    "server, coins": ("server", {"where": "server"}, "poisson"),
    "server, coins, replaced": ("server", {"where": "server", "neighbours": "replace-one"}, "poisson"),
    "server, fixed": ("server", {"where": "server"}, "uniform"),
    "server, tree": ("server", {"where": "server", "mechanism": "tree"}, "uniform"),
    "device": ("device", {"where": "device"}, "uniform"),
}


def score(way: str, epsilon: float | None, clip: float, rate: float, rounds: int, seed: int, out: Path) -> Any:
    _, privacy, draw = WAYS[way]
    told = privacy | ({} if epsilon is None else {"clip": clip, "epsilon": epsilon})
    folder = out / f"{way.replace(', ', '-')}-{epsilon}-{clip}-{rate}-{seed}"
    return run(settings(told, draw, rounds, rate, seed), folder, source=SOURCE, advise=False)


def accuracy(result: Any, split: str) -> float:
    return float(result.scores["global"][split]["accuracy"])


def measure(way: str, epsilon: float | None, rounds: int, seeds: list[int], out: Path) -> str:
    """Chooses clip and rate, runs with every seed, and returns a line of the table."""
    tried = {
        choice: accuracy(score(way, epsilon, *choice, rounds, TUNING_SEED, out), "validation")
        for choice in itertools.product(CLIPS[WAYS[way][0]], RATES)
    }
    best = max(tried, key=lambda choice: tried[choice])
    found = [score(way, epsilon, *best, rounds, seed, out) for seed in seeds]
    scores = [accuracy(result, "test") for result in found]
    told = found[0].privacy or {}
    noise, spent = (f"{told[key]:.3g}" if key in told else "" for key in ("noise", "epsilon"))
    spread = f"{100 * (max(scores) - min(scores)):.1f}"
    mean = f"{100 * statistics.mean(scores):.1f}"
    clip = f"{best[0]:g}" if told else ""
    return f"{way:24} {spent:>8} {clip:>6} {noise:>8} {best[1]:>6g} {mean:>9} {spread:>7}"


SOURCE = harder_digits()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", default="2,8")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--ways", default=",".join(name.replace(", ", "-") for name in WAYS))
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = [name.replace("-", ", ") for name in args.ways.split(",")]
    with tempfile.TemporaryDirectory() as made:
        out, seeds = Path(args.out or made), [int(seed) for seed in args.seeds.split(",")]
        print(
            f"{'noise of':24} {'epsilon':>8} {'clip':>6} {'noise':>8} {'lr':>6} {'test %':>9} {'range':>7}", flush=True
        )
        for way in ways:
            for epsilon in [None] if way == "none" else [float(text) for text in args.epsilons.split(",")]:
                print(measure(way, epsilon, args.rounds, seeds, out), flush=True)


if __name__ == "__main__":
    main()
