import os

import pytest

from potluck.ledger import CheckpointError, FolderError, Memories, remove_partial_files
from potluck.ledger import memories as module
from potluck.ledger.files import pack_with_checksum


@pytest.fixture
def memories(tmp_path):
    return Memories(tmp_path / "memory")


def files(memories):
    return sorted(path.name for path in memories.folder.rglob("*") if path.is_file())


def pack_of(memories, round):
    return memories.folder / f"round-{round:06d}.pack"


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
    assert memories.totals() == (1, 1)
    memories.commit(1, {"b": b"third"})
    for reader in (memories, Memories(memories.folder)):
        assert reader.read("a") == (1, b"second")
        assert reader.read("b") == (1, b"third")
        assert reader.totals() == (2, 2)
    assert files(memories) == ["round-000001.pack"]


def test_the_memories_of_a_round_are_one_file(memories):
    memories.commit(1, {f"c{number}": b"%d" % number for number in range(300)})
    assert files(memories) == ["round-000001.pack"]
    assert Memories(memories.folder).read("c299") == (1, b"299")


def test_the_totals_count_clients_and_sum_their_newest_versions(memories):
    assert memories.totals() == (0, 0)
    memories.commit(2, {"a": b"", "b": b""})
    memories.commit(5, {"b": b"", "c": b""})
    for reader in (memories, Memories(memories.folder)):
        assert reader.totals() == (3, 2 + 5 + 5)
        assert reader.totals(up_to=4) == (2, 2 + 2)
        assert reader.totals(up_to=1) == (0, 0)
    memories.forget_after(4)
    assert memories.totals() == (2, 4)


def test_versions_after_a_round_are_forgotten(memories):
    memories.commit(1, {"a": b"a1", "b": b"b1"})
    memories.commit(2, {"a": b"a2", "c": b"c2"})
    for forgetful in (Memories(memories.folder), memories):
        forgetful.forget_after(1)
        assert forgetful.read("a") == (1, b"a1")
        assert forgetful.read("b") == (1, b"b1")
        assert forgetful.read("c") is None
        assert sorted(forgetful.clients()) == ["a", "b"]
    assert files(memories) == ["round-000001.pack"]
    memories.forget_after(-1)
    assert files(memories) == []


@pytest.mark.parametrize("resumed", [False, True])
def test_pruning_keeps_what_the_oldest_checkpoint_needs_and_everything_newer(resumed, memories):
    memories.commit(1, {"a": b"1"})
    memories.commit(2, {"b": b"b"})
    for round in (3, 5, 7):
        memories.commit(round, {"a": b"%d" % round})
    if resumed:
        memories = Memories(memories.folder)
        memories.forget_after(7)
    memories.prune(5)
    assert files(memories) == [f"round-00000{round}.pack" for round in (2, 5, 7)]
    memories.prune(6)
    assert memories.read("a", 6) == (5, b"5")
    memories.prune(7)
    assert files(memories) == ["round-000002.pack", "round-000007.pack"]
    assert memories.read("a") == (7, b"7")
    assert memories.read("b") == (2, b"b")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_pack_that_is_mostly_waste_is_written_anew(resumed, memories):
    memories.commit(0, {"a": bytes(1000), "b": b"kept", "c": bytes(100)})
    memories.commit(1, {"a": bytes(1000)})
    if resumed:
        memories = Memories(memories.folder)
    before = pack_of(memories, 0).stat().st_size
    memories.prune(1)
    assert files(memories) == ["round-000000.pack", "round-000001.pack"]
    assert pack_of(memories, 0).stat().st_size < before - 1000
    for reader in (memories, Memories(memories.folder)):
        assert reader.read("b") == (0, b"kept")
        assert reader.read("c") == (0, bytes(100))
        assert reader.read("a") == (1, bytes(1000))
        assert reader.read("a", 0) is None
        assert reader.totals() == (3, 1)


