"""Runs on a Ray cluster that the command starts itself: killed, interrupted, resumed, and nothing is left."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import ray_token  # noqa: F401
from cli_life import saved, until
from test_cli_kills import RUN, resumed_equal

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.xdist_group("ray")

MARK = "POTLUCK_TEST_FAMILY"


def family(mark):
    """The living processes that inherited this mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.fixture
def marked(tmp_path):
    """The environment for a command whose whole family can be found."""
    yield {**os.environ, MARK: str(tmp_path)}
    for pid in family(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def gone(tmp_path):
    """Whether the whole family ends within some seconds; an error that names who does not."""
    with suppress(TimeoutError):
        until(lambda: not family(str(tmp_path)), seconds=20)
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(str(tmp_path))]
    assert left == []
    return True


def test_kill_9_of_the_driver_leaves_nothing_and_resume_ends_with_the_same_bits(hold, place, whole, marked):
    process = hold("after 3", *RUN, "--engine", "ray", env=marked)
    assert len(family(str(place))) >= 5  # driver, raylet, gcs_server, two workers
    process.kill()
    process.communicate()
    assert gone(place)
    assert saved("run") == 3
    (place / "hold").unlink()
    assert resumed_equal(whole)


@pytest.mark.slow
def test_a_killed_run_is_resumed_on_ray_too(hold, start, place, whole, marked):
    process = hold("after 3", *RUN, "--engine", "ray", env=marked)
    process.kill()
    process.communicate()
    (place / "hold").unlink()
    process = start("resume", "run", "--engine", "ray", "--format", "json", env=marked)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["weights_sha256"] == whole.weights_sha256
    assert gone(place)


def test_ctrl_c_saves_a_run_on_ray_and_leaves_nothing(hold, place, marked):
    process = hold("after 3", *RUN, "--engine", "ray", "--set", "run.checkpoint_every=5", env=marked)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "potluck: interrupted after round 3; go on with: potluck resume run"
    assert all(line.startswith(("tiny: round ", "potluck: interrupted")) for line in err.splitlines())
    assert saved("run") == 3
    assert gone(place)


@pytest.mark.slow
def test_a_comparison_on_ray_gives_the_same_results_although_the_keeper_of_a_run_is_killed(start, place, marked):
    """Two whole runs at once; the actor that keeps one of them is killed, and its run goes on from its checkpoint."""
    command = ("compare", "tiny.toml", "--methods", "held:Held", "--seeds", "0,1", "--format", "json")
    out, _ = start(*command, "--out", "one").communicate(timeout=100)
    wanted = {run["seed"]: run["weights_sha256"] for run in json.loads(out)["runs"]}
    (place / "hold").write_text("after 3")
    process = start(*command, "--out", "two", "--engine", "ray", env=marked)
    folders = [place / f"two/held_Held_share=layerwise-s{seed}" for seed in (0, 1)]
    until(lambda: all(saved(folder) == 3 for folder in folders) or process.poll() is not None, seconds=100)
    keepers = [pid for pid in family(str(place)) if b"ray::RunKeeper" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(keepers[0], signal.SIGKILL)
    (place / "hold").unlink()
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert {run["seed"]: run["weights_sha256"] for run in json.loads(out)["runs"]} == wanted
    assert err.count("it goes on from its last checkpoint") == 1
    assert gone(place)


def test_an_address_without_a_cluster_is_one_line(start, marked):
    process = start(*RUN, "--engine", "ray", "--set", 'run.address="127.0.0.1:1"', env=marked)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (6, "")
    assert err == "potluck: no Ray cluster at run.address = '127.0.0.1:1': [Errno 111] Connection refused.\n"
