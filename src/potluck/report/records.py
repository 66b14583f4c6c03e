"""What a report knows of a run: plain records, free of files and of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from potluck.report.lessons import Lesson

Line = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Score:
    """How well one model did on one set of examples."""

    value: float | None = None
    """The score that the run is judged by; accuracies and F1 lie in [0, 1], correlations in [-1, 1]."""
    loss: float | None = None
    count: int | None = None
    per_class: tuple[float | None, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict)
    """Other scores by name; F1 by kind of entity among them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The score over clients, each on its own examples; `worst` is the mean of the worst tenth."""

    mean: float | None = None
    sd: float | None = None
    worst: float | None = None
    count: int | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """The scores after `round` rounds; 0 is the untrained model."""

    round: int
    validation: Score = Score()
    test: Score = Score()
    clients: Spread = Spread()
    own: Score = Score()
    """A tier's clients taken together, each on its own examples, where the run is judged by more than accuracy."""
    local: Spread = Spread()
    """The shared model on every client's own test examples, choosing among the client's own classes only."""

    @property
    def score(self) -> float | None:
        """On the test set; where the models live on the clients, the mean over clients."""
        return self.clients.mean if self.test.value is None else self.test.value


@dataclass(frozen=True, slots=True)
class Curve:
    """Scores over the rounds, in order."""

    points: tuple[Point, ...] = ()

    @property
    def final(self) -> Point | None:
        """The last scored round."""
        return next((point for point in reversed(self.points) if point.score is not None), None)

    @property
    def best(self) -> Point | None:
        """The first round with the highest validation score; nothing where none was measured."""
        judged = [(point.validation.value, point) for point in self.points if point.validation.value is not None]
        return max(judged, key=lambda pair: pair[0])[1] if judged else None

    @property
    def local(self) -> Point | None:
        """The last round in which the shared model was scored on every client's own examples."""
        known = (point for point in reversed(self.points) if point.local.mean is not None or point.local.values)
        return next(known, None)

    @property
    def on_clients(self) -> bool:
        """Whether the score is a mean over clients, because no shared model was scored."""
        return self.final is not None and self.final.test.value is None

    def line(self, pick: Callable[[Point], float | None]) -> Line:
        """(round, value) wherever there is a value."""
        pairs = ((point.round, pick(point)) for point in self.points)
        return [(float(round_), value) for round_, value in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class Task:
    """One request to one device: how it ended and what it took."""

    round: int
    client: str
    tier: str
    outcome: str
    reason: str = ""
    bytes_down: float | None = None
    bytes_up: float | None = None
    measured_seconds: float | None = None
    flops: float | None = None
    memory: float | None = None
    modelled_seconds: float | None = None
    joules: float | None = None


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; nothing when nothing is, for unknown is not free."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Totals:
    """What a set of tasks took together."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    visits: int = 0
    """How often a client took part in a round, whatever the number of tasks it got there."""
    bytes_down: float | None = None
    bytes_up: float | None = None
    measured_seconds: float | None = None
    flops: float | None = None
    memory: float | None = None
    """The largest need of one task."""
    modelled_seconds: float | None = None
    joules: float | None = None

    @classmethod
    def of(cls, tasks: list[Task]) -> Totals:
        outcomes: dict[str, int] = {}
        for task in tasks:
            outcomes[task.outcome] = outcomes.get(task.outcome, 0) + 1
        return cls(
            outcomes=outcomes,
            visits=len({(task.round, task.client) for task in tasks}),
            bytes_down=total(task.bytes_down for task in tasks),
            bytes_up=total(task.bytes_up for task in tasks),
            measured_seconds=total(task.measured_seconds for task in tasks),
            flops=total(task.flops for task in tasks),
            memory=max((task.memory for task in tasks if task.memory is not None), default=None),
            modelled_seconds=total(task.modelled_seconds for task in tasks),
            joules=total(task.joules for task in tasks),
        )

    @property
    def bytes(self) -> float | None:
        """Both directions."""
        return total((self.bytes_down, self.bytes_up))

    @property
    def accepted(self) -> int:
        return self.outcomes.get("accepted", 0)

    @property
    def absent(self) -> int:
        return self.outcomes.get("absent", 0)

    @property
    def quarantined(self) -> int:
        return self.outcomes.get("quarantined", 0)

    def per_visit(self, amount: float | None) -> float | None:
        """An amount of these totals, per client and round."""
        return None if amount is None or not self.visits else amount / self.visits


@dataclass(frozen=True, slots=True)
class Tier:
    """A kind of device: what it carries, how well it does, what it spent."""

    name: str
    share: float | None = None
    clients: int | None = None
    profile: str = ""
    parameters: int | None = None
    width: str = ""
    depth: str = ""
    curve: Curve = Curve()
    totals: Totals = Totals()
    accepted: Totals = Totals()
    """Only the tasks whose reply counted: what one visit costs is asked of these."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round that was done: what it took, and the mean training loss."""

    number: int
    seconds: float | None = None
    sent: int | None = None
    accepted: int | None = None
    loss: float | None = None
    device_seconds: float | None = None
    """Modelled time of the slowest device: how long the round would last in the field."""
    bytes_down: float | None = None
    bytes_up: float | None = None
    joules: float | None = None
    least: int | None = None
    """How often the unit that was trained least had been trained by then."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often each unit of one axis group has been trained, over clients and rounds; None where it is unknown."""

    name: str
    counts: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [count for count in self.counts if count is not None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which tasks failed, and how often."""

    outcome: str
    tier: str
    reason: str
    times: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder, read."""

    folder: Path
    name: str
    label: str
    variant: str = ""
    """What it varies besides the method, in a word or two; part of its label."""
    method: str = ""
    seed: int | None = None
    status: str = "unknown"
    metric: str = "accuracy"
    """The name of the score that it is judged by."""
    planned: int | None = None
    """Rounds asked for."""
    classes: int | None = None
    clients: int | None = None
    tiers: tuple[Tier, ...] = ()
    curve: Curve = Curve()
    """The shared model, or where there is none the mean over clients."""
    rounds: tuple[Round, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    """What networks taught each other on the server."""
    coverage: tuple[Coverage, ...] = ()
    """One per axis group, the largest first; empty where every client trains everything."""
    totals: Totals = Totals()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[tuple[int | None, str], ...] = ()
    settings: str = ""
    targets: tuple[float, ...] = ()
    """The scores to which it asked rounds to be counted, as it named them; empty where it named none."""
    manifest: Mapping[str, object] = field(default_factory=dict)
    features: Mapping[str, object] = field(default_factory=dict)
    """What was seen of the tiers' networks at the end, as it was written."""

    @property
    def done(self) -> int:
        """Rounds done so far."""
        scored = self.curve.points[-1].round if self.curve.points else 0
        return max(scored, self.rounds[-1].number if self.rounds else 0)

    @property
    def device_seconds(self) -> float | None:
        """Modelled time in the field: the slowest device of every round, summed."""
        return total(line.device_seconds for line in self.rounds)

    @property
    def seconds(self) -> float | None:
        """Measured time on the machine that ran this."""
        return total(line.seconds for line in self.rounds)

    def tier(self, name: str) -> Tier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)
