"""Who watches a run: callbacks of a user, the progress in a terminal, trackers, the live log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from potluck.core import SettingsError, one_line

if TYPE_CHECKING:
    from potluck.engines import LedgerEntry, RoundSession
    from potluck.run.result import FailedRun, Result


@runtime_checkable
class Watch(Protocol):
    """Hears of a run while it goes on. Derive from it and override what you want to hear.

    Any object that has some of these four functions will do as well. An exception that a watch raises ends the run,
    which can then be resumed.
    """

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        """The run starts, or goes on after `done` rounds. `manifest` is what the run's manifest.json says."""
        return

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        """Round `done` is over (the first one is 1). `scores` is the new line of scores.jsonl, None if it was not
        scored. `totals` is what the run has cost so far."""
        return

    def warn(self, text: str) -> None:
        """Something that the user should know, in one line."""
        return

    def end(self, outcome: Result | FailedRun) -> None:
        """The run is over: its result, or how it ended without one. It may be resumed later, as the same run."""
        return


class Silent(Watch):
    """A watch that does nothing."""


HEARS = ("start", "round", "warn", "end")


def whole(watch: object | None) -> Watch:
    """A watch with all four functions, from any object that has some of them, or from None."""
    if watch is None:
        return Silent()
    if isinstance(watch, Watch):
        return watch
    if not any(callable(getattr(watch, name, None)) for name in HEARS):
        raise SettingsError(
            f"watch = {one_line(repr(watch), 60)} has none of the functions {', '.join(HEARS)}; "
            "derive it from potluck.Watch."
        )
    return _Partial(watch)


class _Partial(Watch):
    """A watch that has some of the functions."""

    def __init__(self, watch: object) -> None:
        for name in HEARS:
            if callable(heard := getattr(watch, name, None)):
                setattr(self, name, heard)


class TaskObserver(Watch):
    """An observer that also hears of every task, as soon as its outcome is known."""

    def task(self, session: RoundSession, entry: LedgerEntry) -> None:
        """A task of this session is over."""
        return


class Watches(Watch):
    """Tells several watches. `watch` is the user's own. An `observer` that fails is told of, and not called again."""

    def __init__(self, watch: Watch, observers: Sequence[Watch] = ()) -> None:
        self.watch, self.observers = watch, list(observers)
        self.hear_tasks = tuple(each for each in self.observers if isinstance(each, TaskObserver))

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self._tell(lambda each: each.start(folder, manifest, done))

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self._tell(lambda each: each.round(done, scores, totals))

    def warn(self, text: str) -> None:
        self._tell(lambda each: each.warn(text))

    def end(self, outcome: Result | FailedRun) -> None:
        self._tell(lambda each: each.end(outcome))

    def task(self, session: RoundSession, entry: LedgerEntry) -> None:
        """Tells the observers that want to hear of tasks."""
        for each in self.hear_tasks:
            try:
                each.task(session, entry)
            except Exception as fault:
                self._leave_out(each, fault)

    def _tell(self, tell: Callable[[Watch], None]) -> None:
        for each in list(self.observers):
            try:
                tell(each)
            except Exception as fault:
                self._leave_out(each, fault)
        tell(self.watch)

    def _leave_out(self, observer: Watch, fault: Exception) -> None:
        self.observers.remove(observer)
        self.hear_tasks = tuple(each for each in self.hear_tasks if each is not observer)
        self.watch.warn(f"{type(observer).__name__} failed, and is left out: {one_line(str(fault), 200)}")
