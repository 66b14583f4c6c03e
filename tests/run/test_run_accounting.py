"""Modelled time of a round by hand: laptops reach 96 GFLOP/s, TVs 3.8 GFLOP/s, the server 5.8 TFLOP/s."""

import pytest
from tiny_runs import events, tiny

from potluck.core import SERVER, Client, Cost, Task, Tier
from potluck.engines import Dispatcher, LedgerEntry, RoundSession
from potluck.ledger import Journal, read_journal
from potluck.models import ModelZoo, make_spec
from potluck.run import run
from potluck.run.accounting import CostAccounting, Progress

COHORT = [Client("c0", Tier("large", profile="laptop")), Client("c1", Tier("small", profile="tv"))]


def accounted(tmp_path, *work):
    """The line of a round, and the totals, after tasks (client, verb, FLOPs)."""
    journal = Journal(tmp_path / "ledger.jsonl")
    zoo = ModelZoo(make_spec("mlp", input=(2,), classes=2))
    entries = [
        LedgerEntry(at, Task(verb, to, key=str(at)), "accepted", cost=Cost(flops=round(flops)))
        for at, (to, verb, flops) in enumerate(work)
    ]
    session = RoundSession(Dispatcher(None, None, zoo), 0, entries=entries)
    progress = Progress(done=1)
    CostAccounting(journal, zoo).round(progress, session, COHORT, seconds=0.1)
    journal.flush()
    (line,) = (event for event in read_journal(journal.path) if event["event"] == "round")
    return line, progress.totals


def test_a_round_lasts_as_long_as_its_slowest_device_or_with_the_wait_for_the_server_longer(tmp_path):
    """The laptop takes 1 s, the TV 2 s, the server 3 s."""
    line, totals = accounted(tmp_path, ("c0", "train", 96e9), ("c1", "train", 7.6e9), (SERVER, "learn", 17.4e12))
    assert (line["device_seconds"], line["round_seconds"]) == pytest.approx((2.0, 5.0))
    assert (totals["device_seconds"], totals["round_seconds"]) == pytest.approx((2.0, 5.0))


def test_the_server_does_its_tasks_one_after_the_other(tmp_path):
    line, _ = accounted(tmp_path, ("c0", "train", 96e9), (SERVER, "learn", 5.8e12), (SERVER, "learn", 2.9e12))
    assert (line["device_seconds"], line["round_seconds"]) == pytest.approx((1.0, 2.5))


def test_without_work_of_its_own_nobody_waits_for_the_server(tmp_path):
    line, totals = accounted(tmp_path, ("c0", "train", 96e9), ("c1", "train", 3.8e9))
    assert line["round_seconds"] == line["device_seconds"] == totals["round_seconds"] == pytest.approx(1.0)


def test_a_device_that_is_asked_twice_takes_the_time_of_both_tasks(tmp_path):
    """The laptop takes 1 s and 1.5 s (FedMD: predict, then digest), the TV 2 s."""
    line, _ = accounted(tmp_path, ("c0", "answer", 96e9), ("c1", "answer", 7.6e9), ("c0", "digest", 144e9))
    assert line["device_seconds"] == pytest.approx(2.5)


def test_a_recruited_client_is_priced_as_its_own_device(tmp_path):
    """ExclusiveFL recruits strong clients from outside the cohort; all train one network on laptops."""
    run(tiny(method={"name": "exclusivefl", "sampling": "eligible"}, rounds=2), tmp_path / "run")
    tasks = events(tmp_path / "run", "task")
    assert len(tasks) == 6
    assert {task["tier"] for task in tasks} == {"large"}
    assert len({task["modelled"]["seconds"] for task in tasks}) == 1
