"""Read a run folder into plain records; keys that are missing leave gaps, never errors."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from potluck.ledger import read_run
from potluck.report.lessons import Lesson, lesson_of
from potluck.report.picking import Json, listing, mapping, number, text, whole
from potluck.report.records import Coverage, Curve, Fault, Point, Round, Run, Score, Spread, Task, Tier, Totals, total

Address = tuple[object, ...]

SERVER = "server"
"""Who works for the server itself: a row of its own, and no part of what devices pay."""

MOST = 1e15
"""No unit is trained more often than this: a larger count is a broken line."""


def read(folder: Path | str) -> Run:
    """Everything the report says about a run, from its folder alone."""
    found = read_run(Path(folder))
    run = assemble(found.path, found.manifest, found.settings, found.events(), found.scores)
    return replace(run, features=found.features())


def assemble(folder: Path, manifest: Json, settings: str, events: Iterable[Json], scores: Sequence[Json]) -> Run:
    """One run out of the four things that every folder holds."""
    story = _story(events)
    tasks = list(story.tasks.values())
    name = text(manifest.get("name"), folder.name)
    ordered = sorted(_last(scores), key=lambda line: whole(line.get("round")) or 0)
    return Run(
        folder=folder,
        name=name,
        label=_label(manifest) or name,
        variant=text(manifest.get("variant")),
        method=text(manifest.get("method")),
        seed=whole(manifest.get("seed")),
        status=text(manifest.get("status"), "unknown"),
        metric=next((text(line.get("metric")) for line in reversed(ordered) if line.get("metric")), "accuracy"),
        planned=whole(manifest.get("rounds")),
        classes=whole(manifest.get("classes")),
        clients=whole(manifest.get("clients")),
        tiers=_tiers(manifest, ordered, tasks),
        curve=Curve(tuple(_overall(line) for line in ordered)),
        rounds=_rounds(story, tasks),
        lessons=tuple(story.lessons.values()),
        coverage=story.coverage,
        totals=Totals.of([task for task in tasks if task.client != SERVER]),
        faults=_faults(tasks),
        warnings=tuple(story.warnings),
        settings=settings,
        targets=_targets(settings),
        manifest=manifest,
    )


def _label(manifest: Json) -> str:
    """The method with its settings, and what else the run varies."""
    told = (text(manifest.get("label")) or text(manifest.get("method")), text(manifest.get("variant")))
    return ", ".join(part for part in told if part)


def _targets(settings: str) -> tuple[float, ...]:
    """The scores that [score] names as targets, each once; none where the settings cannot be read."""
    try:
        plain = tomllib.loads(settings)
    except (ValueError, RecursionError):
        return ()
    named = map(number, listing(mapping(plain.get("score")).get("targets")))
    return tuple(dict.fromkeys(target for target in named if target is not None and -1 < target <= 1))


@dataclass
class _Story:
    """The ledger's events, sorted by kind."""

    tasks: dict[Address, Task] = field(default_factory=dict)
    rounds: dict[int, Round] = field(default_factory=dict)
    warnings: list[tuple[int | None, str]] = field(default_factory=list)
    lessons: dict[Address, Lesson] = field(default_factory=dict)
    coverage: tuple[Coverage, ...] = ()


def _story(events: Iterable[Json]) -> _Story:
    """A round that was cut off and done again is written twice: the later line counts."""
    story = _Story()
    for position, event in enumerate(events):
        match event.get("event"):
            case "task":
                task = _task(event)
                named = (task.round, task.client, text(event.get("verb")), text(event.get("key")))
                story.tasks[named if task.client else (position,)] = task
                if lesson := lesson_of(event):
                    story.lessons[named] = lesson
            case "round":
                line = _round(event)
                story.rounds[line.number] = line
            case "coverage":
                story.coverage = _coverage(event) or story.coverage
            case "warning":
                story.warnings.append((whole(event.get("round")), text(event.get("text"))))
    return story


def _task(event: Json) -> Task:
    measured, modelled = mapping(event.get("measured")), mapping(event.get("modelled"))
    client = text(event.get("client"))
    return Task(
        round=whole(event.get("round")) or 0,
        client=client,
        tier=text(event.get("tier")) or (SERVER if client == SERVER else "no tier"),
        outcome=text(event.get("outcome"), "accepted"),
        reason=text(event.get("reason")),
        bytes_down=number(measured.get("bytes_down")),
        bytes_up=number(measured.get("bytes_up")),
        measured_seconds=number(measured.get("seconds")),
        flops=number(modelled.get("flops")),
        memory=number(modelled.get("memory")),
        modelled_seconds=number(modelled.get("seconds")),
        joules=number(modelled.get("joules")),
    )


def _round(event: Json) -> Round:
    return Round(
        number=whole(event.get("round")) or 0,
        seconds=number(event.get("seconds")),
        sent=whole(event.get("sent")),
        accepted=whole(event.get("accepted")),
        loss=number(event.get("loss")),
        device_seconds=number(event.get("device_seconds")),
        least=None if (least := _times(event.get("least"))) is None else int(least),
    )


