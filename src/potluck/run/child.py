"""One run of a comparison, carried out in a process of its own. This file is also the program of that process.

The order is one line of JSON on standard input. What the run tells goes back as messages, each one line of JSON: its
rounds, its warnings and, last, how it ended. Nothing is pickled.

    {"kind": "start", "folder": "...", "manifest": {...}, "done": 0}
    {"kind": "round", "done": 3, "scores": {...} or null, "totals": {...}}
    {"kind": "warning", "text": "..."}
    {"kind": "result", "result": {...} or null}     null: it diverged or lost its quorum, as its manifest says
    {"kind": "error", "error": {...}}               see `describe_error`
    {"kind": "stopped"}                             it was asked to stop, and has saved
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

Message = dict[str, Any]
ONGOING = ("start", "round", "warning")
"""The kinds of messages after which more follow."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Blocked when the process starts, until it can heed them."""


class Reporter:
    """A watch that sends what it hears as messages. How the run ended is sent apart."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self.send = send

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self.send({"kind": "start", "folder": str(folder), "manifest": manifest, "done": done})

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self.send({"kind": "round", "done": done, "scores": scores, "totals": totals})

    def warn(self, text: str) -> None:
        self.send({"kind": "warning", "text": text})


def carry_out(order: Mapping[str, Any], send: Callable[[Message], None]) -> None:
    """Starts or resumes the run of an order, and sends its messages. KeyboardInterrupt goes through, once it is saved.

    An order has the settings of the `experiment` as plain values, and the `folder` of the run.
    """
    from potluck.run import config
    from potluck.run.comparison import result_or_none
    from potluck.run.watch import whole

    try:
        result = result_or_none(config.experiment(order["experiment"]), Path(order["folder"]), whole(Reporter(send)))
    except Exception as fault:
        send({"kind": "error", "error": describe_error(fault)})
    else:
        send({"kind": "result", "result": result and {**vars(result), "folder": str(result.folder)}})


def stops_all(fault: BaseException | None) -> bool:
    """Whether an error would end every other run of a comparison, too: the disk is full."""
    while fault is not None:
        if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def describe_error(fault: Exception) -> Message:
    """An error as plain values: the name of its class, its text, its exit code if it has one, and its traceback.

    `stops` says whether it ends the whole comparison.
    """
    code = getattr(fault, "exit_code", None)
    return {
        "name": type(fault).__name__,
        "text": str(fault),
        "exit_code": code if isinstance(code, int) else None,
        "os": [fault.errno, fault.strerror, fault.filename and str(fault.filename)]
        if isinstance(fault, OSError)
        else None,
        "stops": stops_all(fault),
        "traceback": traceback.format_exc(),
    }


def main() -> NoReturn:
    """Carries out the order on standard input, and ends. The process ends, too, if its parent does."""
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the parent dies
    if order is None or os.getppid() != order["parent"]:  # it died before that
        os._exit(0)
    sys.path[:] = order["path"]
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a method prints must not get between the messages

    def send(message: Message) -> None:
        reports.write(json.dumps(message) + "\n")
        reports.flush()

    from potluck.run.interrupts import Interrupts

    with Interrupts():
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            carry_out(order, send)
        except KeyboardInterrupt:
            for kind in SIGNALS:
                signal.signal(kind, signal.SIG_IGN)
            send({"kind": "stopped"})
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # libraries that clean up have nothing to save


if __name__ == "__main__":
    main()
