"""The live log: what a run writes into live.jsonl as it happens, and what it never does to the run."""

import json
import os
from dataclasses import dataclass

import pytest
from tiny_runs import Diverges, Liar, Listener, Moody, StopsAfter, killed_after, tiny

from potluck.core import DivergedError, Task
from potluck.engines import LedgerEntry, RoundSession
from potluck.ledger import FolderError
from potluck.run import resume, run
from potluck.run.live import MOST_BYTES, LiveLog


def lines(folder):
    return [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]


def told(folder, event):
    return [line for line in lines(folder) if line["event"] == event]


class ReadsAfter(Listener):
    """A watch that reads the live log and the journals after a round."""

    def __init__(self, folder, last):
        super().__init__()
        self.folder, self.last = folder, last

    def round(self, done, scores, totals):
        if done == self.last:
            self.live, self.saved = lines(self.folder), (self.folder / "scores.jsonl").read_text().count("\n")


def test_tasks_rounds_scores_and_the_end_are_written(tmp_path):
    result = run(tiny(rounds=2), tmp_path / "run")
    found = lines(tmp_path / "run")
    assert [line["event"] for line in found] == ["start", *["task"] * 3, "round", *["task"] * 3, "round", "end"]
    assert found[0]["rounds"] == 2
    assert found[1] == {
        "event": "task", "time": found[1]["time"], "round": 1,
        "client": "c0", "tier": "small", "verb": "train", "outcome": "accepted",
    }  # fmt: skip
    last = found[-2]
    assert (last["round"], last["asked"], last["answered"], last["refused"]) == (2, 3, 3, 0)
    assert last["totals"]["bytes_up"] == result.totals["bytes_up"]
    tiers = {name: tier["test"]["accuracy"] for name, tier in last["scores"]["tiers"].items()}
    assert tiers == {name: tier["test"]["accuracy"] for name, tier in result.scores["tiers"].items()}
    assert last["scores"]["global"]["test"]["accuracy"] == result.accuracy
    assert found[-1]["status"] == "done"
    times = [line["time"] for line in found]
    assert times == sorted(times)


def test_a_round_is_in_the_file_before_its_checkpoint_is(tmp_path):
    watch = ReadsAfter(tmp_path / "run", 2)
    run(tiny(rounds=3, run={"checkpoint_every": 100}), tmp_path / "run", watch=watch)
    assert [line["round"] for line in watch.live if line["event"] == "round"] == [1, 2]
    assert watch.saved == 1  # the scores before the first round


def test_refused_replies_stand_there_with_their_reason(tmp_path):
    experiment = tiny(rounds=3, cohort=8)
    run(experiment, tmp_path / "run", method=Liar(local=experiment.local))
    refused = [line for line in told(tmp_path / "run", "task") if line["outcome"] != "accepted"]
    assert (refused[0]["client"], refused[0]["outcome"]) == ("c3", "quarantined")
    assert "weight" in refused[0]["reason"]
    assert told(tmp_path / "run", "round")[0]["refused"] == 1


def test_attempts_that_missed_their_quorum_do_not_count_twice(tmp_path):
    experiment = tiny(rounds=1, run={"quorum": 3, "retries": 3})
    run(experiment, tmp_path / "run", method=Moody(local=experiment.local, folder=str(tmp_path)))
    (done,) = told(tmp_path / "run", "round")
    assert (done["asked"], done["answered"]) == (3, 3)
    assert "0 of 3 clients answered" in told(tmp_path / "run", "warning")[0]["text"]


def test_a_run_that_diverged_says_so_in_its_last_line(tmp_path):
    experiment = tiny(rounds=3, run={"quorum": 3, "retries": 0})
    with pytest.raises(DivergedError):
        run(experiment, tmp_path / "run", method=Diverges(local=experiment.local))
    last = lines(tmp_path / "run")[-1]
    assert (last["event"], last["status"]) == ("end", "diverged")
    assert "not finite" in last["reason"]


def test_a_resumed_run_begins_the_file_anew_and_says_what_it_was_told(tmp_path):
    killed_after(2, tiny(rounds=4), tmp_path / "run")
    assert told(tmp_path / "run", "round")[-1]["round"] == 2
    resume(tmp_path / "run")
    assert [line["round"] for line in told(tmp_path / "run", "start")] == [2]
    assert [line["round"] for line in told(tmp_path / "run", "round")] == [3, 4]
    assert [line["text"] for line in told(tmp_path / "run", "warning")] == ["resumed at round 2"]


def test_without_the_setting_there_is_no_file_and_a_resumed_run_leaves_no_old_one(tmp_path):
    off = run(tiny(rounds=2, run={"live": False}), tmp_path / "off")
    assert not (tmp_path / "off" / "live.jsonl").exists()
    assert off.weights_sha256 == run(tiny(rounds=2), tmp_path / "on").weights_sha256
    (tmp_path / "off" / "live.jsonl").write_text("old\n")
    resume(tmp_path / "off", rounds=3)
    assert not (tmp_path / "off" / "live.jsonl").exists()


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_something_else_in_its_place_never_stops_a_run(kind, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=2), tmp_path / "run", watch=StopsAfter(1))
    path, outside = tmp_path / "run" / "live.jsonl", tmp_path / "outside"
    path.unlink()
    outside.write_text("mine")
    {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(outside)}[kind]()
    watch = Listener()
    assert resume(tmp_path / "run", watch=watch).rounds == 2
    assert outside.read_text() == "mine"
    if kind == "folder":
        assert watch.warnings[-1].startswith("LiveLog failed, and is left out: ")
    else:
        assert told(tmp_path / "run", "end")[0]["status"] == "done"


