"""Ctrl-C and SIGTERM: the first one saves and stops the run, the second one stops it at once.

Both together are one request to stop: shells and service managers may send one of each.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from potluck.core import shown_lines, user_interrupt

TOGETHER = 1.0
"""Seconds within which one signal of each kind is one request."""


class Interrupted(KeyboardInterrupt):
    """Raised when a run is interrupted; the message says after which round, and how to resume."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: one line."""
        return shown_lines(self)


class Interrupts:
    """Turns the first signal into KeyboardInterrupt, but not inside `defer`."""

    def __init__(self) -> None:
        self._holding = False
        self._waiting = False
        self._kinds: list[int] = []
        self._first = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, before in self._before.items():
            signal.signal(kind, before)

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Delays a signal until the end of the block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self._kinds
        if first:  # the other kind may come before any of these lines
            self._first = time.monotonic()
        self._kinds.append(number)
        if not first:
            if len(set(self._kinds)) == len(self._kinds) and time.monotonic() - self._first < TOGETHER:
                return
            os._exit(130)
        if self._holding:
            self._waiting = True
        else:
            raise user_interrupt()
