"""Read a run folder into records. A missing or broken value leaves a gap, never an error."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from potluck.ledger import read_run
from potluck.report.budgets import known_budget
from potluck.report.json_values import Json, integer, mapping, number, sequence, text
from potluck.report.node_log import SHORT_ID, NodeLog, name_nodes
from potluck.report.records import (
    ClientScores,
    GroupCoverage,
    LearningCurve,
    ModelScore,
    RoundRecord,
    RoundScores,
    RunRecord,
    TaskFailure,
    TierRecord,
    TransferRecord,
)
from potluck.report.tasks import OutOfOrder, RoundCost, RunningTotals, TaskLog

MAX_COUNT = 1e15
"""A larger count of trainings is a broken value."""

MAX_EPSILON = 1e12
"""A larger epsilon promises nothing, and is not drawn."""

OTHER_METRICS = ("accuracy", "f1", "precision", "recall", "matthews", "pearson")
"""Metrics that a run may record besides its own."""


def read_record(folder: Path | str) -> RunRecord:
    """The record of the run in this folder."""
    found = read_run(Path(folder))
    run = make_record(found.path, found.manifest, found.settings, found.events, found.scores)
    return replace(run, features=found.features(), holdings=found.holdings())


def make_record(
    folder: Path, manifest: Json, settings: str, events: Callable[[], Iterable[Json]], scores: Sequence[Json]
) -> RunRecord:
    """The record of a run from the four things that every run folder holds; `events` begins to read them."""
    by_node = NodeLog(manifest).is_federation
    try:
        log = _sort_events(events(), TaskLog(by_node=by_node), NodeLog(manifest))
    except OutOfOrder:  # not a ledger as we write it, but read it all the same
        log = _sort_events(events(), TaskLog(open_rounds=None, by_node=by_node), NodeLog(manifest))
    names = log.nodes.names()
    name = text(manifest.get("name"), folder.name)
    score_lines = _last_per_round(scores)
    tables = _settings_tables(settings)
    scoring, compared = mapping(tables.get("score")), mapping(tables.get("compare"))
    best_by = "test" if scoring.get("best") == "test" else "validation"
    return RunRecord(
        folder=folder,
        name=name,
        label=_label(manifest) or name,
        variant=text(manifest.get("variant")),
        method=text(manifest.get("method")),
        seed=integer(manifest.get("seed")),
        status=text(manifest.get("status"), "unknown"),
        metric=next((text(line.get("metric")) for line in reversed(score_lines) if line.get("metric")), "accuracy"),
        planned_rounds=integer(manifest.get("rounds")),
        classes=integer(manifest.get("classes")),
        clients=integer(manifest.get("clients")),
        tiers=_tiers(manifest, score_lines, log, best_by),
        curve=LearningCurve(tuple(_overall_scores(line) for line in score_lines), best_by),
        rounds=tuple(_with_cost(log.rounds[index], log.tasks.rounds[index]) for index in sorted(log.rounds)),
        transfers=tuple(log.transfers.values()),
        coverage=log.coverage,
        epsilons=tuple(sorted(log.epsilons.items())),
        nodes=log.nodes.records(score_lines),
        totals=log.tasks.clients.totals(),
        failures=tuple(_with_name(failure, names) for failure in log.tasks.failures()),
        warnings=tuple((round, name_nodes(words, names)) for round, words in log.warnings),
        settings=settings,
        targets=_targets(scoring),
        budget=known_budget((name, number(amount)) for name, amount in mapping(compared.get("budget")).items()),
        chosen=mapping(compared.get("chosen")),
        manifest=manifest,
    )


def _with_name(failure: TaskFailure, names: Mapping[str, str]) -> TaskFailure:
    """A failure with the node's name in the place of its id."""
    node = names.get(failure.node, failure.node[:SHORT_ID])
    return replace(failure, node=node, reason=name_nodes(failure.reason, names))


def _label(manifest: Json) -> str:
    """The method with its settings, and the variant."""
    parts = (text(manifest.get("label")) or text(manifest.get("method")), text(manifest.get("variant")))
    return ", ".join(part for part in parts if part)


def _settings_tables(settings: str) -> Json:
    """The settings of the run; empty if they cannot be parsed."""
    try:
        return tomllib.loads(settings)
    except (ValueError, RecursionError):
        return {}


