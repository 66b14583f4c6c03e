"""Rounds a second on Ray beside the pool, a bare PyTorch loop and Flower's own Ray simulation, in one interleaved run.

    python benchmarks/cluster.py [--workloads W1,W4] [--systems bare,pool2,ray2] [--rounds 10] [--reps 3]

ray2 is engine `ray` with two workers on a cluster of one raylet, which the run starts itself. ray2x2 has two workers
over two raylets on this machine, which the run joins as it would join a cluster of two machines. pool2 and flower2 have
two workers too. Measured is what benchmarks/rounds.py measures: a round of a whole run, with its checkpoint on disk,
without imports, data, workers and the first round ("start", which includes the start of Ray). CPU seconds and memory
are those of the whole process tree, and all processes of Ray belong to it. Between two raylets of one machine there is
no network, so the figures say what Ray costs, not what a slow network costs. All of Ray listens on loopback alone and
asks for a token.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile

from peers.meter import Measured
from peers.task import WORKS, Work
from rounds import arguments, pythons, ratio, rep

COUNTS = (1, 2, 4)
SCRIPTS: dict[str, tuple[str, ...]] = {
    "bare": ("bare.py",),
    **{f"pool{count}": ("ours.py", f"pool{count}") for count in COUNTS},
    **{f"ray{count}": ("ours.py", f"ray{count}") for count in COUNTS},
    **{f"ray{count}x2": ("ours.py", f"ray{count}x2") for count in COUNTS},
    **{f"flower{count}": ("with_flower.py", str(count)) for count in COUNTS},
}


def alone(folder: str) -> dict[str, str]:
    """The environment in which Ray keeps to itself: loopback, a token, a folder for its logs, no usage statistics."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray listens on all addresses, even if it is told 127.0.0.1
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def table(key: str, work: Work, found: dict[str, list[Measured]], rounds: int, reps: int) -> None:
    print(f"\n{key} {work.title}: {work.clients:,} clients x {work.samples}, cohort {work.cohort}, batch {work.batch}")
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"a round, mean of {rounds}, median of {reps} interleaved; {machine}")
    heads = ("rounds/s", "wall s", "CPU s", "wall/bare", "CPU/bare", "wall/pool", "peak MB", "start s")
    print(f"{'system':<9}" + "".join(f"{head:>10}" for head in heads))
    for name, all_ in found.items():
        if all_:
            wall, cpu, peak, start = (
                statistics.median(getattr(one, column) for one in all_) for column in ("wall", "cpu", "peak", "start")
            )
            bare, pool = found.get("bare", []), found.get(f"pool{workers(name)}", [])
            ratios = (ratio(all_, bare, "wall"), ratio(all_, bare, "cpu"), ratio(all_, pool, "wall"))
            cells = (f"{1 / wall:.3g}", f"{wall:.3f}", f"{cpu:.3f}", *ratios, f"{peak:.0f}", f"{start:.1f}")
            print(f"{name:<9}" + "".join(f"{cell:>10}" for cell in cells), flush=True)


def workers(name: str) -> str:
    """The number of workers that a system's name says."""
    return name.lstrip("abcdefghijklmnopqrstuvwxyz").partition("x")[0]


def main() -> None:
    told = arguments(__doc__, ["W1", "W2", "W4"], SCRIPTS, "W1: 5, W2: 2, W4: 20")
    ready = pythons(told.systems)
    for key in told.workloads:
        work = WORKS[key]
        rounds = told.rounds or work.rounds
        able = [name for name in ready if not (work.widths and name.startswith("flower"))]
        found: dict[str, list[Measured]] = {name: [] for name in able}
        for _ in range(told.reps):
            for name in able:
                with tempfile.TemporaryDirectory(prefix="ray-") as folder:
                    one = rep(key, name, SCRIPTS[name], ready[name], rounds, told.limit, alone(folder))
                found[name] += [one] if one else []
        table(key, work, found, rounds, told.reps)


if __name__ == "__main__":
    main()
