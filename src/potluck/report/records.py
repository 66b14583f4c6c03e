"""Typed records of one run. `read.py` fills them from the run folder; all else in the report reads only these.

None means that the run folder does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Points = list[tuple[float, float]]
"""(x, y) in the order in which a line connects them."""

SERVER = "server"
"""The server as a client and as a tier of the ledger. Its work is not part of what devices pay."""


ANSWERED, SILENT, THERE, AWAY, UNKNOWN = "ast- "
"""A node in a round: answered; was asked and gave no answer; was there and not asked; was away; nothing recorded."""


@dataclass(frozen=True, slots=True)
class ModelScore:
    """The scores of one model on one set of examples."""

    value: float | None = None
    """The run's metric. Accuracy and F1 lie in [0, 1], correlations in [-1, 1]."""
    loss: float | None = None
    count: int | None = None
    """Number of examples."""
    per_class: tuple[float | None, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    """Other metrics by name, F1 of each entity type among them."""


@dataclass(frozen=True, slots=True)
class ClientScores:
    """The metric over clients, each on its own examples."""

    mean: float | None = None
    sd: float | None = None
    worst: float | None = None
    """Mean of the worst tenth of the clients."""
    count: int | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundScores:
    """All scores after `round` rounds; round 0 is the untrained model."""

    round: int
    validation: ModelScore = ModelScore()
    test: ModelScore = ModelScore()
    clients: ClientScores = ClientScores()
    own: ModelScore = ModelScore()
    """All clients of a tier together, each on its own examples; recorded if the metric is not accuracy."""
    local: ClientScores = ClientScores()
    """The shared model on each client's own test examples, choosing among the client's own classes only."""
    personal: ClientScores = ClientScores()
    """Each client's model after its local epochs, on the common test set."""
    own_mix: ClientScores = ClientScores()
    """The same models on the common test set with each client's own mix of labels."""
    commonest: float | None = None
    """The mean share of a client's commonest label: what always saying this label would score on the own mix."""

    @property
    def score(self) -> float | None:
        """The metric on the test set; the mean over clients if no shared model was scored."""
        return self.clients.mean if self.test.value is None else self.test.value


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Scores over the rounds, in order."""

    points: tuple[RoundScores, ...] = ()
    best_by: str = "validation"
    """What chooses the best round: "validation", or "test" if the run's settings ask for it."""

    @property
    def final(self) -> RoundScores | None:
        """The last round with a score."""
        return next((point for point in reversed(self.points) if point.score is not None), None)

    @property
    def best(self) -> RoundScores | None:
        """The first round with the highest validation score; with `best_by = "test"`, with the highest test score."""
        by_test = self.best_by == "test"
        scores = [(point.score if by_test else point.validation.value, point) for point in self.points]
        known = [(score, point) for score, point in scores if score is not None]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    @property
    def last_local(self) -> RoundScores | None:
        """The last round with local scores: the shared model on each client's own examples."""
        known = (point for point in reversed(self.points) if point.local.mean is not None or point.local.values)
        return next(known, None)

    @property
    def last_personal(self) -> RoundScores | None:
        """The last round in which clients' models were scored after their local epochs."""
        return next((point for point in reversed(self.points) if point.personal.mean is not None), None)

    @property
    def on_clients(self) -> bool:
        """Whether the score is a mean over clients, because no shared model was scored."""
        return self.final is not None and self.final.test.value is None

    def line(self, pick: Callable[[RoundScores], float | None]) -> Points:
        """(round, value) of every round that has the value."""
        pairs = ((point.round, pick(point)) for point in self.points)
        return [(float(round_), value) for round_, value in pairs if value is not None]


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if no value is known, because unknown is not zero."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """The cost of a set of tasks."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    visits: int = 0
    """Number of (client, round) pairs; a client may get several tasks in one round."""
    bytes_down: float | None = None
    bytes_up: float | None = None
    measured_seconds: float | None = None
    flops: float | None = None
    memory: float | None = None
    """The largest of all tasks, not the sum."""
    modelled_seconds: float | None = None
    joules: float | None = None

    @property
    def bytes(self) -> float | None:
        """Both directions together."""
        return sum_known((self.bytes_down, self.bytes_up))

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
        """One of these totals, divided by the number of visits."""
        return None if amount is None or not self.visits else amount / self.visits


@dataclass(frozen=True, slots=True)
class TierRecord:
    """One tier of devices: its model, its scores and its cost."""

    name: str
    share: float | None = None
    clients: int | None = None
    profile: str = ""
    basis: str = ""
    """What its modelled time and memory rest on, if not on a built-in profile: measured, fitted, ..."""
    source: str = ""
    """Where that comes from."""
    parameters: int | None = None
    width: str = ""
    depth: str = ""
    curve: LearningCurve = LearningCurve()
    totals: TaskTotals = TaskTotals()
    accepted: TaskTotals = TaskTotals()
    """Only tasks whose reply was accepted; the cost of one visit comes from these."""
    messages_down: float | None = None
    """Bytes of all messages that went to its nodes; None in a simulation."""
    messages_up: float | None = None
    """Bytes of all messages that came from its nodes."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of a federation: a real machine in the place of a simulated client."""

    id: str
    name: str
    """Its name for people; with the first digits of its id if another node has the same name."""
    tier: str = ""
    """The one that it was in last."""
    presence: str = ""
    """One letter for each round, from round 1 on: `ANSWERED`, `SILENT`, `THERE`, `AWAY` or `UNKNOWN`."""
    bytes_down: float | None = None
    """Bytes of all messages that went to it."""
    bytes_up: float | None = None
    score: float | None = None
    """The metric on its own examples in the last scored round."""

    @property
    def answered(self) -> int:
        """In how many rounds it answered."""
        return self.presence.count(ANSWERED)

    @property
    def asked(self) -> int:
        """In how many rounds it was asked."""
        return self.answered + self.presence.count(SILENT)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One finished round: its cost and its mean training loss."""

    number: int
    seconds: float | None = None
    sent: int | None = None
    accepted: int | None = None
    loss: float | None = None
    device_seconds: float | None = None
    """Modelled time of the slowest device: how long the round would take on real devices."""
    round_seconds: float | None = None
    """The same with the wait for the server: plus the modelled time of the server's own tasks."""
    bytes_down: float | None = None
    bytes_up: float | None = None
    joules: float | None = None
    flops: float | None = None
    least_trained: int | None = None
    """How often the least trained unit of the model had been trained by then."""


@dataclass(frozen=True, slots=True)
class GroupCoverage:
    """How often each unit of one axis group was trained, over all clients and rounds."""

    name: str
    counts: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The counts that are known."""
        return [count for count in self.counts if count is not None]


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """One knowledge transfer on the server, from a teacher network to a student network."""

    round: int
    name: str
    """Teacher and student."""
    fidelity: float | None = None
    """Cosine similarity of the student's logits and the teacher's, scaled to [0, 1]."""
    teacher_layers: tuple[str, ...] = ()
    student_layers: tuple[str, ...] = ()
    """The layers whose features were compared."""
    loc: tuple[tuple[float | None, ...], ...] = ()
    """Importance of each pair of layers: one row per teacher layer, one column per student layer."""

    @property
    def mean_loc(self) -> float | None:
        """Mean importance over all pairs of layers."""
        known = [value for row in self.loc for value in row if value is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Tasks that failed for the same reason, and how often."""

    outcome: str
    tier: str
    reason: str
    times: int
    first_round: int
    last_round: int
    node: str = ""
    """The node whose tasks they were, in a federation of real nodes: there each node has failures of its own."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything that the report knows about one run."""

    folder: Path
    name: str
    label: str
    """The method with its settings, and the variant."""
    variant: str = ""
    """What the run varies besides the method, such as "share = 0.1"."""
    method: str = ""
    seed: int | None = None
    status: str = "unknown"
    metric: str = "accuracy"
    """Name of the metric in the run folder."""
    planned_rounds: int | None = None
    classes: int | None = None
    clients: int | None = None
    tiers: tuple[TierRecord, ...] = ()
    curve: LearningCurve = LearningCurve()
    """Scores of the shared model; means over clients if there is none."""
    rounds: tuple[RoundRecord, ...] = ()
    transfers: tuple[TransferRecord, ...] = ()
    coverage: tuple[GroupCoverage, ...] = ()
    """One per axis group, the largest first; empty if every client trains the whole model."""
    epsilons: tuple[tuple[int, float], ...] = ()
    """(round, epsilon so far) of runs with [privacy]."""
    nodes: tuple[NodeRecord, ...] = ()
    """The nodes of a federation, by name; empty in a simulation."""
    totals: TaskTotals = TaskTotals()
    failures: tuple[TaskFailure, ...] = ()
    warnings: tuple[tuple[int | None, str], ...] = ()
    """(round, text)"""
    settings: str = ""
    targets: tuple[float, ...] = ()
    """Scores to which rounds are counted, as the settings name them; empty if they name none."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """What comparisons are held equal in, as the settings name it: rounds, bytes, time, energy or flops."""
    chosen: Mapping[str, object] = field(default_factory=dict)
    """What the method chose by tuning, and what that cost; empty if it was not tuned."""
    manifest: Mapping[str, object] = field(default_factory=dict)
    features: Mapping[str, object] = field(default_factory=dict)
    """CKA and PCA of the tiers' features, as written; `features.py` reads them."""
    holdings: Mapping[str, object] = field(default_factory=dict)
    """Rows of each label that clients hold, as written; `holdings.py` reads them."""

    @property
    def failure(self) -> str:
        """How the run ended without a result, such as "diverged in round 12"; empty if it did not end so."""
        if self.status not in ("diverged", "failed"):
            return ""
        at = self.manifest.get("fault_round")
        return f"{self.status} in round {at}" if isinstance(at, int) else self.status

    @property
    def rounds_done(self) -> int:
        """Number of rounds done so far."""
        scored = self.curve.points[-1].round if self.curve.points else 0
        return max(scored, self.rounds[-1].number if self.rounds else 0)

    @property
    def device_seconds(self) -> float | None:
        """Modelled time on real devices: the slowest device of each round, summed."""
        return sum_known(record.device_seconds for record in self.rounds)

    @property
    def round_seconds(self) -> float | None:
        """Modelled time with the wait for the server: the slowest device and the server's own tasks of each round."""
        return sum_known(record.round_seconds for record in self.rounds)

    @property
    def waits_for_server(self) -> bool:
        """Whether the server has work of its own that takes time."""
        return (self.round_seconds or 0.0) > (self.device_seconds or 0.0)

    @property
    def seconds(self) -> float | None:
        """Measured time on the machine that ran this."""
        return sum_known(record.seconds for record in self.rounds)

    @property
    def message_bytes(self) -> float | None:
        """Bytes of all messages between the server and the nodes of a federation."""
        return sum_known(amount for tier in self.tiers for amount in (tier.messages_down, tier.messages_up))

    def tier(self, name: str) -> TierRecord | None:
        return next((tier for tier in self.tiers if tier.name == name), None)
