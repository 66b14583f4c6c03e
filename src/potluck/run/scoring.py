"""Scoring: the models of the server and the tiers on the server's splits, and of clients on their own splits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from potluck.core import SERVER, Client, Expected, Model, Newborn, Plain, Task, describe
from potluck.engines import LedgerEntry, RoundSession
from potluck.run.assemble import Setup

LOCAL = "local"
"""The key of tasks that score the server's model on a client's own split."""
PIECE = 2048
"""The server's splits are scored in pieces of this many rows, so that workers share them; equal on every engine."""


def score(setup: Setup, session: RoundSession, state: Any, done: int) -> tuple[dict[str, Any], list[str]]:
    """Scores the models after `done` rounds. Returns all scores, and the faults that occurred.

    The scores are a line of ``scores.jsonl``, one JSON object:

    - `round`: after how many rounds; 0 is before the first.
    - `metric`: the name of the main score, such as accuracy.
    - `global`: the server's model on the splits "validation" and "test", each with the main score, the loss, the count
      of rows and, if there are classes, the score of each ("per_class"). null: the server has no model.
    - `tiers`: by name, the same for each tier's model; "clients": its clients on their own test rows.
    - `clients`: the scored clients' main scores on their own test rows: "mean", "sd", "worst" (mean of the worst
      tenth), "count", all "values" from low to high, and the "ids" of their clients.
    - `local`: with score.local, the same for the server's model with the classes masked that a client lacks.
    - `personal`: with score.personal, the same after local epochs: "common", "own", "commonest", and by "tiers".
    """
    method, zoo = setup.context.method, setup.context.zoo
    problem: Any = setup.context.problem
    tiers = {tier.name: Client(f"any {tier.name}", tier) for tier in zoo.tiers}
    served = {"": method.serve(state, setup.server, zoo)}
    served |= {name: method.serve(state, client, zoo) for name, client in tiers.items()}
    clients = scored_clients(setup, done)
    own = {client.id: method.serve(state, client, zoo) for client in clients}
    whole = served[""] if setup.experiment.score.local else None
    server_data = setup.context.datasets.shard(SERVER)
    pieces = range(0, max(len(server_data.validation), len(server_data.test)), PIECE)
    common = setup.experiment.score.common
    tallies, faults = _collect(session, _tasks(served, own, whole, pieces, common), problem)
    spread = {client.id: _test_score(tallies.get((client.id, "")), problem) for client in clients}
    scores = {
        "round": done,
        "metric": problem.metric,
        "global": _split_scores(tallies.get((SERVER, _first_name("", served))), problem),
        "tiers": {
            name: {
                **(_split_scores(tallies.get((SERVER, _first_name(name, served))), problem) or {}),
                **(_common_scores(theirs, problem) if common and served[name] is None else {}),
                "clients": _spread({client: spread[client] for client in theirs}),
                **_own_scores(list(theirs.values()), problem),
            }
            for name in tiers
            for theirs in [{c.id: tallies.get((c.id, "")) for c in clients if c.tier.name == name}]
        },
        "clients": _spread(spread),
    }
    if whole is not None:
        scores["local"] = _spread({c.id: _test_score(tallies.get((c.id, LOCAL)), problem) for c in clients})
    if setup.experiment.score.personal:
        trained = {client.id: own[client.id] if method.can_train(client, zoo) else None for client in clients}
        scores["personal"], more = personal_scores(session, clients, trained, problem)
        faults += more
    return scores, faults


