"""Work that is done beside the rounds, and must be over before anything rests on it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class BackgroundTask:
    """A piece of work in a thread of its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._fault: BaseException | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()

    def wait(self) -> None:
        """Until it is over; what it raised is raised here."""
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as fault:
            self._fault = fault