def _coverage(event: Json) -> tuple[Coverage, ...]:
    """Groups with at least one count that can be read, the largest first."""
    lists = mapping(event.get("groups")).items()
    found = [Coverage(text(name), tuple(_times(item) for item in listing(counts))) for name, counts in lists]
    return tuple(sorted((one for one in found if one.known), key=lambda one: -len(one.counts)))


def _times(value: object) -> float | None:
    """How often something was done."""
    found = number(value)
    return found if found is not None and 0 <= found <= MOST else None


def _rounds(story: _Story, tasks: list[Task]) -> tuple[Round, ...]:
    """Rounds with what their tasks moved; tasks of a round that never ended are left to the totals."""
    spent: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.client != SERVER:
            spent[task.round].append(task)
    lines = []
    for index in sorted(story.rounds):
        line, here = story.rounds[index], spent[index]
        lines.append(
            replace(
                line,
                device_seconds=_slowest(here) if line.device_seconds is None else line.device_seconds,
                bytes_down=total(task.bytes_down for task in here),
                bytes_up=total(task.bytes_up for task in here),
                joules=total(task.joules for task in here),
            )
        )
    return tuple(lines)


def _slowest(tasks: list[Task]) -> float | None:
    """Modelled seconds of the device that worked longest; one client may have had several tasks."""
    worked: dict[str, float] = defaultdict(float)
    for task in tasks:
        if task.modelled_seconds is not None:
            worked[task.client] += task.modelled_seconds
    return max(worked.values(), default=None)


def _last(scores: Sequence[Json]) -> list[Json]:
    return list({whole(line.get("round")) or 0: line for line in scores}.values())


def _tiers(manifest: Json, scores: list[Json], tasks: list[Task]) -> tuple[Tier, ...]:
    """The manifest's tiers in its order, then whatever else worked or was scored, the server for one."""
    declared = {text(tier.get("name")): tier for tier in map(mapping, listing(manifest.get("tiers")))}
    done: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        done[task.tier].append(task)
    scored = [name for line in scores for name in mapping(line.get("tiers"))]
    names = dict.fromkeys([*declared, *scored, *done])
    return tuple(_tier(name, declared.get(name, {}), scores, done[name]) for name in names)


def _tier(name: str, declared: Json, scores: list[Json], tasks: list[Task]) -> Tier:
    lines = [
        (whole(line.get("round")) or 0, mapping(mapping(line.get("tiers")).get(name)), line.get("metric"))
        for line in scores
    ]
    return Tier(
        name=name,
        share=number(declared.get("share")),
        clients=whole(declared.get("clients")),
        profile=text(declared.get("profile")),
        parameters=whole(declared.get("parameters")),
        width=_shape(declared.get("width")),
        depth=_shape(declared.get("depth")),
        curve=Curve(tuple(_point(index, line, line.get("clients"), metric) for index, line, metric in lines if line)),
        totals=Totals.of(tasks),
        accepted=Totals.of([task for task in tasks if task.outcome == "accepted"]),
    )


def _shape(value: object) -> str:
    """A width or depth as words: one number, one per stage, or one per group."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "-".join(map(str, listing(value))) or text(value)


def _overall(line: Json) -> Point:
    point = _point(whole(line.get("round")) or 0, mapping(line.get("global")), line.get("clients"), line.get("metric"))
    return replace(point, local=_spread(line.get("local")))


def _point(index: int, scores: Json, clients: object, metric: object) -> Point:
    judged = text(metric, "accuracy")
    validation, test = (_score(scores.get(split), judged) for split in ("validation", "test"))
    return Point(index, validation, test, _spread(clients), _score(scores.get("own"), judged))


BESIDE = ("accuracy", "f1", "precision", "recall", "matthews", "pearson")
"""Scores that may stand beside the one that counts."""


def _score(value: object, metric: str) -> Score:
    found = mapping(value)
    classes = tuple(number(item) for item in listing(found.get("per_class")))
    others = {name: number(found.get(name)) for name in BESIDE if name != metric}
    kinds = mapping(found.get("per_entity")).items()
    others |= {f"f1 of {text(kind)}": number(mapping(scores).get("f1")) for kind, scores in kinds}
    beside = {name: other for name, other in others.items() if other is not None}
    return Score(number(found.get(metric)), number(found.get("loss")), whole(found.get("count")), classes, beside)


def _spread(value: object) -> Spread:
    found = mapping(value)
    values = (number(item) for item in listing(found.get("values")))
    mean, sd, worst = (number(found.get(key)) for key in ("mean", "sd", "worst"))
    return Spread(mean, sd, worst, whole(found.get("count")), tuple(item for item in values if item is not None))


def _faults(tasks: list[Task]) -> tuple[Fault, ...]:
    """Tasks whose reply did not count, by outcome, tier and reason; the most frequent first."""
    rounds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for task in tasks:
        if task.outcome != "accepted":
            rounds[task.outcome, task.tier, task.reason].append(task.round)
    faults = [Fault(*key, len(when), min(when), max(when)) for key, when in rounds.items()]
    return tuple(sorted(faults, key=lambda fault: (-fault.times, fault.outcome, fault.tier, fault.reason)))
