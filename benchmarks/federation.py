"""A round of a federation of real processes: Potluck's transports beside a plain HTTPS loop, in one interleaved run.

    python benchmarks/federation.py [--systems https,grpc,flower] [--nodes 3] [--rounds 5] [--epochs 1] [--reps 3]

LeNet, FedAvg, nodes as processes on this machine with mutual TLS on loopback, 600 rows of 28 x 28 each, batches of 32,
one thread. Every round trains at all nodes and scores the new model at all nodes. Out of the timing: starting
processes, and the first round. The plain loop is what one would write by hand (peers/https_loop.py): it keeps no
ledger, no checkpoints and no audit logs, checks no reply, and dies with its nodes.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from potluck.federation import FederationSettings, provision
from potluck.federation.rehearsal import free_port

LOOP = Path(__file__).parent / "peers" / "https_loop.py"
EXPERIMENT = """\
rounds = {rounds}
cohort = {nodes}
[model]
name = "lenet"
[[tier]]
name = "all"
[method]
name = "fedavg"
[local]
epochs = {epochs}
batch = 32
lr = 0.01
[data]
name = "npz"
[score]
clients = {nodes}
[nodes]
shape = [1, 28, 28]
classes = 10
"""


def make(folder: Path, nodes: int) -> dict[str, Path]:
    """Kits, and a file of random digits for each node."""
    names = [f"node-{number}" for number in range(nodes)]
    provision(FederationSettings("bench", f"127.0.0.1:{free_port()}", tuple(names)), folder / "kits")
    rng, files = np.random.default_rng(0), {}
    for name in names:
        y = rng.integers(0, 10, 600)
        x = rng.standard_normal((600, 1, 28, 28), np.float32) + y[:, None, None, None].astype(np.float32) / 5
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], x=x, y=y)
    return files


def https(folder: Path, files: dict[str, Path], rounds: int, epochs: int) -> list[float]:
    """Seconds of a round of the plain loop, on average."""
    kits = folder / "kits"
    with ExitStack() as stack:
        command = [sys.executable, LOOP, "server", kits, len(files), rounds, epochs]
        server = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        stack.callback(server.kill)
        for name, data in files.items():
            parts = [sys.executable, LOOP, "node", kits / name, data, epochs]
            stack.callback(subprocess.Popen([str(part) for part in parts]).kill)
        out, _ = server.communicate(timeout=900)
    seconds = [float(line.split()[1]) for line in out.splitlines() if line.startswith("round")]
    return [statistics.fmean(seconds[1:])]


def potluck(folder: Path, files: dict[str, Path], rounds: int, epochs: int, transport: str) -> list[float]:
    """Seconds of a round of `potluck server` and `potluck join`, on average, by what the server prints."""
    (folder / "exp.toml").write_text(EXPERIMENT.format(rounds=rounds + 1, nodes=len(files), epochs=epochs))
    ours = [sys.executable, "-m", "potluck"]
    more = [] if transport == "grpc" else ["--transport", transport]
    with ExitStack() as stack:
        out = ["--out", str(folder / f"run-{transport}")]
        kit = ["--kit", str(folder / "kits" / "server")]
        server = subprocess.Popen(
            [*ours, "server", str(folder / "exp.toml"), *kit, *out, *more], stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(server.kill)
        for name, data in files.items():
            given = ["--kit", str(folder / "kits" / name), "--data", str(data), "--yes", *more]
            node = subprocess.Popen([*ours, "join", *given], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            stack.callback(node.wait)
            stack.callback(node.terminate)
        seen: list[tuple[int, float]] = []
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r" round (\d+)/", line):
                seen.append((int(found[1]), time.perf_counter()))
        server.wait(timeout=900)
    (first, began), (last, ended) = seen[0], seen[-1]  # of fast rounds, not every one is shown
    return [(ended - began) / (last - first)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="https,grpc")
    for name, usual in (("nodes", 3), ("rounds", 5), ("epochs", 1), ("reps", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    return parser.parse_args()


def main() -> None:
    told = arguments()
    systems = told.systems.split(",")
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(told.reps):
        for name in systems:
            with tempfile.TemporaryDirectory(prefix="potluck-bench-") as made:
                folder = Path(made)
                files = make(folder, told.nodes)
                if name == "https":
                    found[name] += https(folder, files, told.rounds, told.epochs)
                else:
                    found[name] += potluck(folder, files, told.rounds, told.epochs, name)
    base = statistics.median(found[systems[0]])
    print(f"{told.nodes} nodes, {told.rounds} rounds x {told.reps}, {told.epochs} epochs; seconds a round")
    print(f"{'system':<9}{'median':>9}{'fastest':>9}{'slowest':>9}{'ratio':>8}")
    for name, seconds in found.items():
        middle = statistics.median(seconds)
        cells = (f"{middle:.3f}", f"{min(seconds):.3f}", f"{max(seconds):.3f}", f"{middle / base:.2f}")
        print(f"{name:<9}{cells[0]:>9}{cells[1]:>9}{cells[2]:>9}{cells[3]:>8}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
