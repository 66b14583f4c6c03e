"""A look into the tiers' networks when a run ends: how alike they are, stage by stage, and what the last one sees.

All networks look at the same test rows. What is found is small: numbers for the report, none of the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from potluck.core import SERVER, Client, Examples, Model, Zoo, numpy_stream
from potluck.run.assemble import Setup
from potluck.run.loop import Loop
from potluck.run.similarity import cka, plane, staged

ROWS = 512
"""Test rows looked at, at most."""


def keep_features(loop: Loop) -> None:
    """Writes what the tiers' networks make of test rows into the run folder, if the settings ask for that."""
    if not loop.experiment.score.features:
        return
    found = looked(loop.setup, loop.state)
    if not found["planes"]:
        loop.watch.warn("score.features: the server has no models, or no test rows, to look at")
        return
    loop.folder.write_features({"round": loop.progress.done, **found})


def looked(setup: Setup, state: Any) -> dict[str, Any]:
    """CKA between tiers at every stage, and each tier's rows in the plane of its last stage's first two components."""
    examples = _rows(setup)
    seen = _seen(setup, state, examples) if len(examples) > 1 else {}
    names = dict.fromkeys(name for stages in sorted(seen.values(), key=len, reverse=True) for name in stages)
    ordered = [name for name in names if name != "body" and not _last(name, seen)] + ["body"] * ("body" in names)
    return {
        "rows": len(examples),
        "labels": _labels(examples, setup.classes),
        "stages": [_compared(name, seen) for name in ordered],
        "planes": [_plane(tier, stages) for tier, stages in seen.items() if stages],
    }


def _rows(setup: Setup) -> Examples:
    server_data = setup.context.datasets.shard(SERVER)
    examples = server_data.test if len(server_data.test) else server_data.validation
    count = min(ROWS, len(examples))
    picked = numpy_stream(setup.experiment.seed, "features").choice(len(examples), count, replace=False, shuffle=False)
    return examples.pick(torch.from_numpy(picked).sort().values)


def _seen(setup: Setup, state: Any, examples: Examples) -> dict[str, dict[str, Tensor]]:
    """The features of every stage, tier by tier."""
    method, zoo = setup.context.method, setup.context.zoo
    found = {}
    for tier in zoo.tiers:
        model = method.serve(state, Client(f"any {tier.name}", tier), zoo)
        if model is not None:
            net = zoo.build(_whole(model, zoo)).to(setup.context.hardware)
            pad = model.spec.options.get("pad")
            found[tier.name] = staged(net, examples, pad if isinstance(pad, int) else None)
    return found


def _whole(model: Model, zoo: Zoo) -> Model:
    """The model; zeros stand for what clients keep to themselves, for no feature comes of a head."""
    blank = {
        name: torch.zeros(shape, dtype=dtype)
        for name, (shape, dtype) in zoo.shapes(model.spec).items()
        if name not in model.arrays
    }
    return Model(model.spec, {**model.arrays, **blank}) if blank else model


def _labels(examples: Examples, classes: int) -> list[int] | None:
    """The class of each row, where a row has one."""
    y = examples.column("y")
    return y.tolist() if classes and y.dim() == 1 else None


def _last(stage: str, seen: Mapping[str, Mapping[str, Tensor]]) -> bool:
    """Whether this is the end of the body in every network that has it, and so is told once."""
    having = [stages for stages in seen.values() if stage in stages]
    return all("body" in stages and stages[stage].equal(stages["body"]) for stages in having)


def _compared(stage: str, seen: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    tiers = [tier for tier, stages in seen.items() if stage in stages]
    table = [[_short(cka(seen[a][stage], seen[b][stage])) for b in tiers] for a in tiers]
    return {"name": stage, "tiers": tiers, "cka": table}


def _plane(tier: str, stages: Mapping[str, Tensor]) -> dict[str, Any]:
    stage = "body" if "body" in stages else list(stages)[-1]
    points, shares = plane(stages[stage])
    pairs = [[_short(across), _short(up)] for across, up in points.tolist()]
    return {"tier": tier, "stage": stage, "shares": [_short(share) for share in shares], "points": pairs}


def _short(value: float | None) -> float | None:
    """As many digits as a picture needs."""
    return None if value is None else float(f"{value:.5g}")
