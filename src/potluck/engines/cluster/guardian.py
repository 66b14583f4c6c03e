"""A guardian of the processes that Ray starts on this machine: when the run is gone, however it went, so are they.

Ray ends most of its processes when the one that started it dies, but not all. This file is also the guardian's program.
It waits until its standard input closes or its parent is gone. Then it kills every process that has a mark in its
environment, or an open file in Ray's folder: some overwrite their environment with a title. Last it removes the folder.
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
    """The guardian of the processes with a mark, and of the folder in which Ray keeps its logs and sockets."""

    def __init__(self, mark: str, folder: str) -> None:
        self.mark, self.folder = mark, folder
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark, folder],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal does not reach it
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
        )

    def end(self) -> None:
        """Ends all that is left of the family."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def family(mark: str, folder: str, but: int = 0) -> list[int]:
    """The living processes with this mark, or with an open file in this folder; but not this one."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            if pid not in (but, os.getpid()) and (_has_mark(pid, mark) or _has_open(pid, folder)):
                found.append(pid)
    return found


def _has_mark(pid: int, mark: str) -> bool:
    return f"{VARIABLE}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def _has_open(pid: int, folder: str) -> bool:
    for handle in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # it may have been closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{handle}").startswith(f"{folder}/"):
                return True
    return False


def main(mark: str, folder: str) -> None:
    """Waits for the end of parent or input; kills the family until none is left; removes the folder."""
    parent = os.getppid()
    while os.getppid() == parent:  # else somebody may hold the other end of the pipe although the parent is gone
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 4096):
            break
    while left := family(mark, folder, but=parent):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
