"""The memory that stays with a node: versions, receipts, and which of them the server may still name."""

import torch

from potluck.federation.node_memory import NodeMemory


def memory(tmp_path):
    return NodeMemory(tmp_path / "memory")


def rounds(kept):
    return sorted(version.round for version in kept._versions())


def test_a_receipt_is_small_and_gives_the_memory_back(tmp_path):
    kept = memory(tmp_path)
    receipt = kept.save(3, {"control": torch.arange(1000.0), "seen": 2}, "small")
    assert set(receipt) == {"sha256", "bytes", "tier"}
    assert len(str(receipt)) < 300
    found = NodeMemory(tmp_path / "memory").load(receipt, "small")
    assert found["control"].tolist() == list(range(1000))
    assert found["seen"] == 2


def test_the_memory_of_another_tier_is_not_used(tmp_path):
    kept = memory(tmp_path)
    receipt = kept.save(3, {"seen": 2}, "large")
    assert kept.load(receipt, "small") is None
    assert kept.load(receipt | {"tier": "small"}, "large") is None


def test_a_memory_that_is_lost_or_damaged_is_none(tmp_path):
    kept = memory(tmp_path)
    receipt = kept.save(3, {"seen": 2}, "small")
    (path,) = kept.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert kept.load(receipt, "small") is None
    path.unlink()
    assert kept.load(receipt, "small") is None
    assert kept.load({"sha256": "../../etc/passwd", "tier": "small"}, "small") is None


def chain(kept, count):
    """Versions of rounds 0 to count - 1, each made from the one before."""
    names = [""]
    for round in range(count):
        names.append(kept.save(round, {"round": round}, "small", names[-1])["sha256"])
    return names[1:]


def test_versions_as_far_back_as_the_oldest_checkpoint_are_kept(tmp_path):
    kept = memory(tmp_path)
    names = chain(kept, 8)
    kept.prune(names[6], 7, 5)  # a task of round 7 names what round 6 wrote; the oldest checkpoint has 5 rounds
    assert rounds(kept) == [4, 5, 6, 7]  # round 4 wrote what that checkpoint names


def test_without_a_checkpoint_everything_is_kept(tmp_path):
    kept = memory(tmp_path)
    names = chain(kept, 4)
    kept.prune(names[3], 4, 0)
    assert rounds(kept) == [0, 1, 2, 3]


def test_a_version_that_the_server_never_took_does_not_push_out_one_that_it_may_name(tmp_path):
    kept = memory(tmp_path)
    names = chain(kept, 2)
    for round in (5, 6):  # written in rounds that the server lost when it was killed
        kept.save(round, {"round": f"{round}, lost"}, "small", names[1])
    kept.prune(names[1], 8, 8)
    assert rounds(kept) == [1]
    assert kept.load({"sha256": names[1], "tier": "small"}, "small") == {"round": 1}


def test_after_the_server_went_back_the_versions_of_its_lost_future_go(tmp_path):
    kept = memory(tmp_path)
    names = chain(kept, 6)
    kept.prune(names[2], 3, 2)  # round 3 again, from what round 2 wrote
    assert rounds(kept) == [1, 2, 3]  # what round 3 wrote stays: another task of this round may have written it


def test_if_the_version_that_a_task_names_is_not_here_nothing_is_removed(tmp_path):
    kept = memory(tmp_path)
    chain(kept, 3)
    kept.prune("f" * 64, 9, 9)
    assert rounds(kept) == [0, 1, 2]


def test_versions_that_no_task_ever_names_do_not_pile_up(tmp_path):
    kept = memory(tmp_path)
    for round in range(20):
        kept.prune("", round, max(0, round - 2))
        kept.save(round, {"round": round}, "small")
    assert rounds(kept) == [17, 18, 19]


def test_a_version_that_an_export_needs_stays(tmp_path):
    kept = memory(tmp_path)
    names = chain(kept, 8)
    kept.prune(names[6], 7, 6, keep=[names[0]])
    assert rounds(kept) == [0, 5, 6, 7]
