"""What the board reads of run folders: curves, rounds, costs and states; and folders that are not as they should be."""

import json
import os
import shutil
import subprocess

import pytest
from board_life import append, ended_round, make_run, scored, start, task
from small_nodes import NAMES, TIERS, identity, make_nodes, run_in_process, settings
from tiny_runs import StopsAfter, killed_after, tiny

from potluck.board.runs import FollowedRuns
from potluck.board.stream import Listener
from potluck.board.tail import PIECE, Tail
from potluck.board.view import MOST_POINTS, MOST_TIERS
from potluck.ledger import Lock
from potluck.run import resume, run


class Board:
    """A folder of runs, read again and again, with everything chosen that can be."""

    def __init__(self, root):
        self.runs = FollowedRuns(root)

    def read(self, *chosen):
        self.runs.update({each.id for each in self.runs.runs.values() if each.folder in chosen})
        self.runs.update({each.id for each in self.runs.runs.values() if each.folder in chosen})
        return {each.folder: each for each in self.runs.runs.values()}

    def rows(self):
        return {folder: found.row for folder, found in self.read().items()}


@pytest.fixture
def board(tmp_path):
    (tmp_path / "runs").mkdir()
    return Board(tmp_path / "runs")


def points(found):
    return found.view.curve.points()


def test_runs_and_comparisons_are_found_one_level_down_and_appear_by_themselves(board, tmp_path):
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "compare" / "b")
    make_run(tmp_path / "runs" / "compare" / "deeper" / "c")
    (tmp_path / "runs" / "notes.txt").write_text("no run")
    assert set(board.rows()) == {"a", "compare/b"}
    make_run(tmp_path / "runs" / "compare" / "d")
    shutil.rmtree(tmp_path / "runs" / "a")
    assert set(board.rows()) == {"compare/b", "compare/d"}


def test_a_run_folder_can_be_given_itself(tmp_path):
    make_run(tmp_path / "one")
    assert set(Board(tmp_path / "one").rows()) == {"one"}


def test_links_out_of_the_folder_are_not_followed(board, tmp_path):
    outside = make_run(tmp_path / "outside")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "half").mkdir()
    (tmp_path / "runs" / "half" / "manifest.json").symlink_to(outside / "manifest.json")
    inside = make_run(tmp_path / "runs" / "inside", status="interrupted")
    (inside / "scores.jsonl").unlink()
    append(outside / "scores.jsonl", scored(9, 0.9))
    (inside / "scores.jsonl").symlink_to(outside / "scores.jsonl")
    found = board.read("inside")
    assert set(found) == {"inside"}
    assert points(found["inside"]) == []


def test_a_finished_run_is_told_by_its_manifest(board, tmp_path):
    result = {"rounds": 10, "metric": "accuracy", "scores": {"global": {"test": {"accuracy": 0.75}}}}
    make_run(tmp_path / "runs" / "a", result=result)
    row = board.rows()["a"]
    assert (row["status"], row["done"], row["rounds"], row["score"]) == ("done", 10, 10, 0.75)


