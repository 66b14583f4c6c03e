"""What networks taught each other on the server, as the ledger tells it."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.report.picking import Json, listing, mapping, number, text, whole


@dataclass(frozen=True, slots=True)
class Lesson:
    """One transfer from a teacher to a student."""

    round: int
    name: str
    """Who taught whom."""
    fidelity: float | None = None
    """How much the student's scores point where its teacher's do, from 0 to 1."""
    teacher: tuple[str, ...] = ()
    student: tuple[str, ...] = ()
    """The layers whose features were compared."""
    loc: tuple[tuple[float | None, ...], ...] = ()
    """How much each pair of layers mattered: a line for each of the teacher's."""

    @property
    def mean(self) -> float | None:
        """How much a pair mattered on average."""
        known = [value for line in self.loc for value in line if value is not None]
        return sum(known) / len(known) if known else None


def lesson_of(event: Json) -> Lesson | None:
    """A line of the ledger, read; None where it tells of no transfer that counted."""
    told = mapping(event.get("metrics"))
    found = Lesson(whole(event.get("round")) or 0, text(event.get("key")), number(told.get("fidelity")), *_table(told))
    counted = text(event.get("outcome"), "accepted") == "accepted"
    return found if counted and (found.loc or found.fidelity is not None) else None


def _table(told: Json) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[float | None, ...], ...]]:
    """The layers of both networks and their table; nothing where it is crooked. Layers without names are numbered."""
    loc = tuple(tuple(number(value) for value in listing(line)) for line in listing(told.get("loc")))
    if not loc or not loc[0] or len({len(line) for line in loc}) > 1:
        return (), (), ()
    named = [tuple(text(name) for name in listing(names)) for names in listing(told.get("taps"))]
    if [len(names) for names in named] != [len(loc), len(loc[0])]:
        named = [tuple(str(place + 1) for place in range(size)) for size in (len(loc), len(loc[0]))]
    return named[0], named[1], loc
