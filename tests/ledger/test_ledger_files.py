import os

import pytest

from potluck.ledger import Checkpoints, FolderError, remove_partial_files, write_atomically


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a"
    write_atomically(path, b"old and longer")
    write_atomically(path, b"n", b"", b"ew")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_taken_in_small_bites_is_still_complete(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_atomically(tmp_path / "a", b"0123456789", b"abcd")
    assert (tmp_path / "a").read_bytes() == b"0123456789abcd"


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    steps = []
    for step in ("write", "fsync", "replace"):
        original = getattr(os, step)
        monkeypatch.setattr(os, step, lambda *a, step=step, original=original: (steps.append(step), original(*a))[1])
    write_atomically(tmp_path / "a", b"x")
    assert steps == ["write", "fsync", "replace", "fsync"]


def test_leftovers_are_swept_and_nothing_else(tmp_path):
    for name in (".potluck-0123456789abcdef.part", "a", ".hidden", ".potluck-notes"):
        (tmp_path / name).write_bytes(b"")
    assert remove_partial_files(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == [".hidden", ".potluck-notes", "a"]
    assert remove_partial_files(tmp_path / "not there") == 0


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_old_checkpoint_and_names_path_and_bytes(step, tmp_path, full_disk):
    checkpoints = Checkpoints(tmp_path, mark="mine")
    old = checkpoints.write(1, b"one").read_bytes()
    make_room = full_disk(step)
    with pytest.raises(FolderError) as caught:
        checkpoints.write(2, b"x" * 1000)
    make_room()
    facts = b'{"schema":2,"kind":"checkpoint","round":2,"mark":"mine","needs":{},"bytes":1000,"sha256":"'
    head = len(facts) + 64 + len(b'"}\n')
    path = tmp_path / "round-000002.ckpt"
    assert str(caught.value) == (
        f"{path}: cannot write {head + 1000} bytes: No space left on device. Make room on the disk and try again."
    )
    assert caught.value.exit_code == 6
    assert os.listdir(tmp_path) == ["round-000001.ckpt"]
    assert (tmp_path / "round-000001.ckpt").read_bytes() == old
    checkpoints.write(2, b"x" * 1000)
    assert checkpoints.latest(pytest.fail) == (2, b"x" * 1000)


def test_a_real_limit_on_file_sizes_keeps_the_old_checkpoint(start, tmp_path):
    program = """
import resource, sys
from pathlib import Path
from potluck.ledger import Checkpoints, FolderError
checkpoints = Checkpoints(Path(sys.argv[1]), mark="mine")
checkpoints.write(1, b"one")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
try:
    checkpoints.write(2, b"x" * 100_000)
except FolderError as fault:
    print(fault.exit_code, fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(checkpoints.latest(print), checkpoints.write(2, b"x" * 100_000).name, checkpoints.rounds())
"""
    out, err = start(tmp_path, program=program).communicate()
    assert err == ""
    fault, after = out.splitlines()
    assert fault.startswith(f"6 {tmp_path}/round-000002.ckpt: cannot write 100")
    assert "File too large" in fault
    assert after == "(1, b'one') round-000002.ckpt [1, 2]"
    assert sorted(os.listdir(tmp_path)) == ["round-000001.ckpt", "round-000002.ckpt"]


def test_an_interrupt_in_the_middle_of_a_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"x")
    assert os.listdir(tmp_path) == []


def test_a_name_of_255_bytes_can_be_written_and_one_of_256_is_refused(tmp_path):
    write_atomically(tmp_path / ("n" * 255), b"x")
    with pytest.raises(FolderError, match=r"File name too long. Choose a shorter path.$"):
        write_atomically(tmp_path / ("n" * 256), b"x")
    assert os.listdir(tmp_path) == ["n" * 255]


def test_errors_stay_on_one_line_whatever_the_path(tmp_path):
    with pytest.raises(FolderError) as caught:
        write_atomically(tmp_path / "no\nsuch" / "a", b"x")
    assert "\n" not in str(caught.value)
    with pytest.raises(FolderError, match="not a possible path"):
        write_atomically(tmp_path / "zero\0byte", b"x")