def personal_scores(
    session: RoundSession, clients: Sequence[Client], own: Mapping[str, Model | None], problem: Any
) -> tuple[dict[str, Any], list[str]]:
    """The scores of clients' models after the clients' local epochs, and the faults that occurred.

    ``common``: on the common test set. ``own``: on the same rows, with each class weighted as often as the client has
    it; where an example has no single class, on the client's own test split. ``commonest``: the mean share of a
    client's commonest class, which a model that always says this class would have.
    """
    found: dict[str, Mapping[str, Any]] = {}
    expects = Expected(metrics=partial(_odd_tallies, problem=problem, splits=("common", "own")))
    tasks = (
        Task("personalise", id, models={} if model is None else {"model": model}, expects=expects)
        for id, model in ((client.id, own[client.id]) for client in clients)
    )
    for reply in session.send(tasks):
        found[reply.task.to] = reply.metrics
    scores = {client.id: _personal_score(found[client.id], problem) for client in clients if client.id in found}
    shares = [max(tally["labels"]) / sum(tally["labels"]) for tally in found.values() if sum(tally["labels"])]
    by_measure = {name: {id: one[name] for id, one in scores.items()} for name in ("common", "own")}
    tiers: dict[str, list[str]] = {}
    for client in clients:
        tiers.setdefault(client.tier.name, []).append(client.id)
    return {
        **{name: _spread(values) for name, values in by_measure.items()},
        "commonest": statistics.fmean(shares) if shares else None,
        "tiers": {
            tier: {name: _spread({id: values.get(id) for id in ids}) for name, values in by_measure.items()}
            for tier, ids in sorted(tiers.items())
        },
    }, _faults(session, "personalise")


def _personal_score(tally: Mapping[str, Any], problem: Any) -> dict[str, float | None]:
    common = problem.scores([tally["common"]])
    counts, per_class = tally["labels"], common.get("per_class", [])
    if problem.metric == "accuracy" and sum(counts):
        known = [(count, score) for count, score in zip(counts, per_class, strict=True) if count and score is not None]
        rows = sum(count for count, _ in known)
        own = sum(count * score for count, score in known) / rows if rows else None
    else:
        own = problem.scores([tally["own"]])[problem.metric]
    return {"common": common[problem.metric], "own": own}


def scored_clients(setup: Setup, done: int) -> list[Client]:
    """The clients that score the model on their own splits: the same ones every time."""
    return setup.population.scored(setup.experiment.score.clients, done)


def _tasks(
    served: Mapping[str, Model | None],
    own: Mapping[str, Model | None],
    whole: Model | None,
    pieces: Iterable[int],
    common: bool,
) -> Iterable[Task]:
    for name, model in served.items():
        if model is not None and _first_name(name, served) == name:
            for start in pieces:
                config: dict[str, Plain] = {"rows": [start, start + PIECE]}
                yield Task("score", SERVER, f"{name}/{start}", models={"model": model}, config=config)
    for client, model in own.items():
        if model is None:
            yield Task("score", client, config={"common": True} if common else {})
        else:
            yield Task("score", client, models={"model": model})
        if whole is not None:
            yield Task("score", client, LOCAL, models={"model": whole}, config={"masked": True})


def _first_name(name: str, served: Mapping[str, Model | None]) -> str:
    """The first name under which the same model is served, so that it is scored only once."""
    model = served[name]
    return next(other for other, known in served.items() if _identical(model, known))


def _identical(a: Model | None, b: Model | None) -> bool:
    if a is None or b is None or isinstance(a, Newborn) or isinstance(b, Newborn):
        return a is b
    if a.spec != b.spec or a.arrays.keys() != b.arrays.keys():
        return False
    return all(tensor is b.arrays[name] for name, tensor in a.arrays.items())


Tallies = dict[tuple[str, str], list[Mapping[str, Any]]]
"""Tallies by client and key, one for each piece."""


def _collect(session: RoundSession, tasks: Iterable[Task], problem: Any) -> tuple[Tallies, list[str]]:
    """The tallies of every model that was scored completely, and the faults of the others."""
    tallies: Tallies = {}
    expects = Expected(metrics=partial(_odd_tallies, problem=problem, splits=("validation", "test")))
    for reply in session.send(replace(task, expects=expects) for task in tasks):
        tallies.setdefault(_model_key(reply.task), []).append(reply.metrics)
    lost = {_model_key(entry.task) for entry in _failed(session, "score")}
    return {whose: found for whose, found in tallies.items() if whose not in lost}, _faults(session, "score")


