import math
import os

import pytest

from potluck.ledger import DamagedRecord, FolderError, Journal, read_journal


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "ledger.jsonl")


def rounds(path):
    return [event["round"] for event in read_journal(path)]


def test_events_reach_the_file_at_the_flush_and_in_order(journal):
    journal.add(round=0, client="a")
    journal.append({"round": 1, "from": "b"})
    assert not journal.path.exists()
    journal.flush()
    journal.flush()
    assert journal.path.read_bytes() == b'{"round":0,"client":"a"}\n{"round":1,"from":"b"}\n'
    journal.add(round=2)
    journal.flush(sync=True)
    assert rounds(journal.path) == [0, 1, 2]


def test_an_event_is_noted_as_it_was_when_it_was_added(journal):
    event = {"round": 1}
    journal.append(event)
    event["round"] = 2
    journal.flush()
    assert rounds(journal.path) == [1]


def test_a_journal_that_does_not_exist_yet_is_empty(journal):
    assert list(read_journal(journal.path)) == []
    journal.drop_after(5)
    journal.flush(sync=True)
    assert not journal.path.exists()


def test_odd_text_comes_back(journal):
    names = ["Zoë", "line\u2028break\n", "lone \ud800", "\0"]
    for name in names:
        journal.add(client=name)
    journal.flush()
    assert [event["client"] for event in read_journal(journal.path)] == names


def test_a_number_that_is_not_finite_is_null_because_json_has_no_infinity(journal):
    journal.add(round=1, loss=math.inf, scores=[{"f1": math.nan, "accuracy": 0.5}, (-math.inf,)])
    journal.flush()
    wanted = b'{"round":1,"loss":null,"scores":[{"f1":null,"accuracy":0.5},[null]]}\n'
    assert journal.path.read_bytes() == wanted


def test_a_torn_last_line_is_not_there_yet(journal):
    journal.path.write_bytes(b'{"round":0}\n{"round":1')
    assert rounds(journal.path) == [0]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"", b"\xff", b"7", b"[" * 100_000])
def test_a_broken_line_in_the_middle_is_named(line, journal):
    journal.path.write_bytes(b'{"round":0}\n' + line + b'\n{"round":1}\n')
    with pytest.raises(DamagedRecord, match=r"ledger.jsonl: line 2 is not a JSON object") as caught:
        list(read_journal(journal.path))
    assert caught.value.exit_code == 4
    with pytest.raises(DamagedRecord, match="line 2"):
        journal.drop_after(1)


def test_a_flush_after_a_kill_does_not_continue_the_torn_line(journal):
    journal.path.write_bytes(b'{"round":0}\n{"round":' + b"1" * 100_000)
    journal.add(round=1)
    journal.flush()
    assert journal.path.read_bytes() == b'{"round":0}\n{"round":1}\n'


def test_a_file_that_is_one_torn_line_is_emptied_first(journal):
    journal.path.write_bytes(b'{"round"')
    journal.add(round=0)
    journal.flush()
    assert rounds(journal.path) == [0]


def test_a_cut_keeps_the_rounds_up_to_the_one_given_and_drops_a_torn_line(journal):
    for round in (0, 1, 1, 2, 3):
        journal.add(round=round)
    journal.flush()
    with open(journal.path, "ab") as file:
        file.write(b'{"round":1')
    journal.add(round=9)
    journal.drop_after(1)
    assert rounds(journal.path) == [0, 1, 1]
    journal.add(round=2)
    journal.flush()
    assert journal.path.read_bytes() == b'{"round":0}\n{"round":1}\n{"round":1}\n{"round":2}\n'


def test_a_cut_that_drops_nothing_leaves_the_file_itself(journal):
    journal.add(round=1)
    journal.flush()
    before = os.stat(journal.path).st_ino
    journal.drop_after(1)
    assert os.stat(journal.path).st_ino == before


def test_events_without_a_round_stay_unless_they_follow_something_dropped(journal):
    for event in ({"note": "begin"}, {"round": 0}, {"note": "kept"}, {"round": 1}, {"note": "dropped"}):
        journal.append(event)
    journal.flush()
    journal.drop_after(0)
    assert list(read_journal(journal.path)) == [{"note": "begin"}, {"round": 0}, {"note": "kept"}]


def test_a_broken_line_after_the_last_round_kept_is_dropped_with_the_rest(journal):
    journal.path.write_bytes(b'{"round":0}\n\0\0\0\0":1}\n{"round":1}\n')
    journal.drop_after(0)
    assert journal.path.read_bytes() == b'{"round":0}\n'


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_on_a_full_disk_events_wait_and_the_file_is_as_it_was(step, journal, full_disk):
    journal.add(round=0)
    journal.flush()
    journal.add(round=1)
    make_room = full_disk(step)
    with pytest.raises(FolderError, match=r"ledger.jsonl: cannot add 12 bytes: No space left on device"):
        journal.flush(sync=True)
    make_room()
    assert journal.path.read_bytes() == b'{"round":0}\n'
    journal.flush(sync=True)
    assert rounds(journal.path) == [0, 1]


def test_the_size_up_to_a_round_counts_only_what_a_cut_leaves(journal):
    for event in ({"round": 1}, {"round": 2}, {"note": "no round"}, {"round": 0, "late": True}):
        journal.append(event)
    assert journal.size_up_to(1) == 0
    journal.flush()
    assert journal.size_up_to(1) == 12 + 24
    for _ in range(2):
        journal.drop_after(1)
        assert journal.path.stat().st_size == journal.size_up_to(1) == 36
    journal.add(round=2)
    journal.flush()
    assert journal.size_up_to(2) == 48


def test_lines_to_drop_that_come_before_lines_to_keep_are_dropped_too(journal):
    journal.path.write_bytes(b'{"round":0}\n{"round":2}\n{"round":1}\n')
    journal.drop_after(1)
    assert rounds(journal.path) == [0, 1]


@pytest.mark.parametrize("change", [os.unlink, lambda path: os.truncate(path, 0)], ids=["removed", "emptied"])
def test_a_journal_that_is_removed_or_emptied_during_a_run_stops_it(change, journal):
    journal.add(round=0)
    journal.flush()
    change(journal.path)
    journal.add(round=1)
    with pytest.raises(FolderError, match="something else has removed or changed it while the run was going on"):
        journal.flush()


def test_what_json_cannot_say_is_refused_where_it_is_added(journal):
    with pytest.raises(TypeError):
        journal.add(round=1, weights=object())
    journal.flush()
    assert not journal.path.exists()
