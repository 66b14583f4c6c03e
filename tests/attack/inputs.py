"""Odd command lines and settings: an answer, or one line and exit 2, 3 or 6; and no file outside the folder."""

from __future__ import annotations

import random
from pathlib import Path

from attack.driver import Finding
from attack.forked import check_answer, command
from attack.kills import SETTINGS

ANSWERS = {0, 2, 3, 4, 5, 6, 7, 8, 141}
VALUES = [
    "nan",
    "-1",
    "0",
    "1e999",
    "''",
    "[]",
    "{}",
    "true",
    "null",
    "99999999999999999999999999",
    "1e-999",
    "é",
    "\x1b[31m",
    "../../../x",
    "a\nb",
    "'\x00'",
    "[[1]]",
    "{a=1}",
    "'x' * 9",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "1979-05-27",
    '"\\ud800"',
]
NAMES = [
    "rounds",
    "cohort",
    "seed",
    "name",
    "data.clients",
    "data.name",
    "data.path",
    "data.samples",
    "data.alpha",
    "data.public",
    "model.name",
    "model.hidden",
    "model.depth",
    "method.name",
    "local.lr",
    "local.epochs",
    "local.batch",
    "local.momentum",
    "local.clip",
    "score.every",
    "score.clients",
    "run.engine",
    "run.workers",
    "run.quorum",
    "run.stack",
    "run.keep",
    "gate.bound",
    "gate.heaviest",
    "privacy.noise",
    "privacy.clip",
    "fleet.dropout",
    "fleet.availability",
    "tier",
    "tier.0.width",
    "compare.seeds",
    "compare.methods",
    "x",
    "",
    "a.b.c.d",
]
COMMANDS = ["run", "resume", "compare", "report", "export", "list", "check-method", "show", "", "--version", "-h"]


def try_one(dice: random.Random, folder: Path) -> int:
    """One command line, or one settings file."""
    (folder / "tiny.toml").write_text(SETTINGS)
    before = set(folder.parent.iterdir())
    quick = ["--set", "rounds=1", "--engine", "serial"]
    kind = dice.randrange(3)
    if kind == 0:
        given = [f"{dice.choice(NAMES)}={dice.choice(VALUES)}" for _ in range(dice.choice((1, 1, 2)))]
        arguments = ["run", "tiny.toml", "--out", "run", *quick, *(part for one in given for part in ("--set", one))]
    elif kind == 1:
        text = SETTINGS
        for _ in range(dice.choice((1, 2, 4))):
            at = dice.randrange(len(text))
            text = (
                text[:at]
                + dice.choice([*VALUES, "[", "]", "=", '"', "\n", "[[tier]]\n", "[tier]\n"])
                + text[at + dice.randrange(4) :]
            )
        encoding = dice.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
        (folder / "tiny.toml").write_bytes(text.encode(encoding, "replace"))
        arguments = ["run", "tiny.toml", "--out", "run", *quick]
    else:
        words = [
            "tiny.toml",
            "run",
            "--out",
            "--set",
            "--format",
            "json",
            "--engine",
            "--seeds",
            "0,1",
            "--rounds",
            "-1",
            *VALUES,
        ]
        arguments = [dice.choice(COMMANDS), *(dice.choice(words) for _ in range(dice.randrange(4)))]
        if arguments[0] in ("run", "compare"):  # without this, the built-in experiment takes minutes
            arguments += ["--set", "rounds=1", *["--seeds", "0"] * (arguments[0] == "compare")]
    ended = command(folder, *(one.replace("\x00", "") for one in arguments), seconds=120)
    check_answer(ended, ANSWERS, f"potluck {' '.join(map(ascii, arguments))}")
    if new := set(folder.parent.iterdir()) - before:
        raise Finding(f"potluck {' '.join(map(ascii, arguments))} wrote {sorted(map(str, new))}")
    return 1
