"""Runs the plans of a comparison in places, as many at once as there is room for."""

from __future__ import annotations

import builtins
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from potluck.core import UserError
from potluck.ledger import LedgerError, RunFolder, read_run
from potluck.run.child import ONGOING, Message
from potluck.run.interrupts import Interrupts
from potluck.run.places import BackgroundRun, Places
from potluck.run.planning import Plan
from potluck.run.result import FailedRun, Result, reason_of
from potluck.run.watch import Watch, whole


@runtime_checkable
class QueueWatch(Protocol):
    """What a watch may have besides, to hear where its run stands among others."""

    def waits(self) -> None: ...
    def starts(self) -> None: ...


class Scheduler:
    """Runs plans in places. A run whose process dies is resumed once; if it dies again, the others go on without it."""

    def __init__(
        self,
        plans: Sequence[Plan],
        places: Places,
        watches: Sequence[Watch],
        outcomes: dict[int, Result | FailedRun],
    ) -> None:
        self.plans, self.places, self.outcomes = plans, places, outcomes
        self.watches = [whole(watch) for watch in watches]
        self._queue = {number: watch for number, watch in enumerate(watches) if isinstance(watch, QueueWatch)}
        self._waiting = deque(range(len(plans)))
        self._runs: dict[int, BackgroundRun] = {}
        self._deaths: Counter[int] = Counter()

    def run(self) -> None:
        """Runs all plans, and adds to `outcomes` how each ended, by its number.

        If one finds the disk full, or is interrupted, all others save and stop.
        """
        with Interrupts() as stops:
            try:
                for watch in self._queue.values():
                    watch.waits()
                while self._waiting or self._runs:
                    with stops.defer():
                        self._start()
                    self.places.wait()
                    with stops.defer():
                        self._listen()
            except BaseException:
                with stops.defer():  # a signal meanwhile must not cut the saving short
                    self._stop()
                raise
            finally:
                self.places.close()

    def _start(self) -> None:
        while self._waiting and self.places.has_room():
            number = self._waiting.popleft()
            plan = self.plans[number]
            if number in self._queue:
                self._queue[number].starts()
            self._runs[number] = self.places.start(plan.experiment, plan.folder)

    def _listen(self) -> None:
        for number, run in list(self._runs.items()):
            for message in run.poll():
                self._take(number, message)

    def _take(self, number: int, message: Message) -> None:
        watch = self.watches[number]
        match message["kind"]:
            case "start":
                watch.start(Path(message["folder"]), message["manifest"], message["done"])
                return
            case "round":
                watch.round(message["done"], message["scores"], message["totals"])
                return
            case "warning":
                watch.warn(message["text"])
                return
        del self._runs[number]
        match message["kind"]:
            case "result":
                self._end(number, self._outcome(number, message["result"]))
            case "died":
                self._resume_once(number, message["how"])
            case "error":
                fault = error_of(message["error"])
                if message["error"]["stops"]:
                    raise fault
                self.outcomes[number] = failed_by(self.plans[number], reason_of(fault), watch)
            case _:
                raise KeyboardInterrupt

    def _outcome(self, number: int, told: Mapping[str, Any] | None) -> Result | FailedRun:
        plan = self.plans[number]
        if told is None:
            return failed_as_recorded(plan.folder, plan.label)
        return Result(**{**told, "folder": plan.folder})

    def _end(self, number: int, outcome: Result | FailedRun) -> None:
        self.outcomes[number] = outcome
        self.watches[number].end(outcome)

    def _resume_once(self, number: int, how: str) -> None:
        self._deaths[number] += 1
        if self._deaths[number] == 1:
            self.watches[number].warn(f"its process died ({how}); it goes on from its last checkpoint")
            self._waiting.appendleft(number)
            return
        self.watches[number].warn(f"its process died again ({how}); the other runs go on without it")
        self._end(number, _mark_dead(self.plans[number], f"its process died twice ({how})"))

    def _stop(self) -> None:
        """Asks all runs to stop, and waits for them."""
        for run in self._runs.values():
            run.stop()
        while self._runs:
            for number, run in list(self._runs.items()):
                for message in run.poll():
                    if message["kind"] in ONGOING:
                        continue
                    del self._runs[number]
                    if message["kind"] == "result":
                        self._end(number, self._outcome(number, message["result"]))
            if self._runs:
                self.places.wait()


def failed_as_recorded(folder: Path, label: str) -> FailedRun:
    """A run without a result, as its manifest tells."""
    told = read_run(folder).manifest
    status, reason, spent = str(told.get("status")), str(told.get("fault")), told.get("totals") or {}
    return FailedRun(folder, label, str(told["method"]), int(told["seed"]), status, fault_round(told), reason, spent)


def fault_round(manifest: Mapping[str, Any]) -> int:
    """The round in which a run ended without a result; 0 if its manifest does not say."""
    found = manifest.get("fault_round")
    return found if isinstance(found, int) else 0


def failed_by(plan: Plan, reason: str, watch: Watch) -> FailedRun:
    """The run that an error ended, as its manifest tells if the run could write it; its folder may be gone."""
    try:
        told = read_run(plan.folder).manifest
    except LedgerError:
        told = {}
    watch.warn(f"failed: {reason}; the other runs go on without it")
    if told.get("fault") == reason and told.get("status") in ("failed", "diverged"):  # the watch heard of its end
        return failed_as_recorded(plan.folder, plan.label)
    begun = told.get("status") in ("running", "interrupted")
    found = _mark_dead(plan, reason) if begun else plan.failed("failed", 0, reason)
    watch.end(found)
    return found


def _mark_dead(plan: Plan, reason: str) -> FailedRun:
    """Writes into the manifest that a run failed; there may be none yet."""
    at = 0
    with suppress(LedgerError), RunFolder.open(plan.folder) as folder:
        at = max(folder.checkpoints.rounds(), default=0) + 1
        folder.update_manifest(status="failed", fault=reason, fault_round=at)
    return plan.failed("failed", at, reason)


def error_of(told: Mapping[str, Any]) -> Exception:
    """The error that `describe_error` describes: of the same class if that is ours or Python's, else of its name."""
    name, text = str(told["name"]), str(told["text"])
    ours = {kind.__name__: kind for root in (UserError, LedgerError) for kind in (root, *_subclasses(root))}
    kind = ours.get(name) or getattr(builtins, name, None)
    fault: Exception | None = None
    if told["os"]:
        fault = OSError(*told["os"])
    elif isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # it wants more than a text
            fault = kind(text)
    if fault is None or (str(fault) != text and not told["os"]):
        fault = type(name, (Exception,), {"exit_code": told["exit_code"]})(text)
    fault.add_note(f"In the process of the run:\n{told['traceback']}")
    return fault


def _subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)
