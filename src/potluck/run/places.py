"""Where the runs of a comparison are carried out, several at once: in processes of their own on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Protocol

from potluck.core import ResourceError
from potluck.engines import CORES_VARIABLE, usable_cores
from potluck.run import child
from potluck.run.child import Message
from potluck.run.settings import Experiment


class BackgroundRun(Protocol):
    """A run that is carried out somewhere else."""

    def poll(self) -> list[Message]:
        """The messages since the last call: those of `run/child.py`, or {"kind": "died", "how": "..."}.

        After the message that says how the run ended, there are no more, and its place is free.
        """

    def stop(self) -> None:
        """Asks the run to save and to stop. It then ends as "stopped", unless it was done already."""


class Places(Protocol):
    """Where runs are carried out in the background."""

    def has_room(self) -> bool:
        """Whether one more run can be started now."""

    def start(self, experiment: Experiment, folder: Path) -> BackgroundRun:
        """Starts a run, or resumes the one that the folder holds."""

    def wait(self) -> None:
        """Waits until a run has something to tell, or there may be more room; at most about a second."""

    def close(self) -> None:
        """Ends every run that is still going on, at once."""


class LocalPlaces:
    """A fresh process on this machine for each run, at most `jobs` at once. They share the cores out equally."""

    def __init__(self, jobs: int) -> None:
        if sys.platform != "linux":
            raise ResourceError(f"several jobs at once need Linux (here: {sys.platform}); leave --jobs out.")
        self.jobs = jobs
        self.cores = max(1, usable_cores() // jobs)
        self._runs: list[RunProcess] = []

    def has_room(self) -> bool:
        self._runs = [run for run in self._runs if not run.ended]
        return len(self._runs) < self.jobs

    def start(self, experiment: Experiment, folder: Path) -> RunProcess:
        self._runs.append(RunProcess(experiment, folder, self.cores))
        return self._runs[-1]

    def wait(self) -> None:
        wait([handle for run in self._runs for handle in run.handles], timeout=1.0)

    def close(self) -> None:
        for run in self._runs:
            run.kill()


class RunProcess:
    """A run in a process of its own. It starts from a fresh interpreter, and dies with this process.

    It is in a process group of its own: Ctrl-C at a terminal reaches this process alone, which then asks it to stop.
    """

    def __init__(self, experiment: Experiment, folder: Path, cores: int, paths: Sequence[str] = ()) -> None:
        path = [*sys.path, *(each for each in paths if each not in sys.path)]
        order = {"experiment": experiment.plain(), "folder": str(folder), "path": path, "parent": os.getpid()}
        flags = ["-P", "-B"] if sys.dont_write_bytecode else ["-P"]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, child.SIGNALS)
        try:
            self.process = Popen(
                [sys.executable, *flags, child.__file__],
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={**os.environ, CORES_VARIABLE: str(cores)},
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        orders, reports, output = self.process.stdin, self.process.stdout, self.process.stderr
        assert orders is not None
        assert reports is not None
        assert output is not None
        self._reports, self._output = Lines(reports), Lines(output)
        self._exit = os.pidfd_open(self.process.pid)
        self._end: Message | None = None
        self.ended = False
        with suppress(BrokenPipeError), orders:  # it may be dead already: `poll` tells
            orders.write(json.dumps(order).encode() + b"\n")

    @property
    def handles(self) -> list[int]:
        """What becomes readable when the run has something to tell."""
        if self.ended:
            return []
        return [self._exit, *(lines.pipe.fileno() for lines in (self._reports, self._output) if lines.open)]

    def wait(self, seconds: float) -> None:
        """Waits until the run has something to tell, at most so long."""
        wait(self.handles, timeout=seconds)

    def poll(self) -> list[Message]:
        if self.ended:
            return []
        over = self.process.poll() is not None  # asked first: whatever it wrote is in the pipes then
        found: list[Message] = [{"kind": "warning", "text": line} for line in self._output.read() if line.strip()]
        for line in self._reports.read():
            message: Message = json.loads(line)
            if message["kind"] in child.ONGOING:
                found.append(message)
            else:
                self._end = message
        if over:
            found.append(self._end or {"kind": "died", "how": _how_it_died(self.process.returncode)})
            self._close()
        return found

    def stop(self) -> None:
        # Not SIGTERM, which a service manager may have sent to all processes: one of each is one request.
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends the process at once."""
        if not self.ended:
            self.process.kill()
            self.process.wait()
            self._close()

    def _close(self) -> None:
        self.ended = True
        os.close(self._exit)
        self._reports.pipe.close()
        self._output.pipe.close()


class Lines:
    """The lines that come through a pipe, without waiting for them."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.pipe, self.open, self._rest = pipe, True, b""

    def read(self) -> list[str]:
        """The lines that are complete by now. What a process wrote of a line when it died is lost."""
        chunks = [self._rest]
        with suppress(BlockingIOError):
            while chunk := os.read(self.pipe.fileno(), 1 << 16):
                chunks.append(chunk)
            self.open = False
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def _how_it_died(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (", perhaps for lack of memory" if -code == signal.SIGKILL else "")
