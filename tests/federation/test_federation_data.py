"""Federations of texts and of numbers to regress on: nodes with npz files of tokens, of next tokens, of tags."""

import numpy as np
import pytest
from small_nodes import NAMES, Quiet, identity, run_in_process

from potluck.federation.node import Node, NodeOptions
from potluck.run import config

BERT = {"name": "bert", "hidden": 8, "depth": 1, "heads": 2, "ffn": 16, "positions": 16}
TRANSFORMER = {"name": "transformer", "hidden": 8, "depth": 1, "heads": 2}
TOKENS = np.random.default_rng(0).integers(0, 30, (40, 6))


def run(tmp_path, x, y, model, **nodes):
    plain = {
        "rounds": 1,
        "data": {"name": "npz"},
        "model": model,
        "tier": [{"name": "all"}],
        "method": {"name": "fedavg"},
        "local": {"epochs": 1, "batch": 8},
        "nodes": {"shape": list(x.shape[1:]), "floor": 1, "patience": 5, **nodes},
    }
    made = {}
    for name in NAMES[:2]:
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        made[name] = Node(identity(name), tmp_path / name, NodeOptions(tmp_path / f"{name}.npz", tier="all"), Quiet())
    return run_in_process(config.experiment(plain), made, tmp_path / "run")


@pytest.mark.parametrize(
    ("x", "y", "model", "nodes", "metric"),
    [
        (TOKENS, TOKENS[:, 0] % 3, BERT, {"classes": 3, "tokens": 50}, "accuracy"),
        (TOKENS, np.roll(TOKENS, -1, 1), TRANSFORMER, {"classes": 50, "labels": "tokens"}, "accuracy"),
        (
            np.random.default_rng(0).random((40, 4), np.float32),
            np.linspace(0, 1, 40, dtype=np.float32),
            {"name": "mlp", "hidden": 4, "depth": 1},
            {"classes": 0},
            None,
        ),
    ],
    ids=["texts", "next tokens", "regression"],
)
def test_nodes_train_and_score_on_their_arrays(tmp_path, x, y, model, nodes, metric):
    result = run(tmp_path, x, y, model, **nodes)
    assert result.rounds == 1
    assert result.scores["clients"]["count"] == 2
    if metric:
        assert result.scores["metric"] == metric
