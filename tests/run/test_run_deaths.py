"""Workers that die or hang in the middle of a run: the server's own work and the scores do not suffer."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_runs import Listener, events, kept, scores, tiny

from potluck.core import ResourceError, SettingsError, on_client
from potluck.methods import FedAvg, FedDF
from potluck.run import assemble, resume, run

POOL = {"engine": "pool", "workers": 2}


def mortal(rounds=2, run=POOL):
    return tiny(rounds=rounds, data={"clients": 8, "public": 40}, method={"name": "feddf"}, run=run)


def die(folder, place):
    """Kills this process at a place that a file names: as many times as the file has letters."""
    file = Path(folder) / place
    if file.exists() and (left := file.read_text()):
        file.write_text(left[1:])
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Mortal(FedDF):
    """FedDF whose worker dies in the task that a file in `folder` names: verb, round and who does it."""

    folder: str = ""

    @on_client
    def answer(self, task, device):
        die(self.folder, f"answer {task.round} {task.to}")
        return super().answer(task, device)

    @on_client
    def learn(self, task, device):
        die(self.folder, f"learn {task.round} {task.to}")
        return (yield from super().learn(task, device))

    @on_client
    def score(self, task, device):
        die(self.folder, f"score {task.round} {task.to}")
        return super().score(task, device)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return run(mortal(), tmp_path_factory.mktemp("healthy") / "run")


@pytest.fixture
def method(tmp_path):
    (tmp_path / "deaths").mkdir()
    return Mortal(local=mortal().local, folder=str(tmp_path / "deaths"))


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize(
    "place", ["answer 1 server", "learn 1 server", "score 1 server", "score 2 server", "score 2 c0"]
)
def test_a_worker_that_dies_in_the_servers_work_or_in_scoring_changes_no_bit(place, method, tmp_path, healthy):
    scored = {line["clients"]["ids"][0] for line in scores(healthy.folder)}
    place = place.replace("c0", min(scored))
    (tmp_path / "deaths" / place).write_text("x")
    heard = Listener()
    found = run(mortal(), tmp_path / "run", method=method, watch=heard)
    assert (tmp_path / "deaths" / place).read_text() == ""  # it did die
    assert found.weights_sha256 == healthy.weights_sha256
    assert scores(found.folder) == scores(healthy.folder)
    assert heard.warnings == []
    assert {event["outcome"] for event in events(found.folder, "task")} == {"accepted"}


@pytest.mark.parametrize("place", ["learn 1 server", "score 1 server"])
def test_a_server_whose_work_never_succeeds_stops_with_6_and_can_be_resumed(place, method, tmp_path, healthy):
    (tmp_path / "deaths" / place).write_text("x" * 9)
    with pytest.raises(
        ResourceError, match=rf"^the server's own '{place[:5]}' .*failed 3 times: unreachable"
    ) as caught:
        run(mortal(), tmp_path / "run", method=method)
    assert caught.value.exit_code == 6
    assert manifest(tmp_path / "run")["status"] == "failed"
    assert kept(tmp_path / "run")[0] == 1  # the last round that was committed
    os.unlink(tmp_path / "deaths" / place)
    found = resume(tmp_path / "run", method=method)
    assert found.weights_sha256 == healthy.weights_sha256
    assert scores(found.folder) == scores(healthy.folder)


def test_a_run_whose_last_scores_are_missing_is_not_done_until_resume_has_computed_them(method, tmp_path, healthy):
    (tmp_path / "deaths" / "score 2 server").write_text("x" * 9)
    with pytest.raises(ResourceError, match="failed 3 times"):
        run(mortal(), tmp_path / "run", method=method)
    assert manifest(tmp_path / "run")["status"] == "failed"
    assert kept(tmp_path / "run")[0] == 2
    os.unlink(tmp_path / "deaths" / "score 2 server")
    found = resume(tmp_path / "run", method=method)
    assert found.scores == healthy.scores
    assert scores(found.folder) == scores(healthy.folder)
    assert manifest(tmp_path / "run")["status"] == "done"


@dataclass(frozen=True)
class Unscored(FedAvg):
    """FedAvg that cannot be scored by those whom the file `unscored` names, from round 1 on."""

    folder: str = ""

    @on_client
    def score(self, task, device):
        file = Path(self.folder) / "unscored"
        if task.round and file.exists() and task.to in file.read_text().split():
            raise OSError("the scales are broken")
        return super().score(task, device)


def test_a_score_that_fails_with_an_error_is_missing_in_the_middle_but_not_at_the_end(tmp_path):
    method = Unscored(local=tiny().local, folder=str(tmp_path))
    (tmp_path / "unscored").write_text("server")
    with pytest.raises(ResourceError) as caught:
        run(tiny(rounds=2), tmp_path / "run", method=method)
    assert str(caught.value) == (
        "the scores after round 2, the last one, cannot be computed: server: OSError: the scales are broken. "
        "All rounds are saved: potluck resume computes them again."
    )
    assert [line["global"] is None for line in scores(tmp_path / "run")] == [False, True]
    os.unlink(tmp_path / "unscored")
    found = resume(tmp_path / "run", method=method)
    assert found.rounds == 2
    assert found.accuracy is not None
    assert manifest(tmp_path / "run")["status"] == "done"


def test_one_client_that_cannot_be_scored_does_not_end_a_run(tmp_path):
    chosen = scores(run(tiny(rounds=0), tmp_path / "fresh").folder)[0]["clients"]["ids"][0]
    (tmp_path / "unscored").write_text(chosen)
    found = run(tiny(rounds=1), tmp_path / "run", method=Unscored(local=tiny().local, folder=str(tmp_path)))
    assert chosen not in found.scores["clients"]["ids"]


# Deadlines


@dataclass(frozen=True)
class Sleepy(FedAvg):
    """FedAvg whose client c5 never ends its first round."""

    @on_client
    def train(self, task, device):
        if task.to == "c5" and task.round == 0:
            signal.pause()
        return (yield from super().train(task, device))


def test_a_client_that_hangs_is_absent_for_the_round_and_the_run_goes_on(tmp_path):
    method = Sleepy(local=tiny().local)
    found = run(
        tiny(rounds=2, method={"name": "fedavg"}, run={**POOL, "deadline": 1.0}), tmp_path / "run", method=method
    )
    assert found.rounds == 2
    absent = [event for event in events(found.folder, "task") if event["outcome"] == "absent"]
    assert [(event["round"], event["client"], event["reason"]) for event in absent] == [
        (1, "c5", "failed: no answer within 1 s")
    ]


@pytest.mark.parametrize("engine", ["serial", "wire"])
def test_a_deadline_is_refused_where_nothing_can_end_a_client(engine):
    with pytest.raises(SettingsError) as caught:
        assemble(tiny(run={"engine": engine, "deadline": 5.0}))
    assert str(caught.value) == (
        f'run.deadline = 5 needs run.engine = "pool" or "ray": \'{engine}\' runs clients in its own process, where it '
        "cannot end one that hangs. Leave run.deadline out, or use --engine pool."
    )


def test_a_deadline_below_zero_is_refused():
    with pytest.raises(SettingsError, match=r"run.deadline = -1 must be from 0 \(no limit\) to 1e9 seconds"):
        tiny(run={"deadline": -1.0})