def _odd_tallies(metrics: Mapping[str, Any], problem: Any, splits: Sequence[str]) -> str | None:
    """Why no scores can be computed from a reply's tallies, or None."""
    for name in (*splits, *({"labels"} & metrics.keys())):
        if not _are_counts(metrics.get(name)):
            return f"the tally of '{name}' has counts that are none"
    try:
        for split in splits:
            problem.scores([metrics[split]])
        if "common" in splits:
            _personal_score(metrics, problem)
    except Exception as fault:
        return f"no scores can be computed from its tallies: {describe(fault)}"
    return None


def _are_counts(tally: Any, name: str = "") -> bool:
    """Whether all counts of a tally are whole numbers that can be added up. Losses and moments may be any numbers."""
    if isinstance(tally, Mapping):
        return all(
            _are_counts(item, "" if name == "moments" and key != "count" else key) for key, item in tally.items()
        )
    if isinstance(tally, list):
        return all(_are_counts(item, name) for item in tally)
    if name in ("", "loss"):
        return isinstance(tally, int | float)
    return isinstance(tally, int | float) and 0 <= tally <= 2**53 and tally == int(tally)


def _failed(session: RoundSession, verb: str) -> list[LedgerEntry]:
    return [entry for entry in session.entries if entry.task.verb == verb and entry.verdict != "accepted"]


def why_failed(session: RoundSession) -> str:
    """Why the scores are worth nothing: one of the server's models could not be scored, or no client could; else empty.

    Clients without a model are no fault, and neither are clients whose replies are refused: they cannot end a run.
    """
    for verb in ("score", "personalise"):
        failed = [entry for entry in _failed(session, verb) if not entry.skipped]
        scored = any(entry.task.verb == verb and entry.verdict == "accepted" for entry in session.entries)
        nobody = not scored and all(entry.verdict == "absent" for entry in failed)
        if failed and (nobody or any(entry.task.to == SERVER for entry in failed)):
            return _faults(session, verb)[0]
    return ""


def _faults(session: RoundSession, verb: str) -> list[str]:
    """What went wrong in tasks of this verb, one line each; clients without a model are no fault."""
    failed = [entry for entry in _failed(session, verb) if not entry.skipped]
    return [f"{entry.task.to}: {entry.reason.removeprefix('failed: ')}" for entry in failed]


def _model_key(task: Task) -> tuple[str, str]:
    """The client that a task is for, and the name of the model that it scores."""
    return (task.to, task.key.rpartition("/")[0] if task.to == SERVER else task.key)


def _split_scores(tallies: Sequence[Mapping[str, Any]] | None, problem: Any) -> dict[str, Any] | None:
    if tallies is None:
        return None
    return {split: problem.scores([tally[split] for tally in tallies]) for split in ("validation", "test")}


def _common_scores(tallies: Mapping[str, Sequence[Mapping[str, Any]] | None], problem: Any) -> dict[str, Any]:
    """The scores of clients' models on the common splits, pooled; empty if no client has a model yet."""
    return _split_scores([tally for each in tallies.values() for tally in each or ()] or None, problem) or {}


def _test_score(tallies: Sequence[Mapping[str, Any]] | None, problem: Any) -> float | None:
    """The main score on the test split."""
    if tallies is None:
        return None
    found: float | None = problem.scores([tally["test"] for tally in tallies])[problem.metric]
    return found


def _own_scores(tallies: Sequence[Sequence[Mapping[str, Any]] | None], problem: Any) -> dict[str, Any]:
    """All scores of clients on their own test splits, pooled; empty if accuracy is the main score."""
    known = [tally["test"] for each in tallies for tally in each or ()]
    return {"own": problem.scores(known)} if known and problem.metric != "accuracy" else {}


def _spread(scores: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Mean, standard deviation and mean of the worst tenth over clients with a score; all scores and client ids."""
    found = sorted((value, client) for client, value in scores.items() if value is not None)
    if not found:
        return None
    known = [value for value, _ in found]
    worst = known[: max(1, len(known) // 10)]
    return {
        "mean": statistics.fmean(known),
        "sd": statistics.pstdev(known),
        "worst": statistics.fmean(worst),
        "count": len(known),
        "values": known,
        "ids": [client for _, client in found],
    }
