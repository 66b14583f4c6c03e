"""What a report reads out of a run folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import manifest, task, write_folder

from potluck.ledger import MissingRun
from potluck.report import read_record
from potluck.report.tasks import TaskLog


def scored(round_: int, test: float | None, validation: float | None = None, **more: object) -> dict[str, object]:
    whole = {"test": {"accuracy": test}, "validation": {"accuracy": validation}}
    return {"round": round_, "global": whole, **more}


def ended(round_: int, **more: object) -> dict[str, object]:
    return {"event": "round", "round": round_, **more}


def test_importing_the_report_brings_in_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "sklearn", "rich", "pydantic", "potluck.core"}
    program = f"import sys, potluck.report; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_folder_that_is_no_run_is_named() -> None:
    with pytest.raises(MissingRun, match="nowhere"):
        read_record(Path("nowhere"))


def test_best_is_chosen_by_validation_and_final_is_the_last(tmp_path: Path) -> None:
    scores = [scored(1, 0.5, 0.7), scored(2, 0.9, 0.6), scored(3, 0.8, 0.7)]
    curve = read_record(write_folder(tmp_path / "a", manifest(), [], scores)).curve
    assert curve.best
    assert curve.final
    assert (curve.best.round, curve.best.test.value) == (1, 0.5)
    assert (curve.final.round, curve.final.test.value) == (3, 0.8)


def test_without_validation_nothing_is_best(tmp_path: Path) -> None:
    assert read_record(write_folder(tmp_path / "a", manifest(), [], [scored(1, 0.5)])).curve.best is None


def test_the_test_set_chooses_the_best_round_only_if_the_settings_say_so(tmp_path: Path) -> None:
    tiers = {"watch": {"test": {"accuracy": 0.25}}}
    scores = [scored(1, 0.5, 0.7), scored(2, 0.9, tiers=tiers), scored(3, 0.8, 0.6)]
    run = read_record(write_folder(tmp_path / "a", manifest(), [], scores, '[score]\nbest = "test"\n'))
    assert run.curve.best
    assert (run.curve.best_by, run.curve.best.round, run.curve.best.score) == ("test", 2, 0.9)
    watch = run.tier("watch")
    assert watch
    assert watch.curve.best
    assert watch.curve.best.round == 2
    assert read_record(write_folder(tmp_path / "b", manifest(), [], scores)).curve.best_by == "validation"


def test_totals_are_summed_per_tier_and_over_all(tmp_path: Path) -> None:
    events = [
        task(1, "c1", "watch", bytes_down=10, bytes_up=5, modelled_seconds=2, modelled_joules=1, modelled_flops=100),
        task(1, "c30", "phone", bytes_down=40, bytes_up=20, modelled_seconds=3, modelled_joules=7, modelled_flops=400),
        task(2, "c1", "watch", "absent", "battery", bytes_down=10),
        task(2, "c2", "watch", "quarantined", "not finite", bytes_down=10, bytes_up=5),
    ]
    run = read_record(write_folder(tmp_path / "a", manifest(), events, []))
    watch = run.tier("watch")
    assert watch
    assert (watch.totals.bytes_down, watch.totals.bytes_up) == (30, 10)
    assert (watch.totals.accepted, watch.totals.absent, watch.totals.quarantined) == (1, 1, 1)
    assert watch.accepted.per_visit(watch.accepted.bytes) == 15
    assert (run.totals.bytes, run.totals.joules, run.totals.flops) == (100, 8, 500)
    assert [(fault.outcome, fault.reason, fault.times) for fault in run.failures] == [
        ("absent", "battery", 1),
        ("quarantined", "not finite", 1),
    ]


def test_several_tasks_of_a_client_in_a_round_are_one_visit(tmp_path: Path) -> None:
    events = [task(1, "c1", "watch", bytes_up=5), {**task(1, "c1", "watch", bytes_up=7), "verb": "score"}]
    watch = read_record(write_folder(tmp_path / "a", manifest(), events, [])).tier("watch")
    assert watch
    assert (watch.accepted.visits, watch.accepted.per_visit(watch.accepted.bytes_up)) == (1, 12)


def test_a_round_done_again_after_a_stop_counts_once(tmp_path: Path) -> None:
    events = [
        task(1, "c1", "watch", bytes_up=5),
        task(1, "c1", "watch", bytes_up=7),
        ended(1, loss=3.0),
        ended(1, loss=2.0),
    ]
    run = read_record(write_folder(tmp_path / "a", manifest(), events, [scored(1, 0.1), scored(1, 0.2)]))
    assert run.totals.bytes_up == 7
    assert [line.loss for line in run.rounds] == [2.0]
    assert [point.test.value for point in run.curve.points] == [0.2]


def test_a_ledger_out_of_order_is_read_as_well_as_one_in_order(tmp_path: Path) -> None:
    """Five rounds with an upload of 1, 2, ... bytes; then the first again, with 10 bytes, and a later task of it."""
    events = [task(round_, "c1", "watch", bytes_up=round_) for round_ in range(1, 6)] + [ended(n) for n in range(1, 6)]
    events += [task(1, "c1", "watch", bytes_up=10), task(1, "c2", "phone", "absent", "battery", bytes_up=7)]
    run = read_record(write_folder(tmp_path / "a", manifest(), events, []))
    assert (run.totals.bytes_up, run.totals.visits) == (10 + 2 + 3 + 4 + 5 + 7, 6)
    assert [line.bytes_up for line in run.rounds] == [17, 2, 3, 4, 5]
    assert [(fault.reason, fault.first_round, fault.last_round) for fault in run.failures] == [("battery", 1, 1)]


def test_a_long_ledger_is_summed_while_it_is_read() -> None:
    log = TaskLog()
    for index in range(1000):
        log.add(task(index // 10, f"c{index % 10}", "watch", bytes_up=3), index)
        assert len(log._open) <= 2
    log.finish()
    assert (log.clients.totals().bytes_up, log.clients.visits, len(log.rounds)) == (3000, 1000, 100)


def test_a_round_without_device_seconds_lasts_as_long_as_its_busiest_client(tmp_path: Path) -> None:
    events = [
        task(1, "c1", "watch", modelled_seconds=2),
        {**task(1, "c1", "watch", modelled_seconds=2), "verb": "score"},
    ]
    events += [task(1, "c2", "watch", modelled_seconds=3), ended(1)]
    assert read_record(write_folder(tmp_path / "a", manifest(), events, [])).device_seconds == 4


def test_a_round_without_round_seconds_waits_for_the_servers_tasks(tmp_path: Path) -> None:
    """Runs of before: the slowest client took 3 s, the server's two tasks 2 s and 4 s."""
    own = task(1, "server", "server", modelled_seconds=2)
    more = {**task(1, "server", "server", modelled_seconds=4), "verb": "learn"}
    events = [task(1, "c1", "watch", modelled_seconds=3), own, more]
    run = read_record(write_folder(tmp_path / "a", manifest(), [*events, ended(1)], []))
    assert (run.device_seconds, run.round_seconds) == (3, 9)
    told = [*events, ended(1, device_seconds=3.0, round_seconds=8.0)]
    assert read_record(write_folder(tmp_path / "b", manifest(), told, [])).round_seconds == 8
    unknown = read_record(write_folder(tmp_path / "c", manifest(), [own, ended(1)], []))
    assert (unknown.device_seconds, unknown.round_seconds) == (None, None)


