"""Potluck: a run as a user starts it, with its ledger and a checkpoint after every round, on a named engine.

"stacked" is the serial engine with forty clients trained in one go; "tf32" and "bf16" are graphs with faster
arithmetic. "pool2" and "ray2" have two workers; "ray4x2" has four over two raylets.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from task import CLASSES, LR, Work, asked, data, mark, network

from potluck.data import from_arrays
from potluck.engines.cluster import disconnect
from potluck.models import ModelZoo, make_spec
from potluck.run import run
from potluck.run.watch import Silent

ENGINES: dict[str, dict[str, Any]] = {
    "stacked": {"engine": "serial", "stack": 40},
    "tf32": {"engine": "graphs", "precision": "tf32", "channels_last": True},
    "bf16": {"engine": "graphs", "precision": "bf16", "channels_last": True},
}


STORE = 2**30
"""Bytes of the object store of a raylet that is started here."""


class Marks(Silent):
    """A watch that says when a round is over."""

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        mark()


def engine_settings(engine: str) -> dict[str, Any]:
    """What an engine's name says about [run], but for the address of its cluster."""
    if counted := re.fullmatch(r"(pool|ray)(\d+)(?:x\d+)?", engine):
        return {"engine": counted[1], "workers": int(counted[2])}
    return dict(ENGINES.get(engine, {"engine": engine}))


@contextmanager
def cluster(engine: str) -> Iterator[dict[str, str]]:
    """The address of as many raylets as an engine's name says; they end with this. One that is alone needs none."""
    counted = re.fullmatch(r"ray(\d+)x(\d+)", engine)
    if not counted:
        yield {}
        return
    from ray.cluster_utils import Cluster

    workers, nodes = map(int, counted.groups())
    raylets = Cluster()
    for _ in range(nodes):
        raylets.add_node(num_cpus=-(-workers // nodes), object_store_memory=STORE, include_dashboard=False)
    try:
        yield {"address": raylets.address}
    finally:
        raylets.shutdown()


def settings(work: Work, rounds: int, engine: str) -> dict[str, Any]:
    """The workload as an experiment. It scores ten rows before the first and after the last round."""
    found: dict[str, Any] = {
        "rounds": rounds,
        "cohort": work.cohort,
        "data": {"clients": work.clients, "samples": work.samples, "validation": 0.0},
        "model": {"name": work.net},
        "local": {"lr": LR, "epochs": 1, "batch": work.batch},
        "score": {"every": 10**6, "clients": 0},
        "method": {"name": "fedavg", "bn_eval": "batch"},
        "run": {**engine_settings(engine), "hardware": work.hardware},
    }
    if work.widths:
        # Label masks and scalers are these methods' own; the bare loop has neither.
        name = "fedrolex" if work.hardware == "cuda" else "heterofl"
        found["method"] = {"name": name, "label_mask": False, "scaler": False, "bn_eval": "batch"}
        found["tier"] = [{"name": f"width {width}", "width": float(width)} for width in work.widths]
    return found


def check(work: Work) -> None:
    """The networks that others are given have tensors of the same shapes as ours."""
    zoo = ModelZoo(make_spec(work.net, input=work.shape, classes=CLASSES))
    ours = sorted(shape for shape, _ in zoo.shapes(zoo.full).values())
    theirs = sorted(tuple(tensor.shape) for tensor in network(work).state_dict().values())
    assert ours == theirs, f"{work.net} differs between Potluck and task.py"


def main() -> None:
    work, rounds, engine = asked()
    check(work)
    x, y = data(work)
    test = torch.rand(CLASSES, *work.shape), torch.arange(CLASSES)
    source = from_arrays(x.numpy(), y.numpy(), x_test=test[0].numpy(), y_test=test[1].numpy())
    told = settings(work, rounds, engine)
    with tempfile.TemporaryDirectory() as folder, cluster(engine) as address:
        run({**told, "run": told["run"] | address}, Path(folder) / "run", source=source, watch=Marks())
        disconnect()


if __name__ == "__main__":
    main()
