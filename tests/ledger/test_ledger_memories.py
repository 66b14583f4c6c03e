import os

import pytest

from potluck.ledger import CheckpointError, FolderError, Memories, remove_partial_files
from potluck.ledger import memories as module


@pytest.fixture
def memories(tmp_path):
    return Memories(tmp_path / "memory")


def files(memories):
    return sorted(path.name for path in memories.folder.rglob("*.mem"))


def test_a_client_without_a_memory_has_none(memories):
    assert memories.read("a") is None
    memories.commit(3, {"b": b""})
    assert memories.read("a") is None
    assert memories.read("b") == (3, b"")


def test_the_newest_version_up_to_the_one_asked_for_is_read(memories):
    for round in (2, 5, 9):
        memories.commit(round, {"a": b"after %d" % round})
    for reader in (memories, Memories(memories.folder)):
        assert reader.read("a") == (9, b"after 9")
        assert reader.read("a", 9) == (9, b"after 9")
        assert reader.read("a", 8) == (5, b"after 5")
        assert reader.read("a", 2) == (2, b"after 2")
        assert reader.read("a", 1) is None


def test_committing_a_round_again_replaces_it(memories):
    memories.commit(1, {"a": b"first"})
    memories.commit(1, {"a": b"second"})
    assert memories.read("a") == (1, b"second")
    assert files(memories) == ["a@000001.mem"]


def test_versions_after_a_round_are_forgotten(memories):
    memories.commit(1, {"a": b"a1", "b": b"b1"})
    memories.commit(2, {"a": b"a2", "c": b"c2"})
    for forgetful in (Memories(memories.folder), memories):
        forgetful.forget_after(1)
        assert forgetful.read("a") == (1, b"a1")
        assert forgetful.read("b") == (1, b"b1")
        assert forgetful.read("c") is None
        assert sorted(forgetful.clients()) == ["a", "b"]
    assert files(memories) == ["a@000001.mem", "b@000001.mem"]
    memories.forget_after(-1)
    assert files(memories) == []


@pytest.mark.parametrize("resumed", [False, True])
def test_pruning_keeps_what_the_oldest_checkpoint_needs_and_everything_newer(resumed, memories):
    for round in (1, 3, 5, 7):
        memories.commit(round, {"a": b"%d" % round})
    memories.commit(2, {"b": b"b"})
    if resumed:
        memories = Memories(memories.folder)
        memories.forget_after(7)
    memories.prune(5)
    assert files(memories) == ["a@000005.mem", "a@000007.mem", "b@000002.mem"]
    memories.prune(6)
    assert memories.read("a", 6) == (5, b"5")
    memories.prune(7)
    assert files(memories) == ["a@000007.mem", "b@000002.mem"]
    assert memories.read("a") == (7, b"7")


def listings(monkeypatch):
    """Every folder that is listed from now on."""
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: (listed.append(folder), listdir(folder))[1])
    return listed


def test_reads_do_not_list_a_folder_again(memories, monkeypatch):
    memories.commit(0, {"a": b"0"})
    memories.read("b")
    listed = listings(monkeypatch)
    for round in range(1, 10):
        assert memories.read("a") is not None
        assert memories.read("b") is None
        memories.commit(round, {"a": b"x"})
        memories.prune(round)
    assert listed == []


def test_pruning_looks_only_at_clients_with_more_than_one_version(memories, monkeypatch):
    memories.commit(0, {f"c{number}": b"" for number in range(300)})
    memories.commit(1, {"c7": b""})
    resumed = Memories(memories.folder)
    resumed.forget_after(1)
    looked_at = []
    shard_of = module._shard_of
    monkeypatch.setattr(module, "_shard_of", lambda name: (looked_at.append(name), shard_of(name))[1])
    resumed.prune(1)
    assert set(looked_at) == {"c7"}
    assert len(files(memories)) == 300


def test_what_is_kept_in_mind_is_bounded_and_forgetting_it_changes_nothing(memories, monkeypatch):
    monkeypatch.setattr(module, "_SHARDS_CACHED", 2)
    for round in (1, 2):
        memories.commit(round, {f"c{number}": b"%d" % number for number in range(50)})
    assert len(memories._shards) == 2
    assert [memories.read(f"c{number}", 1) for number in range(50)] == [(1, b"%d" % number) for number in range(50)]
    memories.prune(2)
    assert len(files(memories)) == 50


