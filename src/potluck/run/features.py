"""Compares the features of the tiers' networks at the end of a run: CKA at each stage, and a 2-D plot of the last one.

All networks get the same test rows. The results are small: numbers for the report, without the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from potluck.core import SERVER, Client, Examples, Model, Zoo, numpy_stream
from potluck.run.assemble import Setup
from potluck.run.loop import Loop
from potluck.run.similarity import cka, neighbours, plane, stage_features

ROWS = 512
"""The most test rows that are used."""


def keep_features(loop: Loop) -> None:
    """Writes the comparison of the tiers' features into the run folder, if `score.features` is set."""
    if not loop.experiment.score.features:
        return
    found = compare_tiers(loop.setup, loop.state)
    if not found["planes"]:
        loop.watch.warn("score.features: the server has no models, or no test rows, to compare")
        return
    loop.folder.write_features({"round": loop.progress.done, **found})


def compare_tiers(setup: Setup, state: Any) -> dict[str, Any]:
    """CKA between tiers at every stage, and for each tier the features of its last stage in the plane."""
    examples, how = _rows(setup), setup.experiment.score.plane
    seed = setup.experiment.seed if how == "tsne" else None
    seen = _tier_features(setup, state, examples) if len(examples) > 1 else {}
    names = dict.fromkeys(name for stages in sorted(seen.values(), key=len, reverse=True) for name in stages)
    ordered = [name for name in names if name != "body" and not _is_body_end(name, seen)] + ["body"] * ("body" in names)
    return {
        "rows": len(examples),
        "labels": _labels(examples, setup.classes),
        "stages": [_cka_table(name, seen) for name in ordered],
        "plane": how,
        "planes": [_plane(tier, stages, seed) for tier, stages in seen.items() if stages],
    }


def _rows(setup: Setup) -> Examples:
    server_data = setup.context.datasets.shard(SERVER)
    examples = server_data.test if len(server_data.test) else server_data.validation
    count = min(ROWS, len(examples))
    picked = numpy_stream(setup.experiment.seed, "features").choice(len(examples), count, replace=False, shuffle=False)
    return examples.pick(torch.from_numpy(picked).sort().values)


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


def _cka_table(stage: str, seen: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    tiers = [tier for tier, stages in seen.items() if stage in stages]
    table = [[_round_digits(cka(seen[a][stage], seen[b][stage])) for b in tiers] for a in tiers]
    return {"name": stage, "tiers": tiers, "cka": table}


def _plane(tier: str, stages: Mapping[str, Tensor], seed: int | None) -> dict[str, Any]:
    """A tier's last features in the plane: by t-SNE with this seed, or without one by principal components."""
    stage = "body" if "body" in stages else list(stages)[-1]
    points, shares = plane(stages[stage]) if seed is None else (neighbours(stages[stage], seed), [])
    pairs = [[_round_digits(across), _round_digits(up)] for across, up in points.tolist()]
    return {"tier": tier, "stage": stage, "shares": [_round_digits(share) for share in shares], "points": pairs}


def _round_digits(value: float | None) -> float | None:
    """The number with five digits, enough for a plot."""
    return None if value is None else float(f"{value:.5g}")
