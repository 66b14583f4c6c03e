"""Attempts at a round that miss their quorum: what left a client then counts too, in costs and in epsilon."""

import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_runs import Listener, cohorts, events, kept, tiny

from potluck.core import QuorumError, on_client
from potluck.ledger import read_journal
from potluck.methods import FedAvg
from potluck.report import read_record
from potluck.run import resume, run
from potluck.run.privacy import epsilon

NOISY = {"clip": 0.5, "noise": 0.2}
BYTES = 754 * 4
"""64 * 8 + 8, twice 8 * 8 + 8, and 8 * 10 + 10 numbers of four bytes."""


def strict(rounds=2, privacy=NOISY, **more):
    """All three clients of a cohort must answer."""
    return tiny(rounds=rounds, method={"name": "fedavg"}, privacy=privacy, run={"quorum": 3, **more})


@dataclass(frozen=True)
class Shaky(FedAvg):
    """FedAvg of which client c5 fails at the first try of each round.

    Every other training is noted in the file `sent`: the round and who trained. The process is killed at a training
    whose number stands in the file `kill`, and is interrupted at one in the file `stop`. While the file `forever` is
    there, every try fails.
    """

    folder: str = ""

    @on_client
    def train(self, task, device):
        folder = Path(self.folder)
        tried = folder / f"{task.round}"
        if task.to == "c5" and (not tried.exists() or (folder / "forever").exists()):
            tried.touch()
            raise OSError("the battery is flat")
        count = len(sent(folder))
        if str(count) == read(folder / "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if str(count) == read(folder / "stop"):
            raise KeyboardInterrupt
        with open(folder / "sent", "a") as file:
            file.write(f"{task.round + 1} {task.to}\n")
        return (yield from super().train(task, device))


def read(file):
    return file.read_text() if file.exists() else ""


def sent(folder):
    """Every training that was noted, as (round, client)."""
    lines = (line.split() for line in read(Path(folder) / "sent").splitlines())
    return [(int(round), client) for round, client in lines]


@pytest.fixture
def shaky(tmp_path):
    def make(name):
        (tmp_path / name).mkdir()
        return Shaky(local=tiny().local, folder=str(tmp_path / name))

    return make


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def busiest(folder):
    """The number of uploads of the client that sent most."""
    return max(Counter(client for _, client in sent(folder)).values())


def test_the_cohorts_are_those_that_the_method_knows(tmp_path):
    assert cohorts(run(strict(privacy={}), tmp_path / "run").folder) == {1: ["c0", "c1", "c5"], 2: ["c3", "c5", "c7"]}


def test_what_a_failed_attempt_cost_is_booked(shaky, tmp_path):
    """In each of two rounds two clients train, and then all three."""
    found = run(strict(privacy={}), tmp_path / "run", method=shaky("moods"))
    assert len(sent(tmp_path / "moods")) == 2 * (2 + 3)
    tasks = events(found.folder, "task")
    assert sum(task["measured"]["bytes_up"] > 0 for task in tasks) == 10
    assert found.totals["bytes_up"] == 10 * BYTES
    assert found.totals["bytes_down"] == 12 * BYTES
    assert found.totals["flops"] == sum(task["modelled"]["flops"] for task in tasks)
    assert read_record(found.folder).totals.bytes_up == found.totals["bytes_up"]


def test_a_failed_attempt_stands_in_the_ledger_beside_its_round(shaky, tmp_path):
    found = run(strict(privacy={}), tmp_path / "run", method=shaky("moods"))
    tries = events(found.folder, "attempt")
    assert [(line["round"], line["attempt"], line["sent"], line["accepted"]) for line in tries] == [
        (1, 1, 3, 2),
        (2, 1, 3, 2),
    ]
    tasks = [task for task in events(found.folder, "task") if task["round"] == 1]
    assert [(task.get("attempt"), task["client"], task["outcome"]) for task in tasks] == [
        *((1, client, outcome) for client, outcome in (("c0", "accepted"), ("c1", "accepted"), ("c5", "absent"))),
        *((None, client, "accepted") for client in ("c0", "c1", "c5")),
    ]
    rounds = events(found.folder, "round")
    slowest = max(task["modelled"]["seconds"] for task in tasks)
    assert rounds[0]["device_seconds"] == pytest.approx(2 * slowest)
    assert found.totals["device_seconds"] == pytest.approx(sum(line["device_seconds"] for line in rounds))


def test_a_run_without_failed_attempts_has_the_ledger_that_it_had(tmp_path):
    found = run(tiny(), tmp_path / "run")
    assert not events(found.folder, "attempt")
    assert not any("attempt" in task for task in events(found.folder, "task"))
    assert not events(found.folder, "charge")


def test_epsilon_counts_uploads_of_failed_attempts(shaky, tmp_path):
    """Client c0 uploads twice in round 1 alone: without the failed attempt it would be once."""
    found = run(strict(rounds=1), tmp_path / "run", method=shaky("moods"))
    assert sent(tmp_path / "moods") == [(1, "c0"), (1, "c1"), (1, "c0"), (1, "c1"), (1, "c5")]
    assert (found.privacy["uploads"], found.privacy["epsilon"]) == (2, epsilon(0.2, 1e-5, 2))
    assert events(found.folder, "privacy")[-1]["uploads"] == 2


def test_a_second_attempt_has_other_noise(shaky, tmp_path):
    """Equal noise on unequal updates would show how they differ."""
    found = run(strict(rounds=1), tmp_path / "run", method=shaky("moods"))
    steady = run(strict(rounds=1), tmp_path / "steady")
    assert found.weights_sha256 != steady.weights_sha256
    quiet = run(strict(rounds=1, privacy={}), tmp_path / "quiet", method=shaky("quiet moods"))
    assert quiet.weights_sha256 == run(strict(rounds=1, privacy={}), tmp_path / "quiet steady").weights_sha256


def killed(wanted, out, method, resumed=False):
    """A run in a process of its own, which the method kills."""
    pid = os.fork()
    if pid == 0:
        try:
            resume(out, method=method) if resumed else run(wanted, out, method=method)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def told(folder):
    """The ledger without charges and without what a clock measured."""
    found = [line for line in read_journal(folder / "ledger.jsonl") if line["event"] != "charge"]
    for line in found:
        line.pop("seconds", None)
        line.get("measured", {}).pop("seconds", None)
    return found


@pytest.mark.parametrize("privacy", [{}, NOISY], ids=["plain", "noisy"])
def test_a_kill_between_a_failed_attempt_and_the_next_changes_nothing(shaky, tmp_path, privacy):
    """The third training would be the first of the second attempt; no upload was under way but that one."""
    whole = run(strict(privacy=privacy), tmp_path / "whole", method=shaky("moods"))
    method = shaky("deadly")
    (tmp_path / "deadly" / "kill").write_text("2")
    killed(strict(privacy=privacy), tmp_path / "run", method)
    assert kept(tmp_path / "run")[0] == 0
    os.unlink(tmp_path / "deadly" / "kill")
    heard = Listener()
    found = resume(tmp_path / "run", method=method, watch=heard)
    assert found.weights_sha256 == whole.weights_sha256
    assert sent(tmp_path / "deadly") == sent(tmp_path / "moods")
    for name in ("bytes_down", "bytes_up", "flops", "joules", "device_seconds"):
        assert found.totals[name] == whole.totals[name]
    if not privacy:
        assert told(found.folder) == told(whole.folder)


def test_a_kill_in_the_middle_of_an_attempt_forgets_no_upload(shaky, tmp_path):
    """Killed twice in the second attempt, after c0 and c1 had uploaded: c1 sends four times in all, c5 once."""
    method = shaky("moods")
    (tmp_path / "moods" / "kill").write_text("4")
    killed(strict(rounds=1), tmp_path / "run", method)
    (tmp_path / "moods" / "kill").write_text("6")
    killed(None, tmp_path / "run", method, resumed=True)
    os.unlink(tmp_path / "moods" / "kill")
    found = resume(tmp_path / "run", method=method)
    assert Counter(sent(tmp_path / "moods")) == {(1, "c0"): 4, (1, "c1"): 4, (1, "c5"): 1}
    assert found.privacy["uploads"] == 4
    uploads = kept(found.folder)[1]["progress"]["uploads"]
    assert uploads == {"c0": 4, "c1": 4, "c5": 1 + 2}  # c5 was asked when the process died: it may have sent


def test_the_manifest_of_an_interrupted_run_states_what_was_sent_in_the_round_that_is_lost(shaky, tmp_path):
    method = shaky("moods")
    (tmp_path / "moods" / "stop").write_text("1")
    with pytest.raises(KeyboardInterrupt):
        run(strict(rounds=1), tmp_path / "run", method=method)
    assert manifest(tmp_path / "run")["privacy"]["uploads"] == 1
    os.unlink(tmp_path / "moods" / "stop")
    assert resume(tmp_path / "run", method=method).privacy["uploads"] >= busiest(tmp_path / "moods") == 3


def test_a_run_that_ends_for_want_of_a_quorum_states_what_it_spent_and_may_try_as_often_again(shaky, tmp_path):
    method = shaky("moods")
    (tmp_path / "moods" / "forever").touch()
    with pytest.raises(QuorumError):
        run(strict(rounds=1, retries=2), tmp_path / "run", method=method)
    assert manifest(tmp_path / "run")["privacy"]["uploads"] == 3
    assert kept(tmp_path / "run")[1]["progress"]["totals"]["bytes_up"] == 6 * BYTES
    heard = Listener()
    with pytest.raises(QuorumError):
        resume(tmp_path / "run", method=method, watch=heard)
    assert [text.partition("(")[2][:10] for text in heard.warnings[1:]] == ["try 1 of 3", "try 2 of 3", "try 3 of 3"]
    os.unlink(tmp_path / "moods" / "forever")
    found = resume(tmp_path / "run", method=method)
    assert found.privacy["uploads"] == busiest(tmp_path / "moods") == 7
    assert found.totals["bytes_up"] == (6 * 2 + 3) * BYTES
    assert [line["attempt"] for line in events(found.folder, "attempt")] == [1, 2, 3, 4, 5, 6]


def test_an_epsilon_above_the_one_that_was_asked_for_is_told(shaky, tmp_path):
    heard = Listener()
    found = run(strict(rounds=1, privacy={"epsilon": 2.0}), tmp_path / "run", method=shaky("moods"), watch=heard)
    assert found.privacy["epsilon"] > 2
    assert heard.warnings[-1].startswith(f"round 1: epsilon is {found.privacy['epsilon']:.4g}; privacy.epsilon is 2 (")
