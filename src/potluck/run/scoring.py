"""Scoring: each tier's model on the server's splits, and on clients' own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from potluck.core import SERVER, Client, Model, Task, dice
from potluck.engines import Engine, Letter
from potluck.run.assemble import Setup

Recall = Callable[[str], "tuple[int, Mapping[str, Any]] | None"]


def scored(setup: Setup, engine: Engine, state: Any, done: int, recall: Recall) -> tuple[dict[str, Any], list[str]]:
    """Everything that is known of the models after so many rounds, and what went wrong in finding out."""
    method, zoo, problem = setup.world.method, setup.world.zoo, setup.world.problem
    tiers = {tier.name: Client(f"any {tier.name}", tier) for tier in zoo.tiers}
    served = {"": method.serve(state, setup.server, zoo)}
    served |= {name: method.serve(state, client, zoo) for name, client in tiers.items()}
    clients = chosen(setup, done)
    own = {client.id: method.serve(state, client, zoo) for client in clients}
    whole = served[""] if setup.experiment.score.local else None
    tallies, faults = _asked(engine, _letters(served, own, whole, done, recall))
    spread = {client.id: _accuracy(tallies.get((client.id, "")), problem) for client in clients}
    scores = {
        "round": done,
        "global": _splits(tallies.get((SERVER, _same("", served))), problem),
        "tiers": {
            name: {
                **(_splits(tallies.get((SERVER, _same(name, served))), problem) or {}),
                "clients": _spread([spread[c.id] for c in clients if c.tier.name == name]),
            }
            for name in tiers
        },
        "clients": _spread(list(spread.values())),
    }
    if whole is not None:
        scores["local"] = _spread([_accuracy(tallies.get((client.id, "local")), problem) for client in clients])
    return scores, faults


def chosen(setup: Setup, done: int) -> list[Client]:
    """The clients that score the model on their own splits: the same ones every time."""
    crew, wanted = setup.crew, setup.experiment.score.clients
    count = min(wanted, crew.clients)
    picked = dice(setup.experiment.seed, "scored").choice(crew.clients, count, replace=False, shuffle=False)
    return [crew.client(int(index), done) for index in sorted(picked)]


def _letters(
    served: Mapping[str, Model | None],
    own: Mapping[str, Model | None],
    whole: Model | None,
    done: int,
    recall: Recall,
) -> Iterable[Letter]:
    for name, model in served.items():
        if model is not None and _same(name, served) == name:
            yield Letter(Task("score", SERVER, name, done, {"model": model}))
    for client, model in own.items():
        found = recall(client)
        memory = found[1] if found else {}
        yield Letter(Task("score", client, "", done, {} if model is None else {"model": model}), memory)
        if whole is not None:
            yield Letter(Task("score", client, "local", done, {"model": whole}, config={"masked": True}))


def _same(name: str, served: Mapping[str, Model | None]) -> str:
    """The first name under which this very model is served, so that it is scored once."""
    model = served[name]
    return next(other for other, known in served.items() if _identical(model, known))


def _identical(a: Model | None, b: Model | None) -> bool:
    if a is None or b is None or a.arrays is None or b.arrays is None:
        return a is b
    if a.spec != b.spec or a.arrays.keys() != b.arrays.keys():
        return False
    return all(tensor is b.arrays[name] for name, tensor in a.arrays.items())


def _asked(engine: Engine, letters: Iterable[Letter]) -> tuple[dict[tuple[str, str], Mapping[str, Any]], list[str]]:
    """The tallies of every letter that was answered, by (client, key), and why others failed."""
    tallies: dict[tuple[str, str], Mapping[str, Any]] = {}
    faults: list[str] = []
    for outcome in engine.carry(letters):
        if outcome.reply is not None:
            tallies[outcome.task.to, outcome.task.key] = outcome.reply.metrics
        elif not outcome.skipped:
            faults.append(f"{outcome.task.to}: {outcome.fault}")
    return tallies, faults


def _splits(tally: Mapping[str, Any] | None, problem: Any) -> dict[str, Any] | None:
    if tally is None:
        return None
    return {split: problem.scores([tally[split]]) for split in ("validation", "test")}


def _accuracy(tally: Mapping[str, Any] | None, problem: Any) -> float | None:
    if tally is None:
        return None
    found: float | None = problem.scores([tally["test"]])["accuracy"]
    return found


def _spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Mean, standard deviation and the worst tenth over clients that have a score."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    worst = known[: max(1, len(known) // 10)]
    return {
        "mean": statistics.fmean(known),
        "sd": statistics.pstdev(known),
        "worst": statistics.fmean(worst),
        "count": len(known),
        "values": known,
    }
