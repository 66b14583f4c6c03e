"""The transport over gRPC while the network is silent: no packets, and nobody is told. In a network of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def in_a_network_of_its_own(tmp_path, seconds):
    """What a run in a network that is silent for so long says of itself."""
    if subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("this machine does not let us make a network namespace")
    command = ["unshare", "-rn", sys.executable, HERE / "grpc_silence.py", tmp_path, str(seconds)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_silence_of_five_seconds_is_not_even_noticed(tmp_path):
    told = in_a_network_of_its_own(tmp_path, 5)
    assert told["answers"] == [["before"], ["during"], ["large", 5_000_000], ["after"]]
    assert told["asked"] == 4
    assert told["notes"] == []


@pytest.mark.slow
def test_a_silence_of_forty_seconds_is_noticed_by_both_and_nothing_is_lost(tmp_path):
    told = in_a_network_of_its_own(tmp_path, 40)
    assert told["answers"] == [["before"], ["during"], ["large", 5_000_000], ["after"]]
    assert told["asked"] == 4
    assert told["left"]
    assert told["notes"] == []
    assert any("lost" in line for line in told["lines"])
