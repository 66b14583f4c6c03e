"""The cost and the outcome of tasks, summed while the ledger is read: memory follows the rounds, not the tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from potluck.report.json_values import Json, integer, mapping, number, text
from potluck.report.records import SERVER, TaskFailure, TaskTotals, sum_known

OPEN_ROUNDS = 2
"""So many rounds are kept task by task: an event may come late, but hardly by more than a round."""

Amounts: TypeAlias = tuple[float | None, ...]
"""Bytes down, bytes up, measured seconds, FLOPs, modelled seconds, joules."""

Task: TypeAlias = tuple[str, str, str, str, float | None, Amounts]
"""Client, tier, outcome, reason, memory and amounts."""


Group: TypeAlias = tuple[str, str, bool]
"""Tier, outcome, and whether the tasks are the server's own."""


class OutOfOrder(Exception):
    """An event of a round whose tasks were summed already."""


class RunningTotals:
    """Running totals of tasks."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.visits = 0
        self.memory: float | None = None
        self.amounts: list[float | None] = [None] * 6

    def add(self, outcome: str, count: int, memory: float | None, amounts: Iterable[float | None]) -> None:
        """Adds some tasks of this outcome. Their visits are counted apart."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        if memory is not None and (self.memory is None or memory > self.memory):
            self.memory = memory
        self.amounts = list(map(_plus, self.amounts, amounts))

    def totals(self) -> TaskTotals:
        """The same as a record."""
        down, up, measured, flops, modelled, joules = self.amounts
        return TaskTotals(self.outcomes, self.visits, down, up, measured, flops, self.memory, modelled, joules)


