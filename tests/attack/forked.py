"""Commands in forked processes: torch is imported once, and whatever a command does ends with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attack.driver import Finding


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code; negative: the signal that ended it."""
    out: str
    err: str


def forked(work: Callable[[], None], folder: Path, seconds: float = 60.0) -> Ended:
    """Does some work in a forked process, in a folder; a `Finding` if it does not end in time."""
    out, err = folder / ".out", folder / ".err"
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setsid()
            os.chdir(folder)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            work()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        except BaseException:
            import traceback

            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Finding(f"it hangs: no end within {seconds:.0f} s")
        time.sleep(0.005)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(status), *texts)


def command(folder: Path, *arguments: str, seconds: float = 60.0) -> Ended:
    """Runs a command of Potluck."""
    from potluck.cli import main

    return forked(lambda: main(list(arguments)), folder, seconds)


def check_answer(ended: Ended, allowed: set[int], what: str) -> None:
    """A command that fails says one line that begins with its name, and has one of these exit codes."""
    if ended.code not in allowed:
        raise Finding(f"{what}: exit {ended.code}, {ended.err[-500:]!r}")
    if "Traceback" in ended.err or "\x1b" in ended.err + ended.out:
        raise Finding(f"{what}: a traceback or an escape code on the screen: {ended.err[-500:]!r}")
    last = ended.err.strip().splitlines()[-1:] or [""]
    if ended.code not in (0, 141) and not last[0].startswith("potluck: "):
        raise Finding(f"{what}: exit {ended.code} without a line that says why: {ended.err[-500:]!r}")
