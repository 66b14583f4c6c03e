"""What LotteryFL, Hermes, TailorFL, FedMask and FedSkel have in common: clients keep masks and models."""

import json
import re

import pytest
import torch
from masked_rounds import bits
from tiny_runs import killed_after

from potluck.ledger import Memories
from potluck.methods import METHODS, FedMask, FedSkel, Hermes, LotteryFL, TailorFL
from potluck.methods.bases.unit_importance import MaskedGradients
from potluck.run import experiment, resume, run

MASKED = ["lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel"]


def test_gradients_reach_only_the_entries_of_the_masks():
    edited = MaskedGradients({"w": bits(1, 0)})({"w": torch.ones(2), "b": torch.ones(1)}, {})
    assert (edited["w"].tolist(), edited["b"].tolist()) == ([1, 0], [1])


@pytest.mark.parametrize(
    ("method", "setting", "message"),
    [
        (LotteryFL, {"prune": 0.0}, "method.prune = 0.0 must be above 0 and at most 1"),
        (LotteryFL, {"keep": 1.5}, "method.keep = 1.5 must be above 0 and at most 1"),
        (Hermes, {"keep": 0.0}, "method.keep = 0.0 must be above 0 and at most 1"),
        (TailorFL, {"tuning": -1}, "method.tuning = -1 is below 0"),
        (FedMask, {"last": 0}, "method.last = 0 is below 1"),
        (FedSkel, {"cut": 1.0}, "method.cut = 1.0 must be at least 0 and below 1"),
        (FedSkel, {"period": 0}, "method.period = 0 is below 1"),
    ],
)
def test_settings_out_of_range_are_refused(method, setting, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        method(**setting)


def plain(name, **changes):
    base = {
        "rounds": 6,
        "cohort": 4,
        "data": {"clients": 6, "partition": "labels", "labels": 2},
        "model": {"name": "cnn", "width": 8, "depth": 1},
        "tier": [{"name": "half", "width": 0.5}, {"name": "whole", "width": 1.0}],
        "method": {"name": name},
        "local": {"lr": 0.1, "epochs": 3, "batch": 8},
        "score": {"every": 3, "clients": 6},
        "run": {"engine": "serial"},
    }
    return {**base, **changes}


@pytest.mark.parametrize("name", MASKED)
def test_clients_score_their_own_models_with_batch_norm_too(name, tmp_path):
    result = run(experiment(plain(name)), tmp_path / "run")
    tasks = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    assert {line["outcome"] for line in tasks if line["event"] == "task"} == {"accepted"}
    last = json.loads((result.folder / "scores.jsonl").read_text().splitlines()[-1])
    assert last["global"] is None
    assert last["clients"]["count"] == 6
    if name != "fedmask":  # which needs more than six rounds to choose among random weights
        assert last["clients"]["mean"] > 0.7


def remembered(folder):
    found = Memories(folder / "memory")
    return {f"c{n}": found.read(f"c{n}") for n in range(6)}


@pytest.mark.parametrize("name", MASKED)
def test_client_memories_survive_a_kill_bit_for_bit(name, tmp_path):
    settings = plain(name, rounds=4, model={"name": "mlp", "hidden": 4}, local={"steps": 3})
    whole = run(experiment(settings), tmp_path / "whole")
    killed_after(2, experiment(settings), tmp_path / "killed")
    before = remembered(tmp_path / "killed")
    assert resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256
    assert remembered(tmp_path / "killed") == remembered(tmp_path / "whole") != before


def test_every_method_with_personal_models_is_registered():
    assert [METHODS[name].__name__.lower() for name in MASKED] == MASKED
