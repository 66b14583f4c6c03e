"""Measures a system from outside: CPU seconds and memory of its whole process tree, at marks that it prints."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
SAMPLING = 0.5
"""Seconds between looks at the memory."""
PR_SET_CHILD_SUBREAPER = 36


class Failed(Exception):
    """A system ended without doing all its rounds."""


@dataclass
class Measured:
    """What one process tree took."""

    start: float = 0.0
    """Seconds until the first, untimed round is over: imports, data, workers."""
    cpu: float = 0.0
    """CPU seconds of a round."""
    wall: float = 0.0
    """Seconds of a round."""
    peak: float = 0.0
    """Most MB at once: the proportional set sizes, in which shared pages count once."""
    marks: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, CPU seconds) at the end of every round, without the seconds in which the system waited to be read."""


def measure(command: Sequence[str], rounds: int, mark: str, settings: Mapping[str, str], limit: float) -> Measured:
    """Runs a command that prints a mark after each of `rounds` + 1 rounds; the first is not timed.

    The command waits at each mark for a line on its standard input. So all its processes are still there when their CPU
    seconds are read: a worker that has ended may have taken its seconds with it.
    """
    # Processes that lose their parent become ours, so that none is missed.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    found, began = Measured(), time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen(command, **pipes, env={**os.environ, **settings})
        try:
            _watch(process, found, rounds + 1, mark, began + limit)
        finally:
            _end(process, patience=30 if len(found.marks) > rounds else 0)
        if len(found.marks) <= rounds:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip().splitlines() or ["nothing on stderr"]
            raise Failed(f"{len(found.marks)} of {rounds + 1} rounds done; {text[-1][:300]}")
    (first, cpu), (last, more) = found.marks[0], found.marks[rounds]
    found.start = first - began
    found.cpu, found.wall = (more - cpu) / rounds, (last - first) / rounds
    return found


def _watch(process: subprocess.Popen[bytes], found: Measured, wanted: int, mark: str, until: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    pipe, rest, looked, waited = process.stdout.fileno(), b"", 0.0, 0.0
    while len(found.marks) < wanted and time.perf_counter() < until:
        if select.select([pipe], [], [], SAMPLING)[0]:
            data = os.read(pipe, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            if mark.encode() in lines:
                now = time.perf_counter()
                found.marks.append((now - waited, _cpu(_family())))
                waited += time.perf_counter() - now
                with suppress(BrokenPipeError):
                    os.write(process.stdin.fileno(), b"\n")
        if time.perf_counter() - looked > SAMPLING:
            found.peak = max(found.peak, sum(map(_memory, _family())))
            looked = time.perf_counter()


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Lets a system leave by itself for so many seconds, then ends what is left of its tree."""
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=patience)
    for pid in _family():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _family() -> list[int]:
    """All processes that descend from this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _cpu(pids: Sequence[int]) -> float:
    """User and system seconds of these processes and of the children that they have seen end."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICK


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat after the name, from the state on; empty once the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _memory(pid: int) -> float:
    """Proportional set size in MB; 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