def test_an_old_run_without_a_live_log_is_shown_from_its_journals(board, tmp_path):
    facts = {"measured": {"bytes_down": 100, "bytes_up": 50}, "modelled": {"joules": 2.0}}
    make_run(
        tmp_path / "runs" / "old",
        scores=[scored(0, 0.1, small=0.1), scored(2, 0.5, small=0.4)],
        ledger=[
            *(task(1, client, **facts) for client in ("c1", "c2")),
            {"event": "round", "round": 1, "device_seconds": 3.0, "round_seconds": 4.0, "seconds": 0.5},
            task(2, "c1", **facts),
            task(2, "c3", "quarantined", reason="not finite", **facts),
            task(2, "server", **facts),
            {"event": "round", "round": 2, "device_seconds": 3.0, "round_seconds": 4.0, "seconds": 0.5},
            {"event": "warning", "round": 2, "text": "beware"},
        ],
    )
    old = board.read("old")["old"]
    assert points(old) == [[0, 0.1, 0.1], [2, 0.5, 0.4]]
    told = old.detail()
    assert [(each["asked"], each["answered"], each["refused"]) for each in told["last_rounds"]] == [
        (2, 2, 0),
        (2, 1, 1),
    ]
    assert told["totals"] == {
        "bytes_down": 400, "bytes_up": 200, "joules": 8.0,
        "device_seconds": 6.0, "round_seconds": 8.0, "seconds": 1.0,
    }  # fmt: skip
    assert [(each["client"], each["reason"]) for each in told["faults"]] == [("c3", "not finite")]
    assert told["warnings"] == [{"round": 2, "text": "beware"}]
    assert (old.row["done"], old.row["score"]) == (2, 0.5)


