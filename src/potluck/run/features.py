"""Compares the features of networks at the end of a run: CKA at each stage, between tiers and between clients after
their local epochs, and a 2-D plot of the last one.

All networks get the same test rows. The results are small: numbers for the report, without the features.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from potluck.core import (
    SERVER,
    Client,
    Examples,
    Expected,
    Model,
    Newborn,
    Plain,
    Shapes,
    Spec,
    Task,
    Zoo,
    numpy_stream,
    stream,
)
from potluck.learn import stage_features
from potluck.run.assemble import Setup
from potluck.run.loop import Loop
from potluck.run.similarity import cka, neighbours, plane, separation

ROWS = 512
"""The most test rows that are used."""


def keep_features(loop: Loop) -> None:
    """Writes the comparison of the tiers' features into the run folder, if `score.features` is set.

    Its main figures go into the manifest: `separation` by tier, and with score.compare_clients the mean CKA of two
    `clients` by stage.
    """
    if not loop.experiment.score.features:
        return
    found = compare_tiers(loop.setup, loop.state)
    if loop.experiment.score.compare_clients:
        found["clients"], faults = compare_clients(loop)
        if faults:
            left = "1 client is" if len(faults) == 1 else f"{len(faults)} clients are"
            loop.watch.warn(f"score.compare_clients: {left} left out; {faults[0]}")
    if not found["planes"] and not found.get("clients", {}).get("stages"):
        loop.watch.warn("score.features: the server has no models, or no test rows, to compare")
        return
    loop.folder.write_features({"round": loop.progress.done, **found})
    loop.folder.update_manifest(features=_main_figures(found))


def compare_tiers(setup: Setup, state: Any) -> dict[str, Any]:
    """CKA between tiers at every stage, and for each tier the features of its last stage in the plane."""
    examples, how = _rows(setup), setup.experiment.score.plane
    seed = setup.experiment.seed if how == "tsne" else None
    seen = _tier_features(setup, state, examples) if len(examples) > 1 else {}
    labels = _labels(examples, setup.classes)
    return {
        "rows": len(examples),
        "labels": labels,
        "stages": [{"name": name, **_cka_table(name, seen, "tiers")} for name in _ordered_stages(seen)],
        "plane": how,
        "planes": [_plane(tier, stages, seed, labels) for tier, stages in seen.items() if stages],
    }


def compare_clients(loop: Loop) -> tuple[dict[str, Any], list[str]]:
    """CKA between clients' networks after their local epochs, at every stage, and why some could not be compared."""
    setup, method, zoo = loop.setup, loop.context.method, loop.context.zoo
    rows = _picked_rows(setup)
    asked = setup.population.scored(setup.experiment.score.compare_clients, loop.progress.done)
    clients = {client.id: client for client in asked if method.can_train(client, zoo)} if len(rows) > 1 else {}
    shapes: dict[Spec, Shapes] = {}

    def tasks() -> Iterator[Task]:
        for client in clients.values():
            model = method.serve(loop.state, client, zoo)
            spec = (model or _kept_model(loop, client)).spec
            if spec not in shapes:
                shapes[spec] = _feature_shapes(setup, spec, len(rows))
            config: dict[str, Plain] = {"rows": rows.tolist(), "pad": spec.options.get("pad")}
            sent = {} if model is None else {"model": model}
            yield Task("show_features", client.id, models=sent, config=config, expects=Expected(arrays=shapes[spec]))

    session = loop.dispatcher.open(loop.progress.done, everyone=True)
    seen = {
        reply.task.to: {name: features.double().cpu() for name, features in reply.arrays.items()}
        for reply in session.send(tasks())
    }
    session.close()
    faults = [f"{entry.task.to}: {entry.reason}" for entry in session.entries if entry.verdict != "accepted"]
    stages = [
        {"name": name, **table, "mean": _mean_of_pairs(table["cka"])}
        for name in _ordered_stages(seen)
        if len((table := _cka_table(name, seen, "clients"))["clients"]) > 1
    ]
    return {"tiers": {id: clients[id].tier.name for id in seen}, "stages": stages}, faults


def _kept_model(loop: Loop, client: Client) -> Model:
    """The model in a client's memory; a newborn of its tier if there is none, which the client then says itself."""
    found, context = loop.recall.get(client.id, loop.progress.done), loop.context
    labels = context.datasets.shard(client.id).labels
    kept = None if found is None else context.method.complete(None, found[1], labels, context.zoo)
    return kept or Newborn(client.tier.spec)


def _main_figures(found: Mapping[str, Any]) -> dict[str, Any]:
    stages = found.get("clients", {}).get("stages", [])
    return {
        "clients": {stage["name"]: stage["mean"] for stage in stages},
        "separation": {each["tier"]: each["separation"] for each in found["planes"]},
    }


