"""`python -m attack` from the folder tests/."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from attack import folders, inputs, kills, messages, replies
from attack.driver import Attack, attempt, parse, report, run_side_by_side

ATTACKS = [
    Attack("messages", messages.try_batch, 200_000),
    Attack("replies", replies.try_one, 2_000),
    Attack("calls", kills.try_file_calls, 170),
    Attack("commands", kills.try_command, 40),
    Attack("folders", folders.try_one, 250),
    Attack("inputs", inputs.try_one, 500),
]


def main(arguments: list[str]) -> int:
    asked = parse(arguments, [one.name for one in ATTACKS])
    chosen = [one for one in ATTACKS if asked.only in (None, one.name)]
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        if asked.number is None:
            return int(run_side_by_side(chosen, asked.minutes, asked.seed, Path(place), asked.jobs) > 0)
        for one in chosen:
            attempt(one, asked.seed, asked.number, Path(place) / one.name)
        return int(report(chosen) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