def _targets(scoring: Json) -> tuple[float, ...]:
    """The target scores, without repeats."""
    targets = map(number, sequence(scoring.get("targets")))
    return tuple(dict.fromkeys(target for target in targets if target is not None and -1 < target <= 1))


@dataclass
class _EventLog:
    """The events of the ledger, sorted by kind."""

    tasks: TaskLog
    nodes: NodeLog
    rounds: dict[int, RoundRecord] = field(default_factory=dict)
    warnings: list[tuple[int | None, str]] = field(default_factory=list)
    transfers: dict[tuple[object, ...], TransferRecord] = field(default_factory=dict)
    coverage: tuple[GroupCoverage, ...] = ()
    epsilons: dict[int, float] = field(default_factory=dict)


def _sort_events(events: Iterable[Json], tasks: TaskLog, nodes: NodeLog) -> _EventLog:
    """Sort events by kind. A round that was interrupted and done again appears twice; the later events count."""
    log = _EventLog(tasks, nodes)
    for position, event in enumerate(events):
        match event.get("event"):
            case "task":
                tasks.add(event, position)
                if event.get("metrics") and (transfer := parse_transfer(event)):
                    names = (text(event.get(name)) for name in ("client", "verb", "key"))
                    log.transfers[transfer.round, *names, integer(event.get("attempt"))] = transfer
            case "round":
                record = _round(event)
                log.rounds[record.number] = record
            case "nodes":
                nodes.add(event)
            case "coverage":
                log.coverage = _coverage(event) or log.coverage
            case "privacy":
                spent = number(event.get("epsilon"))
                if spent is not None and 0 <= spent <= MAX_EPSILON:
                    log.epsilons[integer(event.get("round")) or 0] = spent
            case "warning":
                log.warnings.append((integer(event.get("round")), text(event.get("text"))))
    tasks.finish()
    return log


def parse_transfer(event: Json) -> TransferRecord | None:
    """The knowledge transfer of a task event; None if the event has none or its reply was not accepted."""
    metrics = mapping(event.get("metrics"))
    round_, name = integer(event.get("round")) or 0, text(event.get("key"))
    transfer = TransferRecord(round_, name, number(metrics.get("fidelity")), *_layer_table(metrics))
    accepted = text(event.get("outcome"), "accepted") == "accepted"
    return transfer if accepted and (transfer.loc or transfer.fidelity is not None) else None


def _layer_table(metrics: Json) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[float | None, ...], ...]]:
    """The teacher's layers, the student's layers and the table of pairs; empty if the rows differ in length.

    Layers without names get numbers.
    """
    loc = tuple(tuple(number(value) for value in sequence(row)) for row in sequence(metrics.get("loc")))
    if not loc or not loc[0] or len({len(row) for row in loc}) > 1:
        return (), (), ()
    layers = [tuple(text(name) for name in sequence(names)) for names in sequence(metrics.get("taps"))]
    if [len(names) for names in layers] != [len(loc), len(loc[0])]:
        layers = [tuple(str(index + 1) for index in range(size)) for size in (len(loc), len(loc[0]))]
    return layers[0], layers[1], loc


def _round(event: Json) -> RoundRecord:
    least = _training_count(event.get("least"))
    return RoundRecord(
        number=integer(event.get("round")) or 0,
        seconds=number(event.get("seconds")),
        sent=integer(event.get("sent")),
        accepted=integer(event.get("accepted")),
        loss=number(event.get("loss")),
        device_seconds=number(event.get("device_seconds")),
        round_seconds=number(event.get("round_seconds")),
        least_trained=None if least is None else int(least),
    )


def _coverage(event: Json) -> tuple[GroupCoverage, ...]:
    """The groups with at least one known count, the largest first."""
    groups = [
        GroupCoverage(text(name), tuple(_training_count(count) for count in sequence(counts)))
        for name, counts in mapping(event.get("groups")).items()
    ]
    return tuple(sorted((group for group in groups if group.known), key=lambda group: -len(group.counts)))


