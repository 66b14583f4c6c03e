"""Federations so small that a test can afford many: the digits, divided among nodes of three tiers, in files."""

import hashlib
from pathlib import Path

import numpy as np

from potluck.engines.remote import InProcess
from potluck.federation.node import Node, NodeOptions
from potluck.federation.server import prepare, serve
from potluck.run import config

NAMES = ("clinic-a", "clinic-b", "clinic-c")
TIERS = ("small", "medium", "large")


def identity(name):
    """The id of a node in tests without keys."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def settings(method="heterofl", **changes):
    """Settings of three tiers; a section given as a mapping is merged into the small one."""
    plain = {
        "name": "small",
        "rounds": 2,
        "data": {"name": "npz", "test": 0.2, "validation": 0.1},
        "model": {"name": "mlp", "hidden": 16, "depth": 3},
        "tier": [{"name": name, "width": width} for name, width in zip(TIERS, (0.25, 0.5, 1.0), strict=True)],
        "method": method if isinstance(method, dict) else {"name": method},
        "local": {"epochs": 1, "batch": 16, "lr": 0.1},
        "nodes": {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 5},
        "run": {"retries": 0},
    }
    for name, value in changes.items():
        merged = isinstance(value, dict) and isinstance(plain.get(name), dict)
        plain[name] = {**plain[name], **value} if merged else value
    return config.experiment(plain)


def write_digits(folder, parts=3, rows=90):
    """Each node's own file, a file of public rows, and the server's test rows."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = (found.images / 16).astype(np.float32)[:, None], found.target.astype(np.int64)
    files = []
    for number in range(parts):
        at = slice(number * rows, (number + 1) * rows)
        files.append(folder / f"part-{number}.npz")
        np.savez(files[-1], x=x[at], y=y[at])
    np.savez(folder / "public.npz", x=x[1500:1560], y=y[1500:1560])
    np.savez(folder / "test.npz", x=x[1600:], y=y[1600:])
    return files


class Quiet:
    """Hears what a node does."""

    def __init__(self):
        self.said, self.began = [], []

    def say(self, text):
        self.said.append(text)

    def measured(self, found, tier):
        self.found = (found, tier)

    def begins(self, task):
        self.began.append(task)

    def ends(self, task, result, sent):
        pass


def make_nodes(folder, names=NAMES, tiers=TIERS, public=False):
    """Nodes with a file each; their folders are kept if they exist."""
    files = write_digits(folder, len(names))
    made = {}
    for name, tier, file in zip(names, tiers, files, strict=True):
        options = NodeOptions(file, folder / "public.npz" if public else None, tier)
        made[name] = Node(identity(name), folder / name, options, Quiet())
    return made


class Heard:
    """A progress listener that keeps what it hears."""

    def __init__(self):
        self.warnings, self.rounds, self.seen = [], [], []

    def round(self, done, scores, totals):
        self.rounds.append((done, scores))

    def warn(self, text):
        self.warnings.append(text)

    def nodes(self, nodes, waiting):
        self.seen.append((nodes, waiting))


def run_in_process(experiment, nodes, out, transport=None, watch=None):
    """Runs a federation whose nodes are in this process."""
    names = {identity(name): name for name in nodes}
    made = transport or InProcess({identity(name): node.respond for name, node in nodes.items()})
    return serve(prepare(experiment, "test"), lambda spool: made, lambda: names, Path(out), watch)
