"""A federation that goes on for long: whether memory, file handles, threads or files grow, at the server and at nodes.

    python benchmarks/soak.py [--nodes 30] [--rounds 100] [--transport grpc]

Each node is a process. Ten lines: megabytes (proportional set size), file handles and threads of the server and of the
largest node, each with the processes that it started, bytes of the run folder and of the largest node's folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from federation import make

EXPERIMENT = """\
rounds = {rounds}
cohort = {nodes}
[model]
name = "mlp"
hidden = 64
[[tier]]
name = "small"
width = 0.5
[[tier]]
name = "large"
[method]
name = "{method}"
[local]
epochs = 1
batch = 32
lr = 0.002
[data]
name = "npz"
[score]
every = {every}
clients = {nodes}
[nodes]
shape = [1, 28, 28]
classes = 10
grace = 120
"""


def taken(pid: int) -> tuple[float, int, int]:
    """Megabytes, file handles and threads of a process and of all that it started: over Flower, also its SuperLink."""
    folder = Path("/proc") / str(pid)
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        size = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        handles, threads = len(list((folder / "fd").iterdir())), list((folder / "task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return 0.0, 0, 0
    all_of = [(size, handles, len(threads)), *map(taken, children)]
    return sum(each[0] for each in all_of), sum(each[1] for each in all_of), sum(each[2] for each in all_of)


def bytes_in(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--transport", default="grpc")
    parser.add_argument("--method", default="heterofl")
    told = parser.parse_args()
    more = [] if told.transport == "grpc" else ["--transport", told.transport]
    with tempfile.TemporaryDirectory(prefix="potluck-soak-") as made, ExitStack() as stack:
        folder = Path(made)
        files = make(folder, told.nodes)
        text = EXPERIMENT.format(
            rounds=told.rounds, nodes=told.nodes, method=told.method, every=max(1, told.rounds // 10)
        )
        (folder / "exp.toml").write_text(text)
        ours = [sys.executable, "-m", "potluck"]
        run = folder / "run"
        server = subprocess.Popen(
            [*ours, "server", str(folder / "exp.toml"), "--kit", str(folder / "kits/server"), "--out", str(run), *more],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(server.kill)
        nodes = {}
        for number, (name, data) in enumerate(files.items()):
            tier = ("small", "large")[number % 2]
            given = ["--kit", str(folder / "kits" / name), "--data", str(data), "--tier", tier, "--yes", *more]
            nodes[name] = subprocess.Popen(
                [*ours, "join", *given], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            stack.callback(nodes[name].terminate)
        print(f"{'round':>5} {'seconds':>8} {'server MB':>10} {'handles':>8} {'threads':>8} {'run kB':>8} "
              f"{'node MB':>8} {'handles':>8} {'threads':>8} {'node kB':>8}")  # fmt: skip
        started = time.perf_counter()
        assert server.stderr is not None
        for line in server.stderr:
            if " round " not in line or "/" not in line:
                if "here" not in line and "connected" not in line:
                    print(line.rstrip())
                continue
            own, each = taken(server.pid), [taken(node.pid) for node in nodes.values()]
            most = [max(values) for values in zip(*each, strict=True)]
            kept = max(bytes_in(folder / "kits" / name) for name in nodes)
            done = line.split(" round ")[1].split("/")[0]
            print(f"{done:>5} {time.perf_counter() - started:>8.1f} {own[0]:>10.1f} {own[1]:>8} {own[2]:>8} "
                  f"{bytes_in(run) / 1000:>8.0f} {most[0]:>8.1f} {most[1]:>8} {most[2]:>8} {kept / 1000:>8.0f}",
                  flush=True)  # fmt: skip
        print(f"exit code {server.wait()}")


if __name__ == "__main__":
    main()
