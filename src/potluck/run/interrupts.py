"""Ctrl-C and SIGTERM: the first stops the run with everything saved, the second stops it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run that was stopped from outside; the text says how far it came and how to go on."""


class Interrupts:
    """Turns the first signal into KeyboardInterrupt, except while something must not be torn."""

    def __init__(self) -> None:
        self._holding = False
        self._waiting = False
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for kind, before in self._before.items():
            signal.signal(kind, before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Puts a signal off until the end of the block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(130)
        if self._holding:
            self._waiting = True
        else:
            raise KeyboardInterrupt
