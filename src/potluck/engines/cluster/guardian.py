"""A guardian of the processes that Ray starts on this machine: when the run is gone, however it went, so are they.

Ray ends most of its processes when the one that started it dies, but not all. This file is also the guardian's program.
It waits until its standard input closes or its parent is gone. Then it kills every process that inherited a mark in its
environment.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "POTLUCK_RAY_FAMILY"
"""The environment variable that holds the mark."""


class Guardian:
    """The guardian of the processes with a mark, and of the folder of Ray's logs."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal does not reach it
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
        )

    def add_folder(self, path: str) -> None:
        """A folder to remove at the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(path.encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Ends all that is left of the family."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def family(mark: str) -> list[int]:
    """The living processes with this mark."""
    wanted, found = f"{VARIABLE}={mark}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def main(mark: str) -> None:
    """Waits for the end of parent or input; kills the family until none is left; removes the folders."""
    parent, told = os.getppid(), b""
    while os.getppid() == parent:  # else somebody may hold the other end of the pipe although the parent is gone
        if select.select([0], [], [], 1.0)[0]:
            piece = os.read(0, 4096)
            told += piece
            if not piece:
                break
    folders = told.decode().split("\n")
    while left := family(mark):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for folder in filter(None, folders):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