def _feature_shapes(setup: Setup, spec: Spec, rows: int) -> Shapes:
    """The shapes of the features of all stages of a network, for so many rows."""
    zoo, few = setup.context.zoo, _rows(setup).pick(torch.arange(2))
    net = zoo.build(Newborn(spec), stream(0, "features"))
    return {name: ((rows, seen.shape[1]), torch.float32) for name, seen in stage_features(net, few).items()}


def _ordered_stages(seen: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """The stages of all networks, in forward order."""
    names = dict.fromkeys(name for stages in sorted(seen.values(), key=len, reverse=True) for name in stages)
    return [name for name in names if name != "body" and not _is_body_end(name, seen)] + ["body"] * ("body" in names)


def _rows(setup: Setup) -> Examples:
    """The rows that the tiers' networks see, of the server's test split or, if that is empty, its validation split."""
    server_data = setup.context.datasets.shard(SERVER)
    examples = server_data.test if len(server_data.test) else server_data.validation
    return examples.pick(_pick(setup, len(examples)))


def _picked_rows(setup: Setup) -> Tensor:
    """Which rows of the server's test split the clients' networks see."""
    return _pick(setup, len(setup.context.datasets.shard(SERVER).test))


def _pick(setup: Setup, rows: int) -> Tensor:
    draw = numpy_stream(setup.experiment.seed, "features")
    return torch.from_numpy(draw.choice(rows, min(ROWS, rows), replace=False, shuffle=False)).sort().values


def _tier_features(setup: Setup, state: Any, examples: Examples) -> dict[str, dict[str, Tensor]]:
    """The features of every stage, for each tier."""
    method, zoo = setup.context.method, setup.context.zoo
    found = {}
    for tier in zoo.tiers:
        model = method.serve(state, Client(f"any {tier.name}", tier), zoo)
        if model is not None:
            net = zoo.build(_fill_missing(model, zoo)).to(setup.context.hardware)
            pad = model.spec.options.get("pad")
            found[tier.name] = stage_features(net, examples, pad if isinstance(pad, int) else None)
    return found


def _fill_missing(model: Model, zoo: Zoo) -> Model:
    """The model with zeros for tensors that clients keep private. Those are heads, which no feature depends on."""
    blank = {
        name: torch.zeros(shape, dtype=dtype)
        for name, (shape, dtype) in zoo.shapes(model.spec).items()
        if name not in model.arrays
    }
    return Model(model.spec, {**model.arrays, **blank}) if blank else model


def _labels(examples: Examples, classes: int) -> list[int] | None:
    """The class of each row; None if rows have no single class."""
    y = examples.column("y")
    return y.tolist() if classes and y.dim() == 1 else None


def _is_body_end(stage: str, seen: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether this stage equals the end of the body in every network that has it, and so is left out."""
    having = [stages for stages in seen.values() if stage in stages]
    return all("body" in stages and stages[stage].equal(stages["body"]) for stages in having)


def _cka_table(stage: str, seen: Mapping[str, Mapping[str, Tensor]], whose: str) -> dict[str, Any]:
    """The CKA of all pairs of networks that have this stage."""
    having = [one for one, stages in seen.items() if stage in stages]
    found = {(a, b): cka(seen[a][stage], seen[b][stage]) for a, b in combinations_with_replacement(having, 2)}
    table = [[_round_digits(found[(a, b) if (a, b) in found else (b, a)]) for b in having] for a in having]
    return {whose: having, "cka": table}


def _mean_of_pairs(table: Sequence[Sequence[float | None]]) -> float | None:
    """The mean over pairs of different networks; None if some pair has no figure."""
    pairs = [table[a][b] for a, b in combinations(range(len(table)), 2)]
    known = [value for value in pairs if value is not None]
    return _round_digits(statistics.fmean(known)) if known and len(known) == len(pairs) else None


def _plane(tier: str, stages: Mapping[str, Tensor], seed: int | None, labels: Sequence[int] | None) -> dict[str, Any]:
    """A tier's last features in the plane: by t-SNE with this seed, or without one by principal components.

    `separation` says how clearly classes lie apart, in the features themselves and not in the plane.
    """
    stage = "body" if "body" in stages else list(stages)[-1]
    points, shares = plane(stages[stage]) if seed is None else (neighbours(stages[stage], seed), [])
    pairs = [[_round_digits(across), _round_digits(up)] for across, up in points.tolist()]
    apart = None if labels is None else separation(stages[stage], labels)
    drawn = {"shares": [_round_digits(share) for share in shares], "points": pairs}
    return {"tier": tier, "stage": stage, "separation": _round_digits(apart), **drawn}


def _round_digits(value: float | None) -> float | None:
    """The number with five digits, enough for a plot."""
    return None if value is None else float(f"{value:.5g}")
