"""Clients side by side: each one's half runs until it wants to fit; then all fits that wait are done at once.

A half that trains as usual (`LocalTraining.train`) is known to fit once, and runs in two parts. Any other runs in a
seat: a thread, of which only one, or the engine itself, ever runs, for the baton passes from hand to hand. So a method
takes part as it is written, whatever it does before and after its fits, and however many it asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeAlias

import torch

from potluck.core import Fit, Reply
from potluck.engines.context import TaskEnvelope, TaskResult
from potluck.engines.worker import TaskRun, Worker
from potluck.learn import FitJob, fit_stacked, is_usual, likeness

Grant: TypeAlias = Callable[[Sequence[FitJob]], "list[Fit | Exception]"]
"""Does fits; what one of them raises stands in its place."""


class BatchedFits:
    """Answers several letters at once."""

    def __init__(self, site: Worker, grant: Grant) -> None:
        self.site, self.grant = site, grant
        self._seats: list[_Seat] = []

    def answer(self, envelopes: Sequence[TaskEnvelope]) -> list[TaskResult]:
        """The outcomes of these letters, in their order."""
        method = self.site.context.method
        if all(is_usual(method, envelope.task.verb) for envelope in envelopes):
            return self._usual(envelopes)
        while len(self._seats) < len(envelopes):
            self._seats.append(_Seat(self.site))
        seats = self._seats[: len(envelopes)]
        for seat, envelope, place in zip(seats, envelopes, places(envelopes), strict=True):
            seat.begin(envelope, place)
        while waiting := [(seat, seat.job) for seat in seats if seat.job is not None]:
            fits = self.grant([job for _, job in waiting])
            for (seat, _), done in zip(waiting, fits, strict=True):
                seat.go_on(done)
        return [seat.outcome for seat in seats if seat.outcome is not None]

    def _usual(self, envelopes: Sequence[TaskEnvelope]) -> list[TaskResult]:
        method = self.site.context.method
        halves = [
            TaskRun(self.site, envelope, place) for envelope, place in zip(envelopes, places(envelopes), strict=True)
        ]
        jobs: dict[int, FitJob] = {}
        found: dict[int, TaskResult] = {}
        for at, half in enumerate(halves):
            try:
                jobs[at] = half.device.job(*method.lesson(half.envelope.task, half.device))
            except Exception as fault:
                found[at] = half.outcome(partial(_raised, fault))
        for (at, job), done in zip(jobs.items(), self.grant(list(jobs.values())), strict=True):
            found[at] = halves[at].outcome(partial(_reported, method, halves[at], job, done))
        return [found[at] for at in range(len(envelopes))]

    def close(self) -> None:
        """Ends the threads."""
        for seat in self._seats:
            seat.leave()
        self._seats = []


def places(envelopes: Sequence[TaskEnvelope]) -> list[Hashable]:
    """A place for each of these, where it has networks of its own: so few that letters of one kind share a few."""
    count: Counter[Hashable] = Counter()
    found: list[Hashable] = []
    for envelope in envelopes:
        kind = tuple((key, model.spec) for key, model in sorted(envelope.task.models.items()))
        found.append((kind, count[kind]))
        count[kind] += 1
    return found


def _raised(fault: Exception) -> Reply:
    raise fault


def _reported(method: Any, half: TaskRun, job: FitJob, done: Fit | Exception) -> Reply:
    """The reply of a client that trained as usual."""
    if isinstance(done, Exception):
        raise done
    reply: Reply = method.report(half.envelope.task, half.device, job.net, half.device.told(job, done))
    return reply


class _Seat:
    """Where one client's half runs, until it wants to fit or is done."""

    def __init__(self, site: Worker) -> None:
        self.site = site
        self.place: Hashable = None
        self.job: FitJob | None = None
        self.outcome: TaskResult | None = None
        self._letter: TaskEnvelope | None = None
        self._done: Fit | Exception | None = None
        self._mine, self._theirs = Lock(), Lock()  # whoever waits for the baton acquires a lock that is held
        self._mine.acquire()
        self._theirs.acquire()
        Thread(target=self._live, daemon=True).start()

    def begin(self, envelope: TaskEnvelope, place: Hashable) -> None:
        self._letter, self.place, self.outcome = envelope, place, None
        self._hand_over()

    def go_on(self, done: Fit | Exception) -> None:
        self._done, self.job = done, None
        self._hand_over()

    def leave(self) -> None:
        self._letter = None
        self._mine.release()

    def ask(self, job: FitJob) -> Fit:
        """Called in the seat: waits until the fit is done."""
        self.job = job
        self._theirs.release()
        self._mine.acquire()
        assert self._done is not None
        if isinstance(self._done, Exception):
            raise self._done
        return self._done

    def _hand_over(self) -> None:
        self._mine.release()
        self._theirs.acquire()

    def _live(self) -> None:
        torch.set_num_threads(1)
        while True:
            self._mine.acquire()
            if self._letter is None:
                return
            self.outcome = self.site.answer(self._letter, self.place, self.ask)
            self._theirs.release()


def stacked(jobs: Sequence[FitJob]) -> list[Fit | Exception]:
    """Does fits of networks that are alike in one go, and every other one by itself."""
    alike: dict[object, list[int]] = {}
    for at, job in enumerate(jobs):
        key = likeness(job)
        alike.setdefault(("alone", at) if key is None else key, []).append(at)
    found: dict[int, Fit | Exception] = {}
    for members in alike.values():
        chosen = [jobs[at] for at in members]
        try:
            fits = fit_stacked(chosen) if len(chosen) > 1 else [chosen[0].granted()]
            found |= zip(members, fits, strict=True)
        except Exception as fault:
            found |= dict.fromkeys(members, fault)
    return [found[at] for at in range(len(jobs))]