def test_unknown_events_missing_keys_and_nan_leave_gaps(tmp_path: Path) -> None:
    events: list[dict[str, object]] = [
        {"event": "task"},
        {"event": "comet"},
        {},
        ended(1, loss=float("nan")),
        {"event": "warning"},
    ]
    scores: list[dict[str, object]] = [{}, {"round": 1, "global": None, "tiers": None}, scored(2, float("nan"))]
    run = read_record(write_folder(tmp_path / "a", {"tiers": [{}, None]}, events, scores))
    assert (run.label, run.curve.final, run.device_seconds, run.totals.bytes) == ("a", None, None, None)
    assert [line.loss for line in run.rounds] == [None]


def test_what_is_unknown_is_not_zero(tmp_path: Path) -> None:
    event = {
        "event": "task",
        "round": 1,
        "client": "c1",
        "tier": "watch",
        "modelled": None,
        "measured": {"bytes_up": 4},
    }
    totals = read_record(write_folder(tmp_path / "a", manifest(), [event], [])).totals
    assert (totals.joules, totals.bytes_down, totals.bytes) == (None, None, 4)


def test_the_servers_work_is_a_tier_of_its_own(tmp_path: Path) -> None:
    run = read_record(write_folder(tmp_path / "a", manifest(), [task(1, "server", "", modelled_flops=9)], []))
    assert [tier.name for tier in run.tiers] == ["watch", "phone", "laptop", "server"]
