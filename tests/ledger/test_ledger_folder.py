import errno
import json
import os
import shutil
import signal

import pytest

from potluck.ledger import (
    CheckpointError,
    DamagedRecord,
    FolderError,
    Lock,
    MissingRun,
    RunFolder,
    UnreadableSettings,
    lock,
    planned_rounds,
    read_journal,
    read_run,
)

HOST = os.uname().nodename


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "a"


def create(path, settings="seed = 1\n"):
    return RunFolder.create(path, settings, {"seed": 1, "host": "h"}, mark="mine", keep=2)


def snapshot(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_new_run_holds_its_settings_and_manifest(path):
    with create(path) as folder:
        assert folder.settings() == "seed = 1\n"
        assert folder.manifest() == {"seed": 1, "host": "h", "schema": 2, "mark": "mine", "keep": 2}
    assert sorted(os.listdir(path)) == ["lock", "manifest.json", "settings.toml"]
    assert (path / "lock").read_bytes() == b""


def test_the_manifest_can_be_added_to_but_the_mark_is_fixed(path):
    with create(path) as folder:
        folder.update_manifest(finished=True, seed=2)
        assert folder.manifest()["finished"] is True
        with pytest.raises(ValueError, match="'mark' is fixed"):
            folder.update_manifest(mark="other")
    with RunFolder.open(path) as folder:
        assert folder.mark == "mine"
        assert folder.checkpoints.keep == 2
        assert folder.manifest()["seed"] == 2


def test_a_run_is_never_created_over_another(path):
    with create(path) as folder:
        folder.commit(0, b"zero")
    before = snapshot(path)
    with pytest.raises(FolderError) as caught:
        create(path)
    assert str(caught.value) == (
        f"{path} already holds a run (manifest.json). Use `potluck resume {path}`, or another --out."
    )
    assert caught.value.exit_code == 6
    assert snapshot(path) == before


def test_checkpoints_without_a_manifest_are_not_overwritten_either(path):
    (path / "checkpoints").mkdir(parents=True)
    with pytest.raises(FolderError, match="already holds a run \\(checkpoints\\)"):
        create(path)


def test_somebody_elses_settings_are_not_overwritten(path):
    path.mkdir(parents=True)
    (path / "settings.toml").write_text("mine = true\n")
    with pytest.raises(FolderError, match=r"settings.toml exists and is not this run's"):
        create(path)
    assert (path / "settings.toml").read_text() == "mine = true\n"
    with create(path, "mine = true\n"):  # what a run that was killed while being created leaves behind
        pass


def test_a_folder_that_is_not_a_run_is_named_and_left_alone(tmp_path):
    for opener in (RunFolder.open, read_run):
        with pytest.raises(MissingRun, match="nowhere is not a run folder: there is no such folder") as caught:
            opener(tmp_path / "nowhere")
        with pytest.raises(MissingRun, match=r"it has no manifest.json. Check the path, or start a run"):
            opener(tmp_path)
    assert caught.value.exit_code == 3
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "no schema"),
        ('{"schema": 3}', "newer Potluck wrote it"),
        ('{"schema": 0}', "there is no schema 0"),
        ('{"schema": -1}', "there is no schema -1"),
        ('{"schema": true}', "no schema"),
        ('{"schema": 2}', "mark or keep is missing"),
        ('{"schema": 2, "mark": "m", "keep": 0}', "mark or keep is missing"),
    ],
)
def test_a_damaged_manifest_is_named(text, reason, path):
    create(path).close()
    (path / "manifest.json").write_text(text)
    for opener in (RunFolder.open, read_run):
        with pytest.raises(DamagedRecord, match=f"manifest.json.*{reason}") as caught:
            opener(path)
    assert caught.value.exit_code == 4


def test_a_run_of_an_older_schema_can_be_read_and_not_resumed(path):
    create(path).close()
    manifest = json.loads((path / "manifest.json").read_bytes()) | {"schema": 1}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert read_run(path).manifest["schema"] == 1
    with pytest.raises(DamagedRecord, match=r"an older Potluck wrote this run \(schema 1; this one resumes 2\)"):
        RunFolder.open(path)


@pytest.mark.parametrize("rounds", [None, -1, "5", True, 2.5, [], 1e400])
def test_a_manifest_whose_rounds_are_no_number_of_rounds_is_damaged(rounds, path):
    with pytest.raises(DamagedRecord, match="'rounds' is missing, or no number of rounds"):
        planned_rounds(path, {"rounds": rounds})
    assert planned_rounds(path, {"rounds": 0}) == 0


