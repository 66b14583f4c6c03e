"""The same run gives the same bytes in every process: the order of Python's sets reaches no file."""

import json
import os
import subprocess
import sys

import pytest

from potluck.methods import METHODS

RUN = """
import json, sys, tempfile
from pathlib import Path
from potluck.methods import METHODS
from potluck.run import resume
from potluck.run.contract import MethodCase

names, engine, rounds = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])
MODEL = {"name": "cnn", "width": 8, "depth": 3, "norm": "running"}  # several tensors that are not float
found = {}
for name in names:
    with tempfile.TemporaryDirectory() as folder:
        case = MethodCase(METHODS[name])
        run = {"engine": engine, "workers": 2} if engine == "pool" else {"engine": engine}
        case.run(Path(folder) / "run", rounds=max(1, rounds // 2), run=run, model=MODEL)
        result = resume(Path(folder) / "run", rounds=rounds)
        found[name] = [result.weights_sha256, (Path(folder) / "run" / "scores.jsonl").read_text()]
print(json.dumps(found))
"""


def processes(names, engine, rounds, seeds):
    """What each process found, each with its own hash seed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, ",".join(names), engine, str(rounds)],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    return [json.loads(process.communicate()[0]) for process in started]


def test_two_processes_with_different_hash_seeds_agree():
    first, second = processes(["local", "moon", "fedmd", "hermes"], "serial", 1, (1, 2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_every_method_agrees_over_three_hash_seeds_and_after_a_resume(engine):
    first, *others = processes(list(METHODS), engine, 4, (1, 2, 3))
    for other in others:
        assert [name for name in METHODS if other[name] != first[name]] == []