@pytest.mark.parametrize("resumed", [False, True])
def test_many_old_packs_are_merged_and_every_memory_stays(resumed, memories, monkeypatch):
    monkeypatch.setattr(module, "MOST_OLD_PACKS", 4)
    wanted = {}
    for round in range(60):
        staged = {f"c{(round * 7 + number) % 50}": f"{round} {number}".encode() for number in range(10)}
        wanted |= {client: (round, payload) for client, payload in staged.items()}
        memories.commit(round, staged)
        memories.prune(round - 1)
        if resumed and round % 7 == 0:
            memories = Memories(memories.folder)
            memories.forget_after(round)
            memories.prune(round - 1)
        assert len(files(memories)) <= 4 + 1
        assert {client: memories.read(client) for client in wanted} == wanted
    assert sorted(memories.clients()) == sorted(wanted)
    assert memories.totals() == Memories(memories.folder).totals() == (50, sum(round for round, _ in wanted.values()))


def test_the_disk_holds_at_most_twice_what_is_needed(memories):
    for round in range(50):
        memories.commit(round, {f"c{(round * 31 + number) % 100}": bytes(1000) for number in range(20)})
        memories.prune(round)
    held = sum(path.stat().st_size for path in memories.folder.iterdir())
    assert 100 * 1000 <= held < 2 * 100 * 1300  # some bytes of header and index each


def test_what_a_kill_in_the_middle_of_a_merge_leaves_twice_is_removed_at_the_next_pruning(memories, monkeypatch):
    monkeypatch.setattr(module, "MOST_OLD_PACKS", 1)
    memories.commit(1, {"a": b"1", "b": b"1"})
    memories.commit(2, {"b": b"2", "c": b"2"})
    older = pack_of(memories, 1).read_bytes()
    memories.prune(2)
    assert files(memories) == ["round-000002.pack"]
    pack_of(memories, 1).write_bytes(older)
    resumed = Memories(memories.folder)
    assert resumed.totals(2) == (3, 1 + 2 + 2)
    resumed.prune(2)
    assert files(memories) == ["round-000002.pack"]
    assert [resumed.read(client) for client in "abc"] == [(1, b"1"), (2, b"2"), (2, b"2")]


def test_reads_and_commits_list_the_folder_once(memories, monkeypatch):
    memories.commit(0, {"a": b"0"})
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: (listed.append(folder), listdir(folder))[1])
    for round in range(1, 10):
        assert memories.read("a") is not None
        assert memories.read("b") is None
        memories.commit(round, {"a": b"x"})
        memories.prune(round)
    assert listed == []


ODD = ["", ".", "..", "../../x", "/etc/passwd", "a b", "Zoë", "ZOË", "a@000001", "A", "a", "%41", "con", "x~y",
       "new\nline", "zero\0", "lone \ud800", "ü" * 300, "ü" * 299 + "u", ".potluck-a.part"]  # fmt: skip


def test_any_text_can_be_a_clients_id(memories):
    memories.commit(1, {client: client.encode("utf-8", "surrogatepass") for client in ODD})
    for reader in (memories, Memories(memories.folder)):
        assert sorted(reader.clients()) == sorted(ODD)
        for client in ODD:
            assert reader.read(client) == (1, client.encode("utf-8", "surrogatepass"))
    assert remove_partial_files(memories.folder) == 0


def test_a_damaged_memory_is_never_handed_out(memories):
    memories.commit(1, {"a": b"one", "b": b"one"})
    memories.commit(2, {"a": b"two"})
    path = pack_of(memories, 2)
    path.write_bytes(path.read_bytes()[:-1] + b"0")
    with pytest.raises(CheckpointError, match=r"000002.pack: the memory of client 'a' .* checksum does not match"):
        memories.read("a")
    assert memories.read("a", 1) == (1, b"one")
    assert memories.read("b") == (1, b"one")