def _plus(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


@dataclass
class RoundCost:
    """What the tasks of one round cost."""

    bytes_down: float | None = None
    bytes_up: float | None = None
    joules: float | None = None
    flops: float | None = None
    slowest_client: float | None = None
    """Modelled seconds of the slowest client, over all its tasks."""
    server_seconds: float = 0.0
    """Modelled seconds of the server's own tasks; the other fields are without them."""


@dataclass
class TaskLog:
    """The tasks of a ledger. A task that was done again after a stop appears twice; the later one counts."""

    open_rounds: int | None = OPEN_ROUNDS
    """None: all rounds stay open, however long the ledger is."""
    by_node: bool = False
    """Whether failures are told apart by client: in a federation of real nodes, which are few."""
    clients: RunningTotals = field(default_factory=RunningTotals)
    """All tasks but the server's own; this and the next two after `finish`."""
    tiers: dict[str, RunningTotals] = field(default_factory=lambda: defaultdict(RunningTotals))
    accepted: dict[str, RunningTotals] = field(default_factory=lambda: defaultdict(RunningTotals))
    """By tier, only the tasks whose reply was accepted."""
    rounds: dict[int, RoundCost] = field(default_factory=lambda: defaultdict(RoundCost))
    _failed: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    """By outcome, tier, reason and node: how often, the first and the last round."""
    _groups: dict[Group, RunningTotals] = field(default_factory=lambda: defaultdict(RunningTotals))
    _open: dict[int, dict[object, Task]] = field(default_factory=dict)
    _summed: float = float("-inf")

    def add(self, event: Json, position: int) -> None:
        """Adds a task event; `position` is its place in the ledger."""
        round = integer(event.get("round")) or 0
        if round not in self._open:
            self._begin(round)
        task = _parse(event)
        verb, key, attempt = text(event.get("verb")), text(event.get("key")), event.get("attempt")
        self._open[round][(task[0], verb, key, str(attempt)) if task[0] else position] = task

    def finish(self) -> None:
        """Sums what is still open, and adds up the groups."""
        for round in list(self._open):
            self._sum(round, self._open.pop(round).values())
        for (tier, outcome, own), sums in self._groups.items():
            totals = [self.tiers[tier]] + [self.accepted[tier]] * (outcome == "accepted") + [self.clients] * (not own)
            for each in totals:
                each.add(outcome, sums.outcomes[outcome], sums.memory, sums.amounts)

    def failures(self) -> tuple[TaskFailure, ...]:
        """Failed tasks, grouped by outcome, tier, reason and node; the most frequent group first."""
        failures = [
            TaskFailure(outcome, tier, reason, times, first, last, node)
            for (outcome, tier, reason, node), (times, first, last) in self._failed.items()
        ]
        return tuple(sorted(failures, key=lambda one: (-one.times, one.outcome, one.tier, one.reason, one.node)))

    def _begin(self, round: int) -> None:
        """Opens a round, and sums the oldest if too many are open."""
        if round <= self._summed:
            raise OutOfOrder
        self._open[round] = {}
        if self.open_rounds is not None and len(self._open) > self.open_rounds:
            self._summed = min(self._open)
            if self._summed == round:
                raise OutOfOrder
            self._sum(int(self._summed), self._open.pop(int(self._summed)).values())

    def _sum(self, round: int, tasks: Collection[Task]) -> None:
        """Adds all tasks of a round to the sums of their groups."""
        groups: dict[Group, list[Task]] = defaultdict(list)
        for task in tasks:
            groups[task[1], task[2], task[0] == SERVER].append(task)
        for (tier, outcome, own), members in groups.items():
            memory = max((task[4] for task in members if task[4] is not None), default=None)
            amounts = list(map(sum_known, zip(*(task[5] for task in members), strict=True)))
            self._groups[tier, outcome, own].add(outcome, len(members), memory, amounts)
            self._add_to_round(round, own, amounts)
            if outcome != "accepted":
                self._note_failures(round, outcome, tier, members)
        self._count_visits(tasks)
        self.rounds[round].slowest_client = _slowest_client(task for task in tasks if task[0] != SERVER)

    def _count_visits(self, tasks: Collection[Task]) -> None:
        """Counts the clients of a round; one with several tasks is one visit."""
        for tier, _ in dict.fromkeys((task[1], task[0]) for task in tasks):  # in order: tiers appear as they came
            self.tiers[tier].visits += 1
        for tier, _ in dict.fromkeys((task[1], task[0]) for task in tasks if task[2] == "accepted"):
            self.accepted[tier].visits += 1
        self.clients.visits += len({task[0] for task in tasks} - {SERVER})

    def _note_failures(self, round: int, outcome: str, tier: str, tasks: list[Task]) -> None:
        for task in tasks:
            node = task[0] if self.by_node and task[0] != SERVER else ""
            found = self._failed.setdefault((outcome, tier, task[3], node), [0, round, round])
            found[:] = found[0] + 1, min(found[1], round), max(found[2], round)

    def _add_to_round(self, round: int, own: bool, amounts: Sequence[float | None]) -> None:
        cost, (down, up, _, flops, seconds, joules) = self.rounds[round], amounts
        if own:
            cost.server_seconds += seconds or 0.0
            return
        cost.bytes_down, cost.bytes_up = _plus(cost.bytes_down, down), _plus(cost.bytes_up, up)
        cost.joules, cost.flops = _plus(cost.joules, joules), _plus(cost.flops, flops)


def _slowest_client(tasks: Iterable[Task]) -> float | None:
    """Modelled seconds of the slowest client, over all its tasks."""
    seconds: dict[str, float] = defaultdict(float)
    for client, *_, amounts in tasks:
        if amounts[4] is not None:
            seconds[client] += amounts[4]
    return max(seconds.values(), default=None)


def _parse(event: Json) -> Task:
    measured, modelled = mapping(event.get("measured")), mapping(event.get("modelled"))
    client = text(event.get("client"))
    return (
        client,
        text(event.get("tier")) or (SERVER if client == SERVER else "no tier"),
        text(event.get("outcome"), "accepted"),
        text(event.get("reason")),
        number(modelled.get("memory")),
        (
            number(measured.get("bytes_down")),
            number(measured.get("bytes_up")),
            number(measured.get("seconds")),
            number(modelled.get("flops")),
            number(modelled.get("seconds")),
            number(modelled.get("joules")),
        ),
    )