def test_settings_that_are_not_utf_8_end_with_2_and_say_the_line(path):
    create(path).close()
    for raw, said in (
        ("seed = 1\n".encode("utf-16"), "line 1: this is UTF-16"),
        (b"a = 1\nb = \xff", "line 2: this is"),
    ):
        (path / "settings.toml").write_bytes(raw)
        with pytest.raises(UnreadableSettings, match=f"settings.toml: {said}.*Save it as UTF-8") as caught:
            read_run(path)
        assert caught.value.exit_code == 2


def test_opening_sweeps_what_killed_writers_left(path):
    with create(path) as folder:
        folder.commit(0, b"", {"a": b""})
    for part in (path, path / "checkpoints", path / "memory"):
        (part / ".potluck-00.part").write_bytes(b"half")
    RunFolder.open(path).close()
    assert not list(path.rglob("*.part"))


def play(folder, rounds):
    for round in rounds:
        folder.journal.add(round=round, client="a")
        folder.scores.add(round=round, accuracy=0.5)
        folder.commit(round, b"state %d" % round, {"a": b"memory %d" % round})


def test_a_rewind_goes_back_to_the_last_commit_in_every_part(path):
    with create(path) as folder:
        play(folder, [0, 1])
        folder.journal.add(round=2, client="a")
        folder.memories.commit(2, {"a": b"memory 2", "b": b""})
    with RunFolder.open(path) as folder:
        assert folder.rewind(pytest.fail) == (1, b"state 1")
        assert [event["round"] for event in read_journal(path / "ledger.jsonl")] == [0, 1]
        assert folder.memories.read("a") == (1, b"memory 1")
        assert folder.memories.read("b") is None


def test_after_a_damaged_checkpoint_the_older_one_finds_its_own_memories(path, warnings_heard):
    with create(path) as folder:
        play(folder, range(6))
        (path / "checkpoints" / "round-000005.ckpt").write_bytes(b"")
    with RunFolder.open(path) as folder:
        assert folder.rewind(warnings_heard.append) == (4, b"state 4")
        assert folder.memories.read("a") == (4, b"memory 4")
        assert folder.journal.path.read_bytes().count(b"\n") == 5
        assert len(warnings_heard) == 1


def test_memories_are_kept_as_far_back_as_the_oldest_checkpoint(path):
    with create(path) as folder:
        play(folder, range(6))
        assert [folder.memories.read("a", round) for round in (3, 4, 5)] == [None, (4, b"memory 4"), (5, b"memory 5")]
    assert sorted(file.name for file in path.rglob("*.pack")) == ["round-000004.pack", "round-000005.pack"]


def test_if_no_checkpoint_is_valid_nothing_is_cut(path, warnings_heard):
    with create(path) as folder:
        play(folder, [0])
        (path / "checkpoints" / "round-000000.ckpt").write_bytes(b"")
        before = snapshot(path)
        with pytest.raises(CheckpointError):
            folder.rewind(warnings_heard.append)
        assert snapshot(path) == before


def remove_tree(folder):
    shutil.rmtree(folder)


def remove_files(folder):
    for file in folder.iterdir():
        file.unlink()


def remove_newest(folder):
    max(folder.iterdir()).unlink()


def empty_file(file):
    file.write_bytes(b"")


def shorten(file):
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))


LOSSES = [
    ("checkpoints", remove_tree, "checkpoints: the checkpoints of this run are missing"),
    ("checkpoints", remove_files, "checkpoints: the checkpoints of this run are missing"),
    ("memory", remove_tree, "memory: memories are missing: at the checkpoint of round 2, 4 clients had one; 0 of them"),
    ("memory", remove_files, "memory: memories are missing"),
    ("memory", remove_newest, "memory: memories are missing: .* 3 of them are there, or some only as older versions"),
    ("ledger.jsonl", os.unlink, r"ledger.jsonl: it holds 0 bytes, but the rounds up to .* round 2 wrote 75"),
    ("ledger.jsonl", empty_file, r"ledger.jsonl: it holds 0 bytes"),
    ("ledger.jsonl", shorten, r"ledger.jsonl: it holds 50 bytes"),
    ("scores.jsonl", empty_file, r"scores.jsonl: it holds 0 bytes"),
    ("settings.toml", os.unlink, r"settings.toml is missing"),
]


