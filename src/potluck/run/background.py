"""Background work: it runs in a thread beside the rounds, until someone waits for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class BackgroundTask:
    """A function that runs in its own thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._fault: BaseException | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()

    def wait(self) -> None:
        """Waits until it is done; raises the exception that it raised."""
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as fault:
            self._fault = fault
