"""A small run as a process of its own, which can be made to die at any step. Imports the ledger and nothing else.

python -S ledger_life.py checkpoints FOLDER          write checkpoints for ever, naming each once it is acknowledged
python -S ledger_life.py run FOLDER                  a whole run of five rounds
... --die-at 7                                       SIGKILL in place of the seventh call that changes a file
... --die-at 7 --half                                SIGKILL after half of the seventh write
python -S ledger_life.py hold FOLDER [--fork]        open a run and hold it until killed (--fork: with a child)
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

from potluck.ledger import Checkpoints, RunFolder, memories, remove_partial_files

ROUNDS = 5
# Packs of no use are removed, mostly useless ones are written anew (the memory of "wide" is most of a pack), and
# others are merged.
CLIENTS = {"a": range(ROUNDS), "wide": (0, 2), **{f"only {r}": (r,) for r in (0, 2, 3, 4)}}
"""The rounds of each client."""
MOST_OLD_PACKS = 2  # so that a short run merges packs
STEPS = ("write", "fsync", "replace", "unlink", "ftruncate")


def state(round, size=200_000):
    """The bytes of a checkpoint, different for each round."""
    return hashlib.shake_128(f"round {round}".encode()).digest(size)


def write_checkpoints(folder):
    folder.parent.mkdir(exist_ok=True)
    remove_partial_files(folder)
    checkpoints = Checkpoints(folder, mark="life", keep=2)
    found = checkpoints.latest(warn=print)
    first = 0 if found is None else found[0] + 1
    print("ready", flush=True)
    for round in range(first, first + 1_000_000):
        checkpoints.write(round, state(round))
        print(round, flush=True)


def live(folder):
    """Begin or go on with a run, to its end."""
    if (folder / "manifest.json").exists():
        run = RunFolder.open(folder)
    else:
        run = RunFolder.create(folder, "rounds = 5\n", {"seed": 1}, mark="life", keep=2)
    usual, memories.MOST_OLD_PACKS = memories.MOST_OLD_PACKS, MOST_OLD_PACKS
    try:
        with run:
            found = run.rewind(warn=print)
            for round in range(0 if found is None else found[0] + 1, ROUNDS):
                live_one_round(run, round)
    finally:
        memories.MOST_OLD_PACKS = usual


def live_one_round(run, round):
    """A round in which every client writes into its memory that it took part."""
    staged = {}
    for client in (client for client, rounds in CLIENTS.items() if round in rounds):
        before = run.memories.read(client, round - 1)
        staged[client] = (b"" if before is None else before[1]) + f"{client} was in round {round}.".encode()
        run.journal.add(round=round, client=client)
    if "wide" in staged:
        staged["wide"] += bytes(1000)
    run.journal.flush()
    run.scores.add(round=round, accuracy=round / 10)
    run.commit(round, state(round, 1000), staged)


def hold(folder, fork):
    run = RunFolder.open(folder)
    if not fork or os.fork() == 0:  # the child's first line of its own: what it inherited is closed by then
        print(os.getpid(), flush=True)
    sys.stdin.read()
    run.close()


def doom(at, half):
    """Wrap every call that changes a file, or every write: the one with this number is the process's last."""
    calls = 0

    def wrapped(name, original):
        def step(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == at:
                if half:
                    descriptor, data = arguments
                    original(descriptor, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        return step

    for name in ("write",) if half else STEPS:
        setattr(os, name, wrapped(name, getattr(os, name)))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if "--die-at" in rest:
        doom(int(rest[rest.index("--die-at") + 1]), "--half" in rest)
    if what == "hold":
        hold(Path(where), "--fork" in rest)
    else:
        {"checkpoints": write_checkpoints, "run": live}[what](Path(where))
