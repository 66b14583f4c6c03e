"""A lower bound on epsilon from one run: canary clients, each there or not by the toss of a coin.

    python benchmarks/audit.py [--epsilon 2] [--canaries 1000] [--guessed 0.5] [--rounds 80] [--seed 0]

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, https://arxiv.org/abs/2305.08846.
A federation with central privacy (fleet.draw = "poisson", HeteroFL with two widths) has as many canaries as clients. A
coin decides before the run whether a canary is there. One that is there sends, whenever it is drawn, an update of one
clip in a direction of its own; one that is not there sends nothing. The auditor sees every released sum and knows all
directions, but not who was drawn. Its score of a canary is the product of the direction and the released sums. It
guesses "there" for the quarter with the highest scores, "not there" for the quarter with the lowest, and says nothing
of the others (`--guessed`: the share that it guesses). If so many guesses are right that it could happen with
probability below 5 % under some epsilon, then epsilon is larger (Theorem 5.2 of the paper, with delta).

No audit finds more than if all guesses are right, and that is printed first: 5.1 for 500 guesses. To catch a server
that states an epsilon of 8, it takes about 16,000 canaries, of which all are guessed.

The second run is of a server that forgets the noise but states the same epsilon: the bound must catch it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from potluck.core import Device, Fit, Model, Reply, Skip, Task, stream
from potluck.methods import HeteroFL
from potluck.parts import privatise
from potluck.run import assemble, experiment, run

DELTA, CONFIDENCE, RATE = 1e-5, 0.95, 0.1


def lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon under which so many right guesses are less likely than one minus the confidence; 0 if none.

    >>> round(lower_bound(100, 100, 100, 0.0), 3)  # all are right: 5 % is (1 + exp(-3.493)) ** -100
    3.493
    >>> lower_bound(100, 100, 50, 0.0)
    0.0
    """
    low, high = 0.0, 60.0
    if likelihood(canaries, guesses, right, 0.0, delta) >= 1 - confidence:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        likely = likelihood(canaries, guesses, right, middle, delta) >= 1 - confidence
        low, high = (low, middle) if likely else (middle, high)
    return low


def guesses_of(canaries: int, guessed: float) -> int:
    """How many canaries are guessed, if it is this share of them: an even number."""
    return 2 * int(canaries * guessed / 2)


def largest_bound(canaries: int, guessed: float) -> float:
    """The largest epsilon that an audit can find: all guesses are right."""
    guesses = guesses_of(canaries, guessed)
    return lower_bound(canaries, guesses, guesses, DELTA)


def likelihood(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How probable it is at most that so many guesses are right under (epsilon, delta): Theorem 5.2."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, chance))
    fewer = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - fewer, guesses, chance))
    return min(1.0, tail + float(np.max(below / fewer, initial=0.0)) * delta * 2 * canaries)


def coin(seed: int, client: str) -> bool:
    """Whether a canary is there."""
    return bool(torch.randint(2, (), generator=stream(seed, "coin", client)))


def direction(seed: int, client: str, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """The canary's own direction, of length one over all of its tensors."""
    rng = stream(seed, "direction", client)
    drawn = {name: torch.randn(tensor.shape, generator=rng) for name, tensor in sorted(arrays.items())}
    length = math.sqrt(sum(float((tensor**2).sum()) for tensor in drawn.values()))
    return {name: tensor / length for name, tensor in drawn.items()}


@dataclass(frozen=True)
class WithCanaries(HeteroFL):
    """HeteroFL in which clients with an odd number are canaries."""

    coins: int = 0
    """The seed of coins and directions."""

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        if not is_canary(task.to):
            return reply
        if not coin(self.coins, task.to):
            raise Skip("not there")
        sent = task.models["model"]
        far = direction(self.coins, task.to, dict(sent.arrays))
        moved = {name: tensor + 1000 * far[name] for name, tensor in sent.arrays.items()}
        return replace(reply, models={"model": Model(sent.spec, moved)})


def is_canary(client: str) -> bool:
    return int(client.removeprefix("c")) % 2 == 1


@contextmanager
def watched(forget: bool) -> Iterator[dict[str, Tensor]]:
    """The sum of all that is released inside; with `forget`, the server forgets its noise."""
    total: dict[str, Tensor] = {}

    def release(sums: Any, start: Any, expected: Any, clip: float, noise: float, *more: Any) -> Any:
        found = privatise(sums, start, expected, clip, 0.0 if forget else noise, *more)
        for name, tensor in found.totals.items():
            total[name] = total.get(name, 0.0) + tensor - expected[name] * start[name].double()
        return found

    with patch("potluck.run.central_privacy.privatise", release):
        yield total


def audit(
    epsilon: float, canaries: int, rounds: int, seed: int, forget: bool, out: Path, guessed: float = 0.5
) -> tuple[float, int, int, float]:
    """The stated epsilon, the number of guesses, how many are right, and the lower bound."""
    settings = experiment({
        "seed": seed,
        "rounds": rounds,
        "cohort": int(2 * canaries * RATE),
        "data": {"clients": 2 * canaries, "samples": 10},
        "model": {"name": "mlp", "hidden": 128, "depth": 1},
        "tier": [{"name": "half", "width": 0.5}, {"name": "whole"}],
        "fleet": {"draw": "poisson"},
        "local": {"epochs": 1, "batch": 10, "lr": 0.05},
        "privacy": {"where": "server", "clip": 1.0, "epsilon": epsilon, "delta": DELTA},
        "score": {"every": rounds, "clients": 0},
        "run": {"engine": "serial", "checkpoint_every": rounds, "live": False},
    })  # fmt: skip
    method = WithCanaries(local=settings.local, label_mask=False, scaler=False, coins=seed)
    with watched(forget) as released:
        stated = run(settings, out, method=method, advise=False).privacy
    setup = assemble(settings, method=method)
    scores = {}
    for index in range(1, 2 * canaries, 2):
        client = setup.population.client(index, 0)
        _, part = method.submodel_for(client, setup.context.zoo)
        there = part.take(released)
        own = direction(seed, client.id, there)
        scores[client.id] = sum(float((own[name] * there[name]).sum()) for name in own)
    ranked = sorted(scores, key=lambda client: scores[client])
    guesses = guesses_of(canaries, guessed)
    right = sum(not coin(seed, client) for client in ranked[: guesses // 2])
    right += sum(coin(seed, client) for client in ranked[len(ranked) - guesses // 2 :])
    assert stated is not None
    return stated["epsilon"], guesses, right, lower_bound(canaries, guesses, right, DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--guessed", type=float, default=0.5, help="the share of canaries that are guessed")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    most = largest_bound(args.canaries, args.guessed)
    print(
        f"all of {guesses_of(args.canaries, args.guessed)} guesses right would mean an epsilon of {most:.3f}",
        flush=True,
    )
    if most <= args.epsilon:
        parser.error(
            f"no result could be above --epsilon {args.epsilon:g}: give more --canaries, or a larger --guessed"
        )
    print(f"{'server':20} {'stated epsilon':>15} {'guesses':>8} {'right':>6} {'epsilon is at least':>20}", flush=True)
    for name, forget in (("adds its noise", False), ("forgets its noise", True)):
        with tempfile.TemporaryDirectory() as folder:
            found = audit(
                args.epsilon, args.canaries, args.rounds, args.seed, forget, Path(folder) / "run", args.guessed
            )
        print(f"{name:20} {found[0]:>15.3f} {found[1]:>8} {found[2]:>6} {found[3]:>20.3f}", flush=True)


if __name__ == "__main__":
    main()