def test_a_file_that_cannot_be_written_leaves_the_run_going(tmp_path):
    class Removes(Listener):
        def round(self, done, scores, totals):
            if done == 1:
                (tmp_path / "run" / "live.jsonl").unlink()

    watch = Removes()
    assert run(tiny(rounds=3), tmp_path / "run", watch=watch).rounds == 3
    assert len(watch.warnings) == 1
    assert watch.warnings[0].startswith("LiveLog failed, and is left out: ")


def test_a_new_run_does_not_replace_a_file_of_this_name_that_is_there(tmp_path):
    (tmp_path / "live.jsonl").write_text("someone's own")
    with pytest.raises(FolderError, match=r"already holds a run \(live\.jsonl\)"):
        run(tiny(rounds=1), tmp_path)


@dataclass
class Everyone:
    """Clients that all have the same tier."""

    name: str = "phone"

    @property
    def tier(self):
        return self

    def index(self, id):
        return 0

    def client(self, index, round):
        return self


SCORES = {
    "metric": "accuracy",
    "global": {"test": {"accuracy": 0.12345678901234567}},
    "tiers": {f"tier-{index}": {"test": {"accuracy": 0.12345678901234567}} for index in range(4)},
    "clients": {"mean": 0.5},
}


def test_3200_rounds_of_many_tasks_stay_below_a_megabyte_and_tell_old_and_new_rounds(tmp_path):
    log = LiveLog(Everyone(), tmp_path)
    log.start(tmp_path, {"rounds": 3200}, 0)
    task = Task("train", "c12345")
    fine, lost = LedgerEntry(0, task, "accepted"), LedgerEntry(0, task, "absent", "dropped out " + "x" * 300)
    largest = 0
    for index in range(3200):
        session = RoundSession(None, index)
        for number in range(12):
            log.task(session, lost if number % 4 == 0 else fine)
        log.round(index + 1, SCORES, {"bytes_down": 1.5e9, "joules": 0.123456789})
        largest = max(largest, (tmp_path / "live.jsonl").stat().st_size)
    log.warn("w" * 10_000)
    found = [line["round"] for line in told(tmp_path, "round")]
    assert 0.5 * MOST_BYTES < largest <= MOST_BYTES
    assert lines(tmp_path)[0]["event"] == "start"
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, 3200)
    assert found[-100:] == list(range(3101, 3201))
    assert len(found) > 300
    assert {line["round"] for line in told(tmp_path, "task")} >= set(range(3191, 3201))
    assert [path.name for path in tmp_path.iterdir()] == ["live.jsonl"]


def test_a_task_is_in_the_file_at_once_and_of_many_the_rest_when_the_round_ends(tmp_path):
    log = LiveLog(Everyone(), tmp_path)
    log.start(tmp_path, {"rounds": 1}, 0)
    log.task(RoundSession(None, 0), LedgerEntry(0, Task("train", "c0"), "accepted"))
    assert [line["client"] for line in told(tmp_path, "task")] == ["c0"]
    for index in range(1, 90):
        log.task(RoundSession(None, 0), LedgerEntry(index, Task("train", f"c{index}"), "accepted"))
    log.round(1, None, {})
    assert [line["client"] for line in told(tmp_path, "task")] == [f"c{index}" for index in range(90)]


def test_what_an_attempt_that_failed_was_refused_is_not_told_of_the_round(tmp_path):
    log = LiveLog(Everyone(), tmp_path)
    log.start(tmp_path, {"rounds": 1}, 0)
    for attempt, verdict in enumerate(("quarantined", "accepted")):
        log.task(RoundSession(None, 0, attempt), LedgerEntry(0, Task("train", f"c{attempt}"), verdict))
    log.round(1, None, {})
    (done,) = told(tmp_path, "round")
    assert (done["asked"], done["answered"], done["refused"]) == (1, 1, 0)


def test_a_large_cohort_has_a_line_for_its_first_tasks_and_then_for_refusals_alone(tmp_path):
    log = LiveLog(Everyone(), tmp_path)
    log.start(tmp_path, {"rounds": 1}, 0)
    session = RoundSession(None, 0)
    for index in range(1000):
        verdict = "quarantined" if index in (50, 500, 999) else "accepted"
        log.task(session, LedgerEntry(index, Task("train", f"c{index}"), verdict))
    log.round(1, None, {})
    assert [line["client"] for line in told(tmp_path, "task")] == [*(f"c{i}" for i in range(100)), "c500", "c999"]
    (done,) = told(tmp_path, "round")
    assert (done["asked"], done["answered"], done["refused"]) == (1000, 997, 3)