def test_a_run_that_goes_on_is_followed_line_by_line(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", [start(), task(1)], [scored(0, 0.1)], status="running")
    held = Lock(path / "lock")
    try:
        found = board.read("a")["a"]
        assert (found.row["status"], found.row["done"], found.row["left"]) == ("running", 0, None)
        assert found.detail()["now"] == {"asked": 1, "answered": 1, "refused": 0}
        scores = scored(1, 0.3, small=0.2)
        append(
            path / "live.jsonl",
            task(1, "c2", "absent", reason="dropped out"),
            ended_round(1, 104.0, scores, bytes_up=7),
        )
        found = board.read("a")["a"]
        assert points(found) == [[0, 0.1, None], [1, 0.3, 0.2]]
        assert (found.row["done"], found.row["left"], found.row["score"]) == (1, 36.0, 0.3)  # nine rounds of 4 s
        assert found.detail()["totals"] == {"bytes_up": 7}
        assert found.detail()["faults"][0]["reason"] == "dropped out"
        with open(path / "live.jsonl", "a") as file:
            file.write('{"event":"round","round":2')  # half a line
        assert board.read("a")["a"].row["done"] == 1
    finally:
        held.release()


def test_scores_that_are_read_after_newer_ones_find_their_place(board, tmp_path):
    live = [start(), ended_round(1, 101.0, scored(1, 0.3)), ended_round(2, 102.0, scored(2, 0.4))]
    path = make_run(tmp_path / "runs" / "a", live, [scored(0, 0.1), scored(1, 0.3)], status="running")
    held = Lock(path / "lock")
    try:
        assert points(board.read()["a"]) == [[1, 0.3], [2, 0.4]]  # nobody looks: the live log alone is read
        assert points(board.read("a")["a"]) == [[0, 0.1], [1, 0.3], [2, 0.4]]
    finally:
        held.release()


def test_a_run_whose_process_is_gone_is_dead_and_one_that_is_resumed_runs_again(board, tmp_path):
    wanted = tiny(rounds=3)
    killed_after(2, wanted, tmp_path / "runs" / "a")
    assert json.loads((tmp_path / "runs" / "a" / "manifest.json").read_text())["status"] == "running"
    found = board.read("a")["a"]
    assert (found.row["status"], found.row["done"]) == ("dead", 2)
    assert [round for round, *_ in points(found)] == [0, 1, 2]
    resume(tmp_path / "runs" / "a")
    found = board.read("a")["a"]
    assert (found.row["status"], found.row["done"]) == ("done", 3)
    assert [round for round, *_ in points(found)] == [0, 1, 2, 3]


def test_a_process_that_has_the_id_of_one_that_died_is_not_taken_for_it(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", status="running")
    other = subprocess.Popen(["sleep", "600"])
    try:
        (path / "lock").write_text(json.dumps({"pid": other.pid, "host": os.uname().nodename}))
        assert board.rows()["a"]["status"] == "dead"
    finally:
        other.kill()
        other.wait()


def test_a_run_on_another_machine_is_believed(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", status="running")
    (path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    row = board.rows()["a"]
    assert (row["status"], row["where"]) == ("running", "elsewhere")


def test_a_look_at_a_run_never_keeps_another_process_from_starting_it(board, tmp_path, monkeypatch):
    path = make_run(tmp_path / "runs" / "a", status="running")
    (path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename}))
    import fcntl

    def touch(*_):
        raise AssertionError("the lock was touched")

    monkeypatch.setattr(fcntl, "flock", touch)
    assert board.rows()["a"]["status"] == "dead"


def test_a_run_that_was_killed_before_a_checkpoint_is_told_by_its_live_log(board, tmp_path):
    live = [
        start(),
        ended_round(1, 101.0, scored(1, 0.3)),
        ended_round(2, 102.0, scored(2, 0.4)),
        ended_round(3, 103.0),
    ]
    make_run(tmp_path / "runs" / "a", live, [scored(0, 0.1)], status="running")
    row = board.rows()["a"]
    assert (row["status"], row["done"], row["score"]) == ("dead", 3, 0.4)


def test_an_interrupted_run_and_a_diverged_one_say_so(board, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), tmp_path / "runs" / "a", watch=StopsAfter(1))
    make_run(tmp_path / "runs" / "b", status="diverged", fault="not finite", fault_round=7)
    rows = board.rows()
    assert (rows["a"]["status"], rows["a"]["done"]) == ("interrupted", 1)
    assert (rows["b"]["status"], rows["b"]["fault_round"], rows["b"]["reason"]) == ("diverged", 7, "not finite")


def test_a_live_log_that_is_written_anew_is_read_from_its_start(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", [start(), ended_round(1, 101.0, scored(1, 0.5)), ended_round(2, 102.0)])
    found = board.read("a")["a"]
    version = found.view.curve.version
    (path / "live.jsonl").unlink()
    append(path / "live.jsonl", start(200.0, done=1), ended_round(2, 203.0, scored(2, 0.25)))
    found = board.read("a")["a"]
    assert points(found) == [[2, 0.25]]
    assert found.view.curve.version > version
    assert [each["round"] for each in found.view.last_rounds] == [2]


def test_a_long_curve_is_thinned_out_and_keeps_its_ends(board, tmp_path):
    make_run(tmp_path / "runs" / "a", scores=[scored(index, index / 5000) for index in range(3201)])
    found = points(board.read("a")["a"])
    assert MOST_POINTS / 2 <= len(found) <= MOST_POINTS
    assert (found[0][0], found[-1]) == (0, [3200, 3200 / 5000])


def test_a_line_longer_than_can_be_read_at_once_is_skipped(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"b":"' + b"x" * (2 * PIECE) + b'"}\n{"c":3}\n')
    assert Tail(path).read() == (False, [{"a": 1}, {"c": 3}])


ODD_LINES = {
    "not JSON": b"\xff\xfe\x00 no\n[1]\nnull\n",
    "deep": b'{"a":' + b"[" * 100_000 + b"\n",
    "NaN": b'{"event":"round","round":NaN,"time":Infinity,"totals":{"joules":-Infinity},"scores":{"tiers":NaN}}\n',
    "huge numbers": b'{"event":"round","round":'
    + b"9" * 5000
    + b',"time":1e999,"asked":1e300,"scores":{"global":5}}\n',
    "wrong types": b'{"event":["round"],"round":{},"tiers":3}\n{"event":"round","totals":[],"scores":[],"asked":"x"}\n'
    b'{"event":"task","client":{},"outcome":[],"reason":9}\n{"event":"warning","text":{}}\n',
    "half letters": b'{"event":"task","round":1,"client":"\\ud800","outcome":"absent","reason":"\\udfff\\u0000"}\n',
    "many tiers": json.dumps(scored(3, 0.5, **{f"t{i}": 0.5 for i in range(5000)})).encode() + b"\n",
    "zero bytes": bytes(100_000),
    "odd manifest": b'{"status":"running","rounds":1e400,"label":{"a":1},"name":7,"seed":"x","tiers":5,"nodes":[1]}',
}
FILES = ("manifest.json", "live.jsonl", "scores.jsonl", "ledger.jsonl", "lock")


@pytest.mark.parametrize("kind", [*ODD_LINES, "fifo", "folder", "loop"])
def test_nothing_in_a_run_folder_breaks_the_board(kind, board, tmp_path):
    make_run(tmp_path / "runs" / "good", scores=[scored(1, 0.5)])
    for name in FILES:
        path = make_run(tmp_path / "runs" / f"odd-{name}", [start()], [scored(1, 0.5)], [task(1)], status="running")
        (path / name).unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path / name)
        elif kind == "folder":
            (path / name).mkdir()
        elif kind == "loop":
            (path / name).symlink_to(name)
        else:
            (path / name).write_bytes(ODD_LINES[kind])
    folders = [f"odd-{name}" for name in FILES]
    found = board.read("good", *folders)
    listener = Listener([each.id for each in found.values()], allow_stop=True)
    told = [json.loads(line) for event in listener.news(board.runs) for line in event.split("data: ")[1:]]
    assert {row["folder"] for row in told[0]["rows"]} == set(found)
    assert found["good"].row["score"] == 0.5
    assert all(len(json.dumps(each)) < 200_000 for each in told)
    assert all(len(each.view.curve.names) <= MOST_TIERS for each in found.values() if each.view)


def test_a_folder_that_vanishes_while_it_is_read_is_gone(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", [start()])
    found = board.read("a")["a"]
    shutil.rmtree(path)
    found.update(chosen=True)  # as if it vanished between the list and the reading
    assert found.row["status"] == "unreadable"
    assert board.read("a") == {}


def test_a_page_is_told_only_what_is_new(board, tmp_path):
    path = make_run(tmp_path / "runs" / "a", [start(), ended_round(1, 101.0, scored(1, 0.5))])
    make_run(tmp_path / "runs" / "b")
    id = board.read("a")["a"].id
    listener = Listener([id], allow_stop=False)

    def news():
        board.read("a")
        return [json.loads(event.split("data: ")[1]) for event in listener.news(board.runs)]

    runs, detail = news()
    assert (runs["whole"], len(runs["rows"]), detail["first"], len(detail["points"])) == (True, 2, 0, 1)
    assert news() == []
    append(path / "live.jsonl", ended_round(2, 102.0, scored(2, 0.6)))
    runs, detail = news()
    assert (runs["whole"], [row["folder"] for row in runs["rows"]], runs["rows"][0]["done"]) == (False, ["a"], 2)
    assert (detail["first"], detail["points"]) == (1, [[2, 0.6]])
    shutil.rmtree(path)
    assert news() == [{"rows": [], "gone": [id], "left_out": 0, "whole": False}]


def test_a_federation_of_real_nodes_is_followed_as_well_and_its_nodes_have_their_names(board, tmp_path):
    nodes = make_nodes(tmp_path)
    where = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 5}
    run_in_process(settings("heterofl", rounds=2, nodes=where), nodes, tmp_path / "runs" / "clinics")
    path = tmp_path / "runs" / "clinics"
    tasks = [json.loads(line) for line in (path / "live.jsonl").read_text().splitlines() if '"task"' in line]
    assert {(line["round"], line["tier"]) for line in tasks} == {(round, tier) for round in (1, 2) for tier in TIERS}
    append(path / "live.jsonl", task(2, identity(NAMES[0]), "quarantined", reason="not finite"))
    found = board.read("clinics")["clinics"]
    assert (found.row["status"], found.row["done"]) == ("done", 2)
    assert [fault["client"] for fault in found.detail()["faults"]] == [NAMES[0]]
