"""Kills: at any call that changes a file, and of the real command. What is resumed ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from attack.driver import Finding
from attack.forked import command

LIFE = Path(__file__).parents[1] / "ledger" / "ledger_life.py"
SOURCE = Path(__file__).parents[2] / "src"


def life(folder: Path, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-S", str(LIFE), "run", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode


def files_of(folder: Path) -> dict[str, str]:
    """The files of a run but the lock, which names a process."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@cache
def whole(place: Path) -> dict[str, str]:
    life(place / "whole-life")
    return files_of(place / "whole-life")


def try_file_calls(dice: random.Random, folder: Path) -> int:
    """A run of the ledger alone, killed up to three times, each time at one call that changes a file."""
    killed = 0
    for _ in range(dice.choice((1, 2, 3))):
        half = ["--half"] * (dice.random() < 0.5)
        killed += life(folder / "run", "--die-at", str(dice.randrange(1, 90)), *half) == -signal.SIGKILL
    if code := life(folder / "run"):
        raise Finding(f"a run of the ledger that was killed cannot go on: exit {code}")
    if files_of(folder / "run") != whole(folder.parent):
        raise Finding("a run of the ledger that was killed and resumed differs from one that was not")
    return max(killed, 1)


SETTINGS = """\
name = "tiny"
rounds = 12
cohort = 3
[data]
clients = 8
[model]
name = "mlp"
hidden = 8
depth = 1
[method]
name = "scaffold"
[local]
epochs = 1
batch = 32
[score]
every = 4
clients = 2
"""


@cache
def whole_command(place: Path) -> str:
    folder = place / "whole-command"
    folder.mkdir()
    (folder / "tiny.toml").write_text(SETTINGS)
    ended = command(folder, "run", "tiny.toml", "--out", "run", "--engine", "serial", "--format", "json")
    return sha_of(ended.out)


def sha_of(out: str) -> str:
    import json

    return str(json.loads(out[out.index("{") :])["weights_sha256"])


def try_command(dice: random.Random, folder: Path) -> int:
    """The real command, killed at some instant (sometimes twice), then resumed."""
    expected = whole_command(folder.parent)
    (folder / "tiny.toml").write_text(SETTINGS)
    engine = dice.choice(("serial", "serial", "pool"))
    first = ["run", "tiny.toml", "--out", "run", "--engine", engine]
    killed = 0
    for _ in range(dice.choice((1, 2))):
        started = (folder / "run" / "manifest.json").exists()
        process = subprocess.Popen(
            [sys.executable, "-m", "potluck", *(["resume", "run"] if started else first)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(dice.uniform(2.0, 6.0))
        os.killpg(process.pid, dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        killed += process.wait() != 0
    if not (folder / "run" / "manifest.json").exists():
        return killed
    ended = command(folder, "resume", "run", "--format", "json", seconds=120)
    if ended.code:
        raise Finding(f"a killed run cannot be resumed (exit {ended.code}): {ended.err[-500:]!r}")
    if sha_of(ended.out) != expected:
        raise Finding("a killed and resumed run has other weights")
    return max(killed, 1)
