"""A run on three raylets of this machine in which workers and nodes are killed, beside the same run in one process.

    python ray_life.py METHOD SEED FOLDER
    python ray_life.py --join FOLDER        a node joins while a run goes on

Six kills, one in every second round, at a random moment: workers, a busy worker, nodes, a node that is still starting.
Prints one line of JSON: the checksums of both runs, whether scores and tasks agree, what was killed, who was left.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64}
MARK, FOLDER = f"ray_life {os.getpid()}", tempfile.mkdtemp(prefix="ray-life-", dir="/tmp")
os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "POTLUCK_RAY_FAMILY": MARK}
# A Cluster notes its address there, and makes no folder for it: where Ray has never run there is none.
Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray").mkdir(exist_ok=True)

from ray._private import ray_constants  # noqa: E402

ray_constants.ENABLE_RAY_CLUSTER = False  # listen on loopback alone

from ray.cluster_utils import Cluster  # noqa: E402

from potluck.engines.cluster import disconnect, guardian  # noqa: E402
from potluck.methods import METHODS  # noqa: E402
from potluck.run import run  # noqa: E402
from potluck.run.contract import MethodCase, read_ledger, read_lines  # noqa: E402
from potluck.run.watch import Silent  # noqa: E402

HEAD = {"num_cpus": 1, "include_dashboard": False, "temp_dir": FOLDER}
KILLS = ("worker", "busy worker", "node", "worker", "starting node", "node")
CHANGES = {
    "rounds": 2 * len(KILLS),
    "local": {"lr": 0.1, "epochs": 12, "batch": 8},
    "score": {"every": 6, "clients": 3},
}


class Killer(Silent):
    """Kills something in every second round; it hears when a round begins."""

    def __init__(self, cluster, seed):
        self.cluster, self.random, self.done, self.threads = cluster, random.Random(seed), [], []

    def round(self, done, scores, totals):
        if done % 2:  # one kill after the other, however fast rounds are
            for thread in self.threads:
                thread.join()
        if len(self.cluster.worker_nodes) < 2:  # Ray adds nodes in the main thread alone
            self.cluster.add_node(num_cpus=1)
        if done % 2 and done // 2 < len(KILLS):
            self.begin_kill(KILLS[done // 2])

    def begin_kill(self, what):
        node = None
        if what == "node":
            node = self.random.choice(sorted(self.cluster.worker_nodes, key=lambda node: node.unique_id))
        elif what == "starting node":
            node = self.cluster.add_node(num_cpus=1, wait=False)
        self.threads.append(threading.Thread(target=self.kill, args=(what, node, self.random.uniform(0, 0.6))))
        self.threads[-1].start()

    def kill(self, what, node, pause):
        time.sleep(pause)
        if node is not None:
            self.cluster.remove_node(node, allow_graceful=False)
        elif found := wait_for_workers(busy=what.startswith("busy")):
            os.kill(self.random.choice(found), signal.SIGKILL)
        else:
            return
        self.done.append(what)


def workers(busy=False):
    """The processes of our actors; the busy ones are those that compute right now."""
    found = {}
    for pid in guardian.family(MARK, FOLDER):
        with suppress(OSError):
            if b"ray::ClusterWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    running = [pid for pid, state in found.items() if state == "R"]
    return running if busy and running else list(found)


def wait_for_workers(busy, patience=20.0):
    """Workers may all be starting at this moment: those that are there within the patience."""
    end = time.monotonic() + patience
    while not (found := workers(busy)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def tasks(result):
    return [line for line in read_ledger(result) if line["event"] == "task"]


def main(name, seed, folder):
    case = MethodCase(METHODS[name])
    serial = case.run(folder / "serial", **CHANGES)
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    killer = Killer(cluster, seed)
    plain = case.plain(**CHANGES, run={"engine": "ray", "address": cluster.address})
    found = run(plain, folder / "ray", method=case.make({}, plain["local"]), watch=killer)
    for thread in killer.threads:
        thread.join()
    disconnect()
    cluster.shutdown()
    end = time.monotonic() + 10
    while workers() and time.monotonic() < end:
        time.sleep(0.1)
    said = {
        "weights": [serial.weights_sha256, found.weights_sha256],
        "scores": read_lines(serial, "scores.jsonl") == read_lines(found, "scores.jsonl"),
        "tasks": tasks(serial) == tasks(found),
        "killed": killer.done,
        "left": len(workers()),
    }
    print(json.dumps(said), flush=True)
    for pid in set(guardian.family(MARK, FOLDER)) - {os.getpid()}:  # a raylet that was killed leaves its agents
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(FOLDER, ignore_errors=True)


class Host(Silent):
    """Adds a node after the second round, and counts workers after each."""

    def __init__(self, cluster):
        self.cluster, self.counts = cluster, []

    def round(self, done, scores, totals):
        self.counts.append(len(workers()))
        if done == 2:
            self.cluster.add_node(num_cpus=1)
        elif done > 2 and self.counts[-1] < 2:
            time.sleep(1.0)  # a worker takes a while to start


def join(folder):
    """A run on one node that a second one joins."""
    case = MethodCase(METHODS["fedavg"])
    changes = {**CHANGES, "rounds": 20}
    serial = case.run(folder / "serial", **changes)
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    host = Host(cluster)
    plain = case.plain(**changes, run={"engine": "ray", "address": cluster.address})
    found = run(plain, folder / "ray", method=case.make({}, plain["local"]), watch=host)
    disconnect()
    cluster.shutdown()
    print(json.dumps({"weights": [serial.weights_sha256, found.weights_sha256], "workers": host.counts}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--join":
        join(Path(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
