"""Potluck: a run as a user starts it, with its ledger and a checkpoint after every round, on a named engine.

"stacked" is the serial engine with forty clients trained in one go; "tf32" and "bf16" are graphs with faster
arithmetic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from task import CLASSES, LR, Work, asked, data, mark, network

from potluck.data import from_arrays
from potluck.models import ModelZoo, make_spec
from potluck.run import run
from potluck.run.session import Silent

ENGINES: dict[str, dict[str, Any]] = {
    "stacked": {"engine": "serial", "stack": 40},
    "tf32": {"engine": "graphs", "precision": "tf32", "channels_last": True},
    "bf16": {"engine": "graphs", "precision": "bf16", "channels_last": True},
}


class Marks(Silent):
    """A watch that says when a round is over."""

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        mark()


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
        "run": {**ENGINES.get(engine, {"engine": engine}), "hardware": work.hardware},
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
    with tempfile.TemporaryDirectory() as folder:
        run(settings(work, rounds, engine), Path(folder) / "run", source=source, watch=Marks())


if __name__ == "__main__":
    main()
