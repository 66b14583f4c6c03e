"""A round of Potluck beside a bare PyTorch loop, pfl and Flower's simulation, in one interleaved run.

    python benchmarks/rounds.py [--workloads W1,W4] [--systems bare,serial,pool] [--rounds 10] [--reps 3]

Each system runs in a process of its own, with one thread per process; Potluck's pool and Flower have one worker per
core. All of them train with plain SGD for one epoch and score nothing between rounds. In the timing: the cohort's draw,
handing the model out, training, averaging, and what a system does of its own accord (Potluck: its ledger and, after
every round, a checkpoint on disk). Out of it: imports, data, workers and the first round ("start"). CPU seconds and
memory (proportional set size) are those of the whole process tree. Peers get virtual environments under build/bench.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from peers.environments import NEEDS, python_of
from peers.meter import Failed, Measured, measure
from peers.task import MARK, WORKS, Work

GPU = ("graphs", "tf32", "bf16")
CPU = [key for key, work in WORKS.items() if work.hardware == "cpu"]
PEERS = Path(__file__).parent / "peers"
SCRIPTS = {
    "bare": ("bare.py",),
    "pfl": ("with_pfl.py",),
    "flower": ("with_flower.py",),
    "serial": ("ours.py", "serial"),
    "pool": ("ours.py", "pool"),
    "stacked": ("ours.py", "stacked"),
    "graphs": ("ours.py", "graphs"),
    "tf32": ("ours.py", "tf32"),
    "bf16": ("ours.py", "bf16"),
}
ALONE = {
    "PYTHONPATH": os.pathsep.join([str(PEERS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def pythons(systems: list[str]) -> dict[str, str]:
    """The Python of each system; one that cannot be installed is left out, and says so."""
    found = {}
    for name in systems:
        try:
            peer = name.rstrip("0123456789")
            found[name] = python_of(peer) if peer in NEEDS else sys.executable
        except (subprocess.CalledProcessError, OSError) as fault:
            text = (getattr(fault, "stderr", "") or str(fault)).strip().splitlines()
            print(f"{name} is left out: it cannot be installed here ({text[-1] if text else fault})")
    return found


def rep(
    key: str, name: str, script: tuple[str, ...], python: str, rounds: int, limit: float, more: Mapping[str, str] = {}
) -> Measured | None:
    """One system on one workload; None where it failed, and says so."""
    file, *engine = script
    command = [python, str(PEERS / file), key, str(rounds + 1), *engine]
    try:
        return measure(command, rounds, MARK, {**ALONE, **more}, limit)
    except Failed as fault:
        print(f"{name} failed on {key}: {fault}")
        return None


def table(key: str, work: Work, found: dict[str, list[Measured]], rounds: int, reps: int) -> None:
    print(f"\n{key} {work.title}: {work.clients:,} clients x {work.samples}, cohort {work.cohort}, batch {work.batch}")
    print(f"a round, mean of {rounds}, median of {reps} interleaved; load {os.getloadavg()[0]:.1f}")
    print(f"{'system':<8}{'CPU s':>9}{'wall s':>9}{'CPU ratio':>11}{'wall ratio':>12}{'peak MB':>9}{'start s':>9}")
    for name, all_ in found.items():
        if all_:
            cpu, wall, peak, start = (
                statistics.median(getattr(one, column) for one in all_) for column in ("cpu", "wall", "peak", "start")
            )
            ratios = "".join(
                f"{ratio(all_, found.get('bare', []), column):>{size}}" for column, size in (("cpu", 11), ("wall", 12))
            )
            print(f"{name:<8}{cpu:>9.3f}{wall:>9.3f}{ratios}{peak:>9.0f}{start:>9.1f}", flush=True)


def ratio(ours: list[Measured], bare: list[Measured], column: str) -> str:
    """The median over repetitions of the ratio to the bare loop of the same repetition."""
    if not bare or len(bare) != len(ours):
        return "-"
    return f"{statistics.median(getattr(a, column) / getattr(b, column) for a, b in zip(ours, bare, strict=True)):.3f}"


def fits(name: str, work: Work) -> bool:
    """Whether a system can do a workload: peers know no unequal widths, and are not set up for a GPU here."""
    if work.hardware == "cuda":
        return name in ("bare", "serial", *GPU)
    return name not in GPU and not (work.widths and name in NEEDS)


def names(text: str, known: Mapping[str, object]) -> list[str]:
    """Names that were given with commas."""
    given = [name for name in text.split(",") if name]
    if odd := [name for name in given if name not in known]:
        raise argparse.ArgumentTypeError(f"'{odd[0]}' is not one of {', '.join(known)}")
    return given


def arguments(
    text: str | None, workloads: list[str], systems: Mapping[str, tuple[str, ...]], usual: str
) -> argparse.Namespace:
    """What the command line asks for; `usual` tells how many rounds are timed if it does not say."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=lambda text: names(text, WORKS), default=workloads)
    parser.add_argument("--systems", type=lambda text: names(text, systems), default=list(systems))
    parser.add_argument("--rounds", type=int, help=f"rounds that are timed ({usual})")
    parser.add_argument("--reps", type=int, default=3, help="how often every system runs (default: 3)")
    parser.add_argument("--limit", type=float, default=900, help="most seconds of one process (default: 900)")
    return parser.parse_args()


def main() -> None:
    told = arguments(__doc__, CPU, SCRIPTS, "W1: 5, W2 and W3: 2, W4: 20, W5: 5")
    ready = pythons(told.systems)
    for key in told.workloads:
        work = WORKS[key]
        rounds = told.rounds or work.rounds
        able = [name for name in ready if fits(name, work)]
        found: dict[str, list[Measured]] = {name: [] for name in able}
        for _ in range(told.reps):
            for name in able:
                one = rep(key, name, SCRIPTS[name], ready[name], rounds, told.limit)
                found[name] += [one] if one else []
        table(key, work, found, rounds, told.reps)


if __name__ == "__main__":
    main()
