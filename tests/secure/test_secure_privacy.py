"""[secure] together with [privacy]: noise of devices goes under the mask, and each round is one upload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_runs import Listener, kept, killed_after, tiny

from potluck.run import resume, run

WIDTHS = [{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def both(on=True, privacy=(), **changes):
    told = {
        "cohort": 8,
        "data": {"clients": 8},
        "tier": WIDTHS,
        "method": {"name": "heterofl", "label_mask": False},
        "secure": {"enabled": on, "clip": 1000.0},
        "privacy": {"clip": 1.0, "epsilon": 4.0, **dict(privacy)},
    }
    return tiny(**{**told, **changes})


def model(folder):
    return kept(Path(folder))[1]["state"]["model"].arrays


def ledger(folder, event):
    found = (json.loads(line) for line in Path(folder, "ledger.jsonl").read_text().splitlines())
    return [line for line in found if line["event"] == event]


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_noise_of_devices_goes_under_the_mask_and_epsilon_is_that_of_the_plain_run(engine):
    """The same noise in both runs, so models differ by rounding alone. Three rounds are three uploads."""
    plain = run(both(False), "plain")
    masked = run(both(run={"engine": engine, "workers": 2}), "masked")
    assert masked.privacy == plain.privacy
    assert masked.privacy["uploads"] == 3
    assert masked.privacy["epsilon"] == pytest.approx(4.0)
    far = model("plain")
    for name, tensor in model("masked").items():
        assert torch.allclose(tensor, far[name], atol=1e-4)
    assert {line["outcome"] for line in ledger("masked", "task")} == {"accepted"}
    assert len(ledger("masked", "charge")) == len(ledger("plain", "charge")) == 24


def test_a_client_that_is_lost_before_it_uploads_is_not_charged(tmp_path):
    lossy = both(fleet={"dropout": 0.4}, privacy={"epsilon": None, "noise": 1.0})
    found = run(lossy, "run")
    sent: dict[str, int] = {}
    for line in ledger("run", "task"):
        if line["verb"] == "train" and line["outcome"] == "accepted":
            sent[line["client"]] = sent.get(line["client"], 0) + 1
    assert found.privacy["uploads"] == max(sent.values())
    verbs = {line["verb"] for line in ledger("run", "task") if line["outcome"] == "absent"}
    assert "secure keys" in verbs


def test_a_kill_in_a_run_with_both_changes_neither_weights_nor_epsilon():
    want = run(both(), "whole")
    killed_after(1, both(), "killed")
    found = resume("killed")
    assert found.weights_sha256 == want.weights_sha256
    assert found.privacy["epsilon"] >= want.privacy["epsilon"]


def test_noise_that_secure_clip_would_cut_away_is_warned_of():
    """Noise of 50 clips on a thousand entries or so is far longer than 1000."""
    watch = Listener()
    run(both(privacy={"epsilon": None, "noise": 50.0}, rounds=1), "run", watch=watch)
    (warning,) = [text for text in watch.warnings if "secure.clip" in text]
    assert "Set secure.clip to" in warning
    watch = Listener()
    run(both(rounds=1), "other", watch=watch)
    assert not [text for text in watch.warnings if "secure.clip" in text]
