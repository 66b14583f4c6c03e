import os
import subprocess
import sys
from pathlib import Path

import pytest

import potluck

SOURCE = str(Path(potluck.__file__).parent.parent)
LIFE = str(Path(__file__).with_name("ledger_life.py"))


@pytest.fixture
def start():
    """Starts `ledger_life.py`, or a program given as text; whatever still lives at the end of the test is killed."""
    started = []

    def begin(*arguments, program=None, **options):
        code = [LIFE] if program is None else ["-c", program]
        command = [sys.executable, "-S", "-B", *code, *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, **pipes, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def warnings_heard():
    return []


@pytest.fixture
def full_disk(monkeypatch):
    """Makes one of os.write, os.fsync, os.replace answer as a full disk does; returns a way to make room again."""
    import errno

    def fill(step):
        def refuse(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, step, refuse)
        return monkeypatch.undo

    return fill