@pytest.mark.parametrize(("part", "lose", "said"), LOSSES, ids=[f"{lose.__name__} {part}" for part, lose, _ in LOSSES])
def test_a_lost_part_of_a_folder_ends_with_4_and_nothing_is_changed(part, lose, said, path):
    with create(path) as folder:
        for round in range(3):
            folder.journal.add(round=round, client="a")
            folder.scores.add(round=round, accuracy=0.5)
            folder.commit(round, b"state", {"a": b"memory", f"only in {round}": b"memory"})
    lose(path / part)
    before = snapshot(path)
    with pytest.raises((CheckpointError, DamagedRecord), match=said) as caught, RunFolder.open(path) as folder:
        folder.rewind(pytest.fail)
    assert caught.value.exit_code == 4
    assert "Restore it from a backup, or start a new run with another --out." in str(caught.value)
    assert snapshot(path) == before


def test_a_memory_that_is_only_there_in_an_older_version_is_missing(path):
    with create(path) as folder:
        for round in range(2):
            folder.commit(round, b"state", {"a": b"memory %d" % round})
    (path / "memory" / "round-000001.pack").unlink()
    with RunFolder.open(path) as folder, pytest.raises(CheckpointError, match="1 clients had one; 1 of them are there"):
        folder.rewind(pytest.fail)


def test_events_of_an_unfinished_round_that_are_dropped_twice_are_not_missed(path):
    """What a run writes that is interrupted in round 2, with a checkpoint only then, and killed after it resumed."""
    with create(path) as folder:
        folder.journal.add(round=1)
        folder.journal.add(round=2, text="a try that failed")
        folder.commit(1, b"one")
    for _ in range(2):
        with RunFolder.open(path) as folder:
            assert folder.rewind(pytest.fail) == (1, b"one")
            assert list(read_journal(path / "ledger.jsonl")) == [{"round": 1}]


@pytest.mark.parametrize("remade", [False, True])
def test_a_run_whose_folder_is_removed_stops_at_the_next_write(remade, path):
    folder = create(path)
    play(folder, [0])
    shutil.rmtree(path)
    if remade:
        create(path).close()
    folder.journal.add(round=1)
    for write in (
        lambda: folder.commit(1, b"one", {"a": b""}),
        lambda: folder.update_manifest(status="done"),
        lambda: folder.write_features({}),
    ):
        with pytest.raises(FolderError, match="was removed or replaced while the run was going on") as caught:
            write()
        assert caught.value.exit_code == 6
    assert path.exists() == remade
    assert not (path / "checkpoints").exists()