ODD = ["", ".", "..", "../../x", "/etc/passwd", "a b", "Zoë", "ZOË", "a@000001", "A", "a", "%41", "con", "x~y",
       "new\nline", "zero\0", "lone \ud800", "ü" * 300, "ü" * 299 + "u", ".potluck-a.part"]  # fmt: skip


def test_any_text_can_be_a_clients_id(memories):
    memories.commit(1, {client: client.encode("utf-8", "surrogatepass") for client in ODD})
    for reader in (memories, Memories(memories.folder)):
        assert sorted(reader.clients()) == sorted(ODD)
        for client in ODD:
            assert reader.read(client) == (1, client.encode("utf-8", "surrogatepass"))
    assert remove_partial_files(memories.folder) == 0


def test_file_names_differ_even_where_upper_and_lower_case_are_the_same(memories):
    memories.commit(1, dict.fromkeys(ODD, b""))
    assert len({path.lower() for path in files(memories)}) == len(ODD)
    assert all(len(path) <= 255 and path.isascii() for path in files(memories))


def test_clients_are_spread_over_many_folders(memories):
    memories.commit(1, {f"c{number}": b"" for number in range(500)})
    sizes = [len(list(shard.iterdir())) for shard in memories.folder.iterdir()]
    assert sum(sizes) == 500
    assert len(sizes) > 400
    assert max(sizes) <= 5


def test_a_commit_of_more_files_than_may_be_open_at_once_works(memories, start):
    program = """
import resource, sys
from pathlib import Path
from potluck.ledger import Memories
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
Memories(Path(sys.argv[1])).commit(4, {str(n): b"%d" % n for n in range(300)})
"""
    assert start(memories.folder, program=program).communicate() == ("", "")
    assert Memories(memories.folder).read("299") == (4, b"299")


def test_a_damaged_memory_is_never_handed_out(memories):
    memories.commit(1, {"a": b"one"})
    memories.commit(2, {"a": b"two"})
    (path,) = memories.folder.rglob("a@000002.mem")
    path.write_bytes(path.read_bytes()[:-1] + b"0")
    with pytest.raises(CheckpointError, match=r"a@000002.mem: the memory of client 'a' .* checksum does not match"):
        memories.read("a")
    assert memories.read("a", 1) == (1, b"one")


def test_a_memory_under_another_clients_name_is_never_handed_out(memories):
    memories.commit(1, {"a": b"one", "b": b"one"})
    (a,), (b,) = memories.folder.rglob("a@*"), memories.folder.rglob("b@*")
    b.write_bytes(a.read_bytes())
    with pytest.raises(CheckpointError, match="it says client 'a' where 'b' should be"):
        memories.read("b")


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_older_memories_and_the_commit_can_be_tried_again(step, memories, full_disk):
    memories.commit(1, {"a": b"one"})
    make_room = full_disk(step)
    with pytest.raises(FolderError, match=r"a@000002.mem: cannot write .* bytes: No space left on device"):
        memories.commit(2, {"a": b"two", "b": b"two"})
    make_room()
    assert files(memories) == ["a@000001.mem"]
    assert memories.read("a") == (1, b"one")
    memories.commit(2, {"a": b"two", "b": b"two"})
    assert memories.read("b") == (2, b"two")
    assert remove_partial_files(memories.folder) == 0


def test_a_commit_of_nothing_makes_nothing(memories):
    memories.commit(1, {})
    assert not memories.folder.exists()


def test_after_a_commit_that_failed_half_way_what_it_left_can_be_forgotten(memories, monkeypatch):
    memories.commit(1, {"a": b"one"})
    replace, calls = os.replace, []

    def fail_the_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_the_second)
    with pytest.raises(FolderError, match=r"b@000002.mem: cannot write .* bytes: Input/output error"):
        memories.commit(2, {"a": b"two", "b": b"two"})
    assert files(memories) == ["a@000001.mem", "a@000002.mem"]
    memories.forget_after(1)
    assert files(memories) == ["a@000001.mem"]
    assert memories.read("a") == (1, b"one")


def test_memories_and_their_names_are_on_the_disk_when_the_commit_returns(memories, monkeypatch):
    memories.commit(1, {"a": b"one", "b": b"one"})
    steps = []
    for step in ("write", "fsync", "replace"):
        original = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *a, step=step, original=original: (steps.append(step), original(*a))[1])
    memories.commit(2, {"a": b"two", "b": b"two"})
    # A head and a payload each; both files; both names; their two shards and the folder of all shards.
    assert steps == ["write"] * 4 + ["fsync"] * 2 + ["replace"] * 2 + ["fsync"] * 3