def _training_count(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found <= MAX_COUNT else None


def _with_cost(record: RoundRecord, cost: RoundCost) -> RoundRecord:
    """A finished round with the cost of its tasks. Tasks of an unfinished round count only in the run's totals."""
    slowest = cost.slowest_client if record.device_seconds is None else record.device_seconds
    waited = None if slowest is None else slowest + cost.server_seconds
    return replace(
        record,
        device_seconds=slowest,
        round_seconds=waited if record.round_seconds is None else record.round_seconds,
        bytes_down=cost.bytes_down,
        bytes_up=cost.bytes_up,
        joules=cost.joules,
        flops=cost.flops,
    )


def _last_per_round(scores: Sequence[Json]) -> list[Json]:
    """The last line of scores of each round, sorted by round."""
    last = {integer(line.get("round")) or 0: line for line in scores}
    return [last[index] for index in sorted(last)]


def _tiers(manifest: Json, scores: list[Json], log: _EventLog, best_by: str) -> tuple[TierRecord, ...]:
    """The tiers of the manifest in its order, then all others that were scored or did work, such as the server."""
    declared = {text(tier.get("name")): tier for tier in map(mapping, sequence(manifest.get("tiers")))}
    scored = [name for line in scores for name in mapping(line.get("tiers"))]
    messages = log.nodes.tier_bytes()
    names = dict.fromkeys([*declared, *scored, *log.tasks.tiers, *messages])
    found = ((name, declared.get(name, {}), messages.get(name, (None, None))) for name in names)
    return tuple(_tier(name, tier, scores, log.tasks, best_by, *both) for name, tier, both in found)


def _tier(
    name: str,
    declared: Json,
    scores: list[Json],
    tasks: TaskLog,
    best_by: str,
    messages_down: float | None,
    messages_up: float | None,
) -> TierRecord:
    lines = [
        (integer(line.get("round")) or 0, mapping(mapping(line.get("tiers")).get(name)), line.get("metric"))
        for line in scores
    ]
    points = tuple(_scores(index, line, line.get("clients"), metric) for index, line, metric in lines if line)
    return TierRecord(
        name=name,
        share=number(declared.get("share")),
        clients=integer(declared.get("clients")),
        profile=text(declared.get("profile")),
        basis=text(declared.get("basis")),
        source=text(declared.get("source")),
        parameters=integer(declared.get("parameters")),
        width=_model_size(declared.get("width")),
        depth=_model_size(declared.get("depth")),
        curve=LearningCurve(points, best_by),
        totals=tasks.tiers.get(name, RunningTotals()).totals(),
        accepted=tasks.accepted.get(name, RunningTotals()).totals(),
        messages_down=messages_down,
        messages_up=messages_up,
    )


def _model_size(value: object) -> str:
    """A width or depth as text: one number, one per stage, or one per axis group."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "-".join(map(str, sequence(value))) or text(value)


def _overall_scores(line: Json) -> RoundScores:
    index, shared = integer(line.get("round")) or 0, mapping(line.get("global"))
    scores = _scores(index, shared, line.get("clients"), line.get("metric"))
    personal = mapping(line.get("personal"))
    return replace(
        scores,
        local=_client_scores(line.get("local")),
        personal=_client_scores(personal.get("common")),
        own_mix=_client_scores(personal.get("own")),
        commonest=number(personal.get("commonest")),
    )


def _scores(index: int, scores: Json, clients: object, metric: object) -> RoundScores:
    name = text(metric, "accuracy")
    validation, test, own = (_model_score(scores.get(split), name) for split in ("validation", "test", "own"))
    return RoundScores(index, validation, test, _client_scores(clients), own)


def _model_score(value: object, metric: str) -> ModelScore:
    found = mapping(value)
    classes = tuple(number(item) for item in sequence(found.get("per_class")))
    others = {name: number(found.get(name)) for name in OTHER_METRICS if name != metric}
    entities = mapping(found.get("per_entity")).items()
    others |= {f"f1 of {text(entity)}": number(mapping(scores).get("f1")) for entity, scores in entities}
    known = {name: other for name, other in others.items() if other is not None}
    return ModelScore(number(found.get(metric)), number(found.get("loss")), integer(found.get("count")), classes, known)


def _client_scores(value: object) -> ClientScores:
    found = mapping(value)
    values = (number(item) for item in sequence(found.get("values")))
    mean, sd, worst = (number(found.get(key)) for key in ("mean", "sd", "worst"))
    known = tuple(item for item in values if item is not None)
    return ClientScores(mean, sd, worst, integer(found.get("count")), known)
