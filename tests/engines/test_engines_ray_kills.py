"""Thirty kills on three raylets: whatever dies, a run ends with the bits of one that was never disturbed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray_token  # noqa: F401

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

LIFE = Path(__file__).with_name("ray_life.py")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrolex", "moss", "lotteryfl"])
def test_a_run_whose_workers_and_nodes_are_killed_ends_as_if_they_were_not(name, tmp_path):
    command = [sys.executable, str(LIFE), name, "0", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["weights"][0] == said["weights"][1]
    assert said["scores"]
    assert said["tasks"]
    assert said["killed"] == ["worker", "busy worker", "node", "worker", "starting node", "node"]
    assert said["left"] == 0


def test_a_node_that_joins_is_used_from_the_next_round_on(tmp_path):
    command = [sys.executable, str(LIFE), "--join", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["weights"][0] == said["weights"][1]
    assert said["workers"][0] == 1
    assert said["workers"][-1] == 2
