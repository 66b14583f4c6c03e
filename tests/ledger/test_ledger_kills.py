"""Real processes, killed with SIGKILL (cases 1 and 16 of the faults that must be survived)."""

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
from ledger_life import CLIENTS, ROUNDS, live, state

from potluck.ledger import Checkpoints, Memories, RunFolder, read_journal, remove_partial_files


def verified_rounds(folder):
    """The rounds of the visible checkpoints, every one of which must verify and hold what was written."""
    for path in folder.glob("*.ckpt"):
        round = int(path.stem.removeprefix("round-"))
        alone = folder.parent / "alone"
        alone.mkdir(exist_ok=True)
        (alone / path.name).write_bytes(path.read_bytes())
        assert Checkpoints(alone, mark="life").latest(pytest.fail) == (round, state(round))
        (alone / path.name).unlink()
    return sorted(int(path.stem.removeprefix("round-")) for path in folder.glob("*.ckpt"))


def acknowledged(process):
    lines = process.stdout.read().split("\n")[:-1]
    return [int(line) for line in lines if line != "ready"]


def kill_at_random_moments(start, folder, tries):
    dice, last, leftovers = random.Random(1), -1, 0
    for _ in range(tries):
        process = start("checkpoints", folder)
        assert process.stdout.readline() == "ready\n"
        time.sleep(dice.uniform(0, 0.02))  # the moment is the point: nothing is awaited
        process.kill()
        last = max([last, *acknowledged(process)])
        assert process.wait() == -signal.SIGKILL
        rounds = verified_rounds(folder)
        assert max(rounds, default=-1) >= last
        leftovers += remove_partial_files(folder)
        assert not list(folder.glob(".*"))
    return last, leftovers


def test_twenty_kills_at_random_moments_lose_no_acknowledged_checkpoint(start, tmp_path):
    last, _ = kill_at_random_moments(start, tmp_path / "checkpoints", 20)
    assert last > 0


@pytest.mark.slow
def test_two_hundred_kills_at_random_moments_lose_no_acknowledged_checkpoint(start, tmp_path):
    last, leftovers = kill_at_random_moments(start, tmp_path / "checkpoints", 200)
    assert last > 0
    assert leftovers > 0  # some kills did fall into the middle of a write


# One checkpoint takes five steps (write head, write payload, fsync, replace, fsync folder) and from the third on a
# sixth (unlink the oldest); the fsync of the new folder comes first. Twenty-three steps are four checkpoints; so are
# eight writes. Those that leave a file to sweep are the kills at both writes, at the fsync and at the replace.
@pytest.mark.parametrize(("half", "steps", "left"), [(False, 23, 16), (True, 8, 8)], ids=["before", "in mid-write"])
def test_a_kill_at_any_step_of_a_checkpoint_leaves_only_whole_ones(half, steps, left, start, tmp_path):
    swept = 0
    for step in range(1, steps + 1):
        folder = tmp_path / str(step) / "checkpoints"
        process = start("checkpoints", folder, "--die-at", step, *["--half"] * half)
        last = max(acknowledged(process), default=-1)
        assert process.wait() == -signal.SIGKILL
        rounds = verified_rounds(folder)
        assert last <= max(rounds, default=-1) <= last + 1
        assert len(rounds) <= 3
        swept += remove_partial_files(folder)
    assert swept == left


def files_of(folder):
    """Everything in a run folder but the lock, which names a process."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture
def quick_path(tmp_path):
    """A folder in memory, where fsync costs nothing: what a killed process has written stays there as well."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


def check_memories(folder):
    """The newest checkpoint finds each client's memory of its round, and no newer one."""
    if not (folder / "manifest.json").exists():
        return
    with RunFolder.open(folder) as run:
        found = run.rewind(pytest.fail)
        last = -1 if found is None else found[0]
        for client, rounds in CLIENTS.items():
            told = "".join(f"{client} was in round {r}." for r in rounds if r <= last).encode()
            memory = run.memories.read(client)
            assert (memory[1].replace(b"\0", b"") if memory else b"") == told, client
        assert sorted(run.memories.clients()) == sorted(c for c, rounds in CLIENTS.items() if rounds[0] <= last)


@pytest.mark.parametrize("half", [False, True], ids=["before the step", "in the middle of the write"])
def test_a_run_killed_at_any_step_and_resumed_equals_one_that_never_stopped(half, start, quick_path):
    live(quick_path / "whole")
    whole = files_of(quick_path / "whole")
    step, died = 1, True
    while died:
        folder = quick_path / f"killed at {step}"
        process = start("run", folder, "--die-at", step, *["--half"] * half)
        died = process.wait() == -signal.SIGKILL
        check_memories(folder)
        live(folder)
        assert files_of(folder) == whole, f"killed at step {step}"
        step += 1
    assert step > (30 if half else 90)


def test_the_run_that_is_killed_removes_rewrites_and_merges_packs(tmp_path, monkeypatch):
    done, merge, remove = set(), Memories._merge, Memories._remove

    def watched_merge(self, packs):
        done.add("merged" if len(packs) > 1 else "written anew")
        merge(self, packs)

    def watched_remove(self, packs):
        done.update("removed" for pack in packs if not any(pack.needed))
        remove(self, packs)

    monkeypatch.setattr(Memories, "_merge", watched_merge)
    monkeypatch.setattr(Memories, "_remove", watched_remove)
    live(tmp_path / "whole")
    assert done == {"merged", "written anew", "removed"}


def test_each_round_and_client_counts_once_however_often_the_run_is_killed(start, tmp_path):
    folder = tmp_path / "run"
    for step in (9, 25, 33, 21, 40):
        start("run", folder, "--die-at", step).wait()
    live(folder)
    events = [(event["round"], event["client"]) for event in read_journal(folder / "ledger.jsonl")]
    assert events == [(r, client) for r in range(ROUNDS) for client, rounds in CLIENTS.items() if r in rounds]


def test_the_checkpoint_writer_loads_no_other_room_and_no_heavy_library(start):
    program = "import sys, potluck.ledger; print(*sys.modules)"
    loaded = start(program=program).communicate()[0].split()
    assert not {"torch", "numpy", "pickle"} & set(loaded)
    assert {name.split(".")[1] for name in loaded if name.startswith("potluck.")} == {"ledger"}
