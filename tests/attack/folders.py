"""Damaged run folders: resume gives the same result, or one line and exit 3, 4 or 6; and it deletes nothing."""

from __future__ import annotations

import os
import random
import shutil
from functools import cache
from pathlib import Path

from attack.driver import Finding
from attack.forked import check_answer, command
from attack.kills import SETTINGS, sha_of

ANSWERS = {0, 2, 3, 4, 6}


@cache
def half_done(place: Path) -> tuple[Path, str]:
    """A run of twelve rounds that stopped after six, and the weights that it ends with."""
    folder = place / "half-done"
    folder.mkdir()
    (folder / "tiny.toml").write_text(SETTINGS)
    command(folder, "run", "tiny.toml", "--out", "run", "--engine", "serial", "--set", "rounds=6")
    shutil.copytree(folder / "run", folder / "other")
    whole = command(folder, "resume", "other", "--rounds", "12", "--format", "json")
    return folder / "run", sha_of(whole.out)


def damage(run: Path, dice: random.Random) -> str:
    """Damages one file or folder; says how. Links and pipes are earlier damage, and are left alone."""
    everything = sorted(
        path
        for path in run.rglob("*")
        if path.name != "lock" and not path.is_symlink() and (path.is_dir() or path.is_file())
    )
    path = dice.choice(everything)
    name = path.relative_to(run)
    if path.is_dir():
        kind = dice.choice(("delete", "link", "file"))
        shutil.rmtree(path)
        if kind == "link":
            path.symlink_to("/tmp")
        elif kind == "file":
            path.write_text("no folder")
        return f"{kind} in the place of {name}"
    data, kind = (
        path.read_bytes(),
        dice.choice(("delete", "empty", "cut", "flip", "more", "link", "fifo", "folder", "swap", "utf16")),
    )
    if kind == "swap":
        other = dice.choice([one for one in everything if one.is_file()])
        path.write_bytes(other.read_bytes())
        return f"{other.relative_to(run)} in the place of {name}"
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut":
        path.write_bytes(data[: dice.randrange(len(data) or 1)])
    elif kind == "flip" and data:
        at = dice.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :])
    elif kind == "more":
        path.write_bytes(data + dice.randbytes(dice.choice((1, 100))))
    elif kind == "link":
        target = run.parent / "target"
        target.write_bytes(data)
        shutil.copy(target, run.parent / "target-before")
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "utf16":
        path.write_bytes(data.decode("utf-8", "replace").encode("utf-16"))
    return f"{kind} of {name}"


def newest(run: Path) -> str:
    """The name of the newest checkpoint; empty if there is none."""
    return max((path.name for path in run.rglob("*.ckpt")), default="")


def try_one(dice: random.Random, folder: Path) -> int:
    good, weights = half_done(folder.parent)
    run = folder / "run"
    shutil.copytree(good, run)
    what = " and ".join(damage(run, dice) for _ in range(dice.choice((1, 1, 1, 2))))
    before = newest(run)
    ended = command(folder, "resume", "run", "--rounds", "12", "--format", "json")
    check_answer(ended, ANSWERS, what)
    if ended.code == 0 and sha_of(ended.out) != weights:
        raise Finding(f"{what}: resume says nothing and ends with other weights")
    if ended.code and newest(run) < before:  # it may have gone on for some rounds before it met the damage
        raise Finding(f"{what}: resume refused the folder and deleted checkpoints")
    if (folder / "target").exists() and (folder / "target").read_bytes() != (folder / "target-before").read_bytes():
        raise Finding(f"{what}: resume wrote through a link out of the folder")
    return 1
