"""Real processes with all trackers at once, killed, interrupted and side by side."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import TEXT, Listener, tiny
from track_reading import (
    as_float32,
    mlflow_runs,
    only,
    read_mlflow,
    read_tensorboard,
    read_wandb,
    wandb_processes,
    written_scores,
)

from potluck.run import compare, resume, run

pytestmark = pytest.mark.slow

TRACK = '\n[track]\ntensorboard = "tb"\nmlflow = "file:./mlruns"\nwandb = "tiny"\n'
METHOD = '''\
import time
from dataclasses import dataclass
from pathlib import Path

from potluck.methods import FedAvg


@dataclass(frozen=True)
class Held(FedAvg):
    """FedAvg that waits before its fourth round while a file `hold` is there."""

    def round(self, state, now):
        while now.index == 3 and Path("hold").exists():
            Path("held").touch()
            time.sleep(0.002)
        return super().round(state, now)
'''

TELLS_WHO_IS_CALLED = """\
import sys
from pathlib import Path

called = []


def hook(event, arguments):
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple)):
        called.append(arguments[-4:])


sys.addaudithook(hook)
from potluck.run import read_experiment, run
from track_reading import wandb_processes


class Looks:
    def round(self, done, scores, totals):
        for pid in wandb_processes():
            options.append(Path(f"/proc/{pid}/cmdline").read_text().split("\\0"))


options = []
run(read_experiment(Path("tiny.toml")), "run", watch=Looks())
print(called, len(options), all("--no-observability" in one for one in options))
"""

KILLS_WANDB = """\
import os
import signal
from pathlib import Path

from potluck.run import read_experiment, run
from track_reading import wandb_processes


class Kills:
    warnings = ()

    def round(self, done, scores, totals):
        if done == 1:
            (pid,) = wandb_processes()
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def warn(self, text):
        self.warnings += (text[:31],)


watch = Kills()
result = run(read_experiment(Path("tiny.toml")), "run", watch=watch)
print(result.rounds, watch.warnings)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "waiting", raising=False)
    (tmp_path / "waiting.py").write_text(METHOD)
    text = TEXT.replace('name = "fedavg"', 'name = "waiting:Held"').replace("rounds = 3", "rounds = 6")
    (tmp_path / "tiny.toml").write_text(
        text.replace('engine = "serial"', 'engine = "serial"\ncheckpoint_every = 2') + TRACK
    )
    return tmp_path


def until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def held(place):
    """A run in a process of its own that has done three rounds, of which two are saved, and waits."""
    (place / "hold").touch()
    command = [sys.executable, "-B", "-m", "potluck", "run", "tiny.toml", "--out", "run"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: (place / "held").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run without trackers, never stopped."""
    return run(tiny(rounds=6), tmp_path_factory.mktemp("whole") / "run")


def all_hold_the_scores(folder, runs=1):
    wanted = written_scores(folder)
    assert only(read_tensorboard(Path("tb") / Path(folder).name), costs=False) == as_float32(wanted)
    assert only(read_wandb(folder), costs=False) == wanted
    found = mlflow_runs("file:./mlruns")
    assert len(found) == runs
    (one,) = (each for each in found if each.info.run_name == Path(folder).name)
    assert only(read_mlflow("file:./mlruns", one.info.run_id), costs=False) == wanted
    return True


def test_a_run_killed_in_the_middle_and_resumed_is_in_all_trackers_as_scores_jsonl_has_it(held, place, whole):
    os.kill(held.pid, signal.SIGKILL)
    held.communicate(timeout=60)
    until(lambda: not wandb_processes())
    (place / "hold").unlink()
    watch = Listener()
    result = resume("run", watch=watch)
    assert watch.warnings == ["resumed at round 2"]
    assert result.weights_sha256 == whole.weights_sha256
    assert written_scores("run") == written_scores(whole.folder)
    assert all_hold_the_scores("run")


def test_ctrl_c_saves_says_how_to_go_on_and_leaves_no_process(held, place, whole):
    os.killpg(held.pid, signal.SIGINT)
    out, err = held.communicate(timeout=60)
    assert (held.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "potluck: interrupted after round 3; go on with: potluck resume run"
    assert all(line.startswith("tiny: round ") for line in err.splitlines()[:-1]), err
    assert wandb_processes() == []
    assert all_hold_the_scores("run")
    (place / "hold").unlink()
    assert resume("run").weights_sha256 == whole.weights_sha256
    assert all_hold_the_scores("run")


def test_runs_side_by_side_are_tracker_runs_of_their_own_in_one_group():
    settings = tiny(track={"tensorboard": "tb", "mlflow": "file:./mlruns", "wandb": "tiny"})
    watches = {}

    def watcher(label, seed):
        return watches.setdefault(seed, Listener())

    compare(settings, Path("all"), [{"name": "fedavg"}], [0, 1], watcher, jobs=2)
    assert [watch.warnings for watch in watches.values()] == [[], []]
    assert all_hold_the_scores("all/fedavg-s0", runs=2)
    assert all_hold_the_scores("all/fedavg-s1", runs=2)
    assert {found.data.tags["group"] for found in mlflow_runs("file:./mlruns")} == {"all"}
    assert wandb_processes() == []


def script(text):
    """Runs a Python text in a process that no library can take for a test or for continuous integration."""
    silent = ("PYTEST", "CI", "GITHUB", "MLFLOW", "WANDB", "DO_NOT_TRACK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(silent)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    Path("script.py").write_text(text)
    command = [sys.executable, "-B", "script.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_no_tracker_calls_anybody():
    """Some libraries are silent only in tests and in continuous integration."""
    done = script(TELLS_WHO_IS_CALLED)
    assert (done.returncode, done.stdout) == (0, "[] 6 True\n"), done.stderr


def test_a_run_goes_on_when_the_process_of_wandb_dies_and_wandb_hears_the_rest_at_the_next_resume(whole):
    done = script(KILLS_WANDB)
    assert (done.returncode, done.stdout) == (0, "6 ('WandB failed, and is left out: ',)\n"), done.stderr
    assert done.stderr == ""
    assert wandb_processes() == []
    assert resume("run").weights_sha256 == whole.weights_sha256
    assert all_hold_the_scores("run")