def test_no_flip_of_a_bit_in_any_byte_of_a_pack_goes_unnoticed(memories):
    memories.commit(1, {"a": b"one"})
    path = pack_of(memories, 1)
    sound = path.read_bytes()
    for at in range(len(sound)):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            Memories(memories.folder).read("a")


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -40])
def test_a_pack_that_was_cut_is_named(cut, memories):
    memories.commit(1, {"a": bytes(50), "b": bytes(50)})
    path = pack_of(memories, 1)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"round-000001.pack: it cannot be used: .* Restore the file") as caught:
        Memories(memories.folder).totals()
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("record", [(2**63, 10), (2**64 - 1, 2**64 - 1), (0, 2**40)])
def test_an_index_with_a_valid_checksum_that_points_nowhere_costs_nothing(record, memories):
    memories.folder.mkdir()
    index = module._RECORD.pack(module._key("a"), 1, *record)
    pieces = pack_with_checksum(index, kind="memories", round=1, memories=3)
    pack_of(memories, 1).write_bytes(b"".join(pieces) + b"abc")
    for use in (lambda: memories.read("a"), lambda: list(memories.clients())):
        with pytest.raises(CheckpointError, match="its index is damaged"):
            use()


def test_a_memory_under_another_clients_name_is_never_handed_out(memories):
    memories.folder.mkdir()
    memory = b"".join(pack_with_checksum(b"one", kind="memory", client="a", version=1))
    index = module._RECORD.pack(module._key("b"), 1, 0, len(memory))
    pieces = pack_with_checksum(index, kind="memories", round=1, memories=len(memory))
    pack_of(memories, 1).write_bytes(b"".join(pieces) + memory)
    with pytest.raises(CheckpointError, match="it says client 'a' where 'b' should be"):
        memories.read("b")
    with pytest.raises(CheckpointError, match="its index names another client"):
        list(memories.clients())


def test_a_damaged_memory_does_not_stop_a_merge_and_is_noticed_when_it_is_read(memories, monkeypatch):
    monkeypatch.setattr(module, "MOST_OLD_PACKS", 1)
    memories.commit(1, {"a": b"one"})
    memories.commit(2, {"b": b"two"})
    path = pack_of(memories, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"0")
    memories.prune(2)
    assert files(memories) == ["round-000002.pack"]
    assert memories.read("b") == (2, b"two")
    with pytest.raises(CheckpointError, match="the memory of client 'a' cannot be used: its checksum does not match"):
        memories.read("a")


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_older_memories_and_the_commit_can_be_tried_again(step, memories, full_disk):
    memories.commit(1, {"a": b"one"})
    make_room = full_disk(step)
    with pytest.raises(FolderError, match=r"round-000002.pack: cannot write .* bytes: No space left on device"):
        memories.commit(2, {"a": b"two", "b": b"two"})
    make_room()
    assert files(memories) == ["round-000001.pack"]
    assert memories.read("a") == (1, b"one")
    assert memories.totals() == (1, 1)
    memories.commit(2, {"a": b"two", "b": b"two"})
    assert memories.read("b") == (2, b"two")
    assert memories.totals() == (2, 4)
    assert remove_partial_files(memories.folder) == 0


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_during_a_merge_loses_nothing(step, memories, full_disk, monkeypatch):
    monkeypatch.setattr(module, "MOST_OLD_PACKS", 1)
    memories.commit(1, {"a": b"one"})
    memories.commit(2, {"b": b"two"})
    make_room = full_disk(step)
    with pytest.raises(FolderError, match="No space left on device"):
        memories.prune(2)
    make_room()
    for reader in (memories, Memories(memories.folder)):
        assert (reader.read("a"), reader.read("b")) == ((1, b"one"), (2, b"two"))


def test_a_commit_of_nothing_makes_nothing(memories):
    memories.commit(1, {})
    assert not memories.folder.exists()


def test_files_that_are_not_packs_are_left_alone(memories):
    memories.commit(1, {"a": b"one"})
    for name in ("notes.txt", "round-2.pack", "round-0000003.pack"):
        (memories.folder / name).write_bytes(b"")
    resumed = Memories(memories.folder)
    resumed.forget_after(1)
    resumed.prune(1)
    assert resumed.read("a") == (1, b"one")
    assert len(files(memories)) == 4


def test_memories_and_their_name_are_on_the_disk_when_the_commit_returns(memories, monkeypatch):
    memories.commit(1, {"a": b"one", "b": b"one"})
    steps = []
    for step in ("write", "fsync", "replace"):
        original = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *a, step=step, original=original: (steps.append(step), original(*a))[1])
    memories.commit(2, {"a": b"two", "b": b"two"})
    assert steps == ["write", "fsync", "replace", "fsync"]  # the file, its name, the folder