def test_a_lock_that_is_a_link_is_refused_and_its_target_left_alone(path, tmp_path):
    create(path).close()
    (tmp_path / "precious").write_text("precious")
    (path / "lock").unlink()
    (path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(DamagedRecord, match="lock: it is a symbolic link, not a file") as caught:
        RunFolder.open(path)
    assert caught.value.exit_code == 4
    assert (tmp_path / "precious").read_text() == "precious"
    (path / "lock").unlink()
    (path / "lock").symlink_to(tmp_path / "new")  # one that leads nowhere makes no file either
    with pytest.raises(DamagedRecord):
        RunFolder.open(path)
    assert not (tmp_path / "new").exists()


def as_link(file, elsewhere):
    elsewhere.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(elsewhere)


def as_pipe(file, _):
    file.unlink()
    os.mkfifo(file)


def as_folder(file, _):
    file.unlink()
    file.mkdir()


FILES = ["lock", "manifest.json", "settings.toml", "ledger.jsonl", "scores.jsonl", "checkpoints/round-000000.ckpt",
         "memory/round-000000.pack"]  # fmt: skip


@pytest.mark.parametrize("swap", [as_link, as_pipe, as_folder])
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_regular_file_is_neither_followed_nor_waited_for(name, swap, path, tmp_path, warnings_heard):
    with create(path) as folder:
        play(folder, [0])
    swap(path / name, tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes() if swap is as_link else b""

    def resume():
        with RunFolder.open(path) as folder:
            folder.settings()
            folder.rewind(warnings_heard.append)

    with pytest.raises((CheckpointError, DamagedRecord)) as caught:
        resume()
    assert caught.value.exit_code == 4
    kind = {"as_link": "a symbolic link", "as_pipe": "a pipe", "as_folder": "a folder"}[swap.__name__]
    said = " ".join([*warnings_heard, str(caught.value)])
    assert str(path / name) in said
    assert f"it is {kind}, not a file" in said
    assert swap is not as_link or (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["manifest.json", "settings.toml", "ledger.jsonl", "scores.jsonl", "features.json", "holdings.json"]
)
def test_a_reader_neither_follows_a_link_nor_waits_for_a_pipe(name, path):
    with RunFolder.create(path, "seed = 1\n", {"seed": 1}, mark="mine", holdings=b"{}\n") as folder:
        play(folder, [0])
        folder.write_features({})
    as_pipe(path / name, None)

    def read():
        run = read_run(path)
        return list(run.events()), run.features(), run.holdings()

    with pytest.raises(DamagedRecord, match=f"{name}: it is a pipe, not a file"):
        read()


@pytest.mark.parametrize("name", ["checkpoints", "memory"])
def test_a_link_in_place_of_a_folder_of_a_run_is_refused(name, path, tmp_path):
    with create(path) as folder:
        play(folder, [0])
    (path / name).rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / ".potluck-00.part").write_bytes(b"of another run")
    (path / name).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    with pytest.raises(DamagedRecord, match=f"{name}: it is a symbolic link, not a folder") as caught:
        RunFolder.open(path)
    assert caught.value.exit_code == 4
    assert snapshot(tmp_path / "elsewhere") == before


def test_a_run_that_never_committed_starts_from_the_beginning(path):
    with create(path) as folder:
        folder.journal.add(round=0)
        folder.memories.commit(0, {"a": b""})
    with RunFolder.open(path) as folder:
        assert folder.rewind(pytest.fail) is None
        assert list(read_journal(path / "ledger.jsonl")) == []
        assert folder.memories.read("a") is None


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_commit_on_a_full_disk_fails_whole_and_the_run_can_go_on_later(step, path, full_disk):
    with create(path) as folder:
        play(folder, [0])
        make_room = full_disk(step)
        with pytest.raises(FolderError, match="No space left"):
            play(folder, [1])
        make_room()
    with RunFolder.open(path) as folder:
        assert folder.rewind(pytest.fail) == (0, b"state 0")
        play(folder, [1])
        assert [event["round"] for event in read_journal(path / "ledger.jsonl")] == [0, 1]
        assert [event["round"] for event in read_journal(path / "scores.jsonl")] == [0, 1]


def test_on_the_way_out_of_an_error_a_full_disk_neither_hides_it_nor_keeps_the_lock(path, full_disk):
    folder = create(path)
    folder.journal.add(round=0)
    make_room = full_disk("write")
    with pytest.raises(KeyboardInterrupt), folder:
        raise KeyboardInterrupt
    make_room()
    RunFolder.open(path).close()


def test_a_full_disk_is_told_when_a_run_is_closed(path, full_disk):
    folder = create(path)
    folder.journal.add(round=0)
    full_disk("write")
    with pytest.raises(FolderError, match="cannot add 12 bytes"):
        folder.close()


def test_a_run_in_progress_can_be_read_without_its_lock(path):
    with create(path) as folder:
        play(folder, [0, 1])
        with open(path / "scores.jsonl", "ab") as file:
            file.write(b'{"round":2')
        run = read_run(path)
        assert run.settings == "seed = 1\n"
        assert run.manifest["seed"] == 1
        assert run.scores == [{"round": 0, "accuracy": 0.5}, {"round": 1, "accuracy": 0.5}]
        assert list(run.events()) == list(run.events()) == [{"round": 0, "client": "a"}, {"round": 1, "client": "a"}]


def test_a_run_that_has_only_begun_can_be_read(path):
    with create(path):
        assert read_run(path).scores == []
        assert list(read_run(path).events()) == []


def test_a_second_process_is_refused_with_pid_and_host_of_the_first(path, start):
    create(path).close()
    holder = start("hold", path)
    assert holder.stdout.readline() == f"{holder.pid}\n"
    before = snapshot(path)
    for second in (RunFolder.open, create):
        with pytest.raises(FolderError) as caught:
            second(path)
        assert str(caught.value) == (
            f"{path} is in use by process {holder.pid} on host {HOST}; wait for it or choose another --out."
        )
        assert caught.value.exit_code == 6
    assert snapshot(path) == before
    assert holder.communicate("")[1] == ""
    RunFolder.open(path).close()


def test_a_second_opening_in_the_same_process_is_refused_too(path):
    with create(path), pytest.raises(FolderError, match=f"in use by process {os.getpid()} on host"):
        RunFolder.open(path)
    RunFolder.open(path).close()


def test_the_lock_of_a_killed_process_is_recovered(path, start):
    create(path).close()
    holder = start("hold", path)
    holder.stdout.readline()
    holder.kill()
    assert holder.wait() == -signal.SIGKILL
    assert json.loads((path / "lock").read_bytes()) == {"pid": holder.pid, "host": HOST}
    RunFolder.open(path).close()


def test_a_worker_that_outlives_its_killed_run_does_not_hold_the_folder(path, start):
    create(path).close()
    holder = start("hold", path, "--fork")
    worker = int(holder.stdout.readline())
    with pytest.raises(FolderError, match=f"in use by process {holder.pid} "):
        RunFolder.open(path)
    holder.kill()
    holder.wait()
    os.kill(worker, 0)  # still there
    RunFolder.open(path).close()


def test_a_lock_that_was_released_twice_is_free_once(path):
    folder = create(path)
    folder.close()
    with RunFolder.open(path):
        folder.close()
        with pytest.raises(FolderError):
            RunFolder.open(path)


@pytest.fixture
def without_kernel_locks(monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)


@pytest.mark.usefixtures("without_kernel_locks")
def test_without_kernel_locks_the_file_is_the_lock(tmp_path, start):
    path = tmp_path / "lock"
    held = Lock(path)
    with pytest.raises(FolderError, match=f"in use by process {os.getpid()} on host"):
        Lock(path)
    held.release()
    assert not path.exists()
    dead = start(program="")
    dead.wait()
    for text in ("", "nonsense", "[]", json.dumps({"pid": dead.pid, "host": HOST}), '{"pid": 10}'[:5]):
        path.write_text(text)
        Lock(path).release()
        assert not path.exists()


def test_on_a_file_system_without_kernel_locks_the_file_is_the_lock_as_well(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with create(path), pytest.raises(FolderError, match=f"in use by process {os.getpid()} on host"):
        RunFolder.open(path)
    RunFolder.open(path).close()


@pytest.mark.usefixtures("without_kernel_locks")
def test_without_kernel_locks_a_living_process_or_another_host_is_believed(tmp_path, start):
    path = tmp_path / "lock"
    living = start(program="input()")
    for owner in ({"pid": living.pid, "host": HOST}, {"pid": 1, "host": HOST}, {"pid": living.pid, "host": "far"}):
        path.write_text(json.dumps(owner))
        with pytest.raises(FolderError, match=f"process {owner['pid']} on host {owner['host']}.*if that one is gone"):
            Lock(path)
    path.write_text(json.dumps({"pid": os.getpid(), "host": HOST}))  # our number, in an earlier life
    Lock(path).release()


@pytest.mark.parametrize("name", ["with spaces", "naïve 中文 🍲", "n" * 255, "ü" * 127, "-rf", "a\nb", "%s{}"])
def test_a_run_can_live_under_any_name(name, tmp_path):
    with create(tmp_path / name / name) as folder:
        play(folder, [0])
    with RunFolder.open(tmp_path / name / name) as folder:
        assert folder.rewind(pytest.fail) == (0, b"state 0")


@pytest.mark.parametrize("name", ["n" * 256, "ü" * 128, "zero\0byte", "/".join(["d" * 200] * 30), "lone \ud800"])
def test_an_impossible_name_is_refused_in_one_line(name, tmp_path):
    with pytest.raises(FolderError) as caught:
        create(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert os.listdir(tmp_path) in ([], ["d" * 200])


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FolderError, match=r"cannot make the folder.*Choose another path"):
            create(path)
        with pytest.raises(MissingRun):
            RunFolder.open(path)


def test_a_read_only_folder_can_be_read_and_not_written(path, start):
    with create(path) as folder:
        play(folder, [0])
    (path.parent / "empty").mkdir()
    program = """
import os
from pathlib import Path
from potluck.ledger import FolderError, RunFolder, read_run
if os.getuid() == 0:  # whom no mode keeps out
    os.setgid(65534)
    os.setuid(65534)
for attempt in (
    lambda: RunFolder.open(Path("a")),
    lambda: RunFolder.create(Path("empty"), "", {}, "mine", 2),
    lambda: RunFolder.create(Path("new"), "", {}, "mine", 2),
):
    try:
        attempt()
    except FolderError as fault:
        print(fault.exit_code, fault)
print(len(read_run(Path("a")).scores))
"""
    for folder in (path, path.parent / "empty", path.parent):
        folder.chmod(0o555)
    (path / "lock").chmod(0o444)
    out, err = start(program=program, cwd=path.parent).communicate()
    for folder in (path, path.parent / "empty", path.parent):
        folder.chmod(0o755)
    if "setgid" in err or "setuid" in err:
        pytest.skip("this root may not become another user")
    remedy = "Permission denied. Check who owns it and who may write there, or choose another path."
    assert (out.splitlines(), err) == (
        [
            f"6 a/lock: cannot lock the folder: {remedy}",
            f"6 empty/lock: cannot lock the folder: {remedy}",
            f"6 new: cannot make the folder: {remedy}",
            "1",
        ],
        "",
    )
