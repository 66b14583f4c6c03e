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
from potluck.engines.site import Half, Site
from potluck.engines.world import Letter, Outcome
from potluck.learn import Wish, fit_stacked, is_usual, likeness

Grant: TypeAlias = Callable[[Sequence[Wish]], "list[Fit | Exception]"]
"""Does fits; what one of them raises stands in its place."""


class Together:
    """Answers several letters at once."""

    def __init__(self, site: Site, grant: Grant) -> None:
        self.site, self.grant = site, grant
        self._seats: list[_Seat] = []

    def answer(self, letters: Sequence[Letter]) -> list[Outcome]:
        """The outcomes of these letters, in their order."""
        method = self.site.world.method
        if all(is_usual(method, letter.task.verb) for letter in letters):
            return self._usual(letters)
        while len(self._seats) < len(letters):
            self._seats.append(_Seat(self.site))
        seats = self._seats[: len(letters)]
        for seat, letter, place in zip(seats, letters, places(letters), strict=True):
            seat.begin(letter, place)
        while waiting := [(seat, seat.wish) for seat in seats if seat.wish is not None]:
            fits = self.grant([wish for _, wish in waiting])
            for (seat, _), done in zip(waiting, fits, strict=True):
                seat.go_on(done)
        return [seat.outcome for seat in seats if seat.outcome is not None]

    def _usual(self, letters: Sequence[Letter]) -> list[Outcome]:
        method = self.site.world.method
        halves = [Half(self.site, letter, place) for letter, place in zip(letters, places(letters), strict=True)]
        wishes: dict[int, Wish] = {}
        found: dict[int, Outcome] = {}
        for at, half in enumerate(halves):
            try:
                wishes[at] = half.device.wish(*method.lesson(half.letter.task, half.device))
            except Exception as fault:
                found[at] = half.outcome(partial(_raised, fault))
        for (at, wish), done in zip(wishes.items(), self.grant(list(wishes.values())), strict=True):
            found[at] = halves[at].outcome(partial(_reported, method, halves[at], wish, done))
        return [found[at] for at in range(len(letters))]

    def close(self) -> None:
        """Ends the threads."""
        for seat in self._seats:
            seat.leave()
        self._seats = []


def places(letters: Sequence[Letter]) -> list[Hashable]:
    """A place for each of these, where it has networks of its own: so few that letters of one kind share a few."""
    count: Counter[Hashable] = Counter()
    found: list[Hashable] = []
    for letter in letters:
        kind = tuple((key, model.spec) for key, model in sorted(letter.task.models.items()))
        found.append((kind, count[kind]))
        count[kind] += 1
    return found


def _raised(fault: Exception) -> Reply:
    raise fault


def _reported(method: Any, half: Half, wish: Wish, done: Fit | Exception) -> Reply:
    """The reply of a client that trained as usual."""
    if isinstance(done, Exception):
        raise done
    reply: Reply = method.report(half.letter.task, half.device, wish.net, half.device.told(wish, done))
    return reply


class _Seat:
    """Where one client's half runs, until it wants to fit or is done."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.place: Hashable = None
        self.wish: Wish | None = None
        self.outcome: Outcome | None = None
        self._letter: Letter | None = None
        self._done: Fit | Exception | None = None
        self._mine, self._theirs = Lock(), Lock()  # whoever waits for the baton acquires a lock that is held
        self._mine.acquire()
        self._theirs.acquire()
        Thread(target=self._live, daemon=True).start()

    def begin(self, letter: Letter, place: Hashable) -> None:
        self._letter, self.place, self.outcome = letter, place, None
        self._hand_over()

    def go_on(self, done: Fit | Exception) -> None:
        self._done, self.wish = done, None
        self._hand_over()

    def leave(self) -> None:
        self._letter = None
        self._mine.release()

    def ask(self, wish: Wish) -> Fit:
        """Called in the seat: waits until the fit is done."""
        self.wish = wish
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


def stacked(wishes: Sequence[Wish]) -> list[Fit | Exception]:
    """Does fits of networks that are alike in one go, and every other one by itself."""
    alike: dict[object, list[int]] = {}
    for at, wish in enumerate(wishes):
        key = likeness(wish)
        alike.setdefault(("alone", at) if key is None else key, []).append(at)
    found: dict[int, Fit | Exception] = {}
    for members in alike.values():
        chosen = [wishes[at] for at in members]
        try:
            fits = fit_stacked(chosen) if len(chosen) > 1 else [chosen[0].granted()]
            found |= zip(members, fits, strict=True)
        except Exception as fault:
            found |= dict.fromkeys(members, fault)
    return [found[at] for at in range(len(wishes))]
