"""Who holds what: how many training rows of each label a client has. Counts only, of some of the clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from potluck.core import one_line
from potluck.data import Federation, Source, load
from potluck.fleet import tier_ends
from potluck.run.assemble import FederationDatasets, Setup, client_tiers
from potluck.run.settings import Experiment

SHOWN = 120
"""The most clients that are counted; of more, a sample."""
LABELS = 40
"""The most labels; of more, those with the fewest rows are counted together."""
NAME_LENGTH = 40
"""The longest name of a label."""


def who_holds_what(experiment: Experiment, source: Source | None = None, most: int | None = SHOWN) -> dict[str, Any]:
    """Divides the data of an experiment and counts labels, without building a network. `most` clients; None: all."""
    source = source if source is not None else load(experiment.data)
    federation = Federation(source, experiment.data, experiment.seed, tiers=client_tiers(experiment))
    return count_holdings(federation, source, experiment, most)


def holdings_text(setup: Setup) -> bytes:
    """What ``holdings.json`` of a run folder holds; nothing if clients are real nodes, whose rows are their own."""
    datasets, source = setup.context.datasets, setup.source
    if not isinstance(datasets, FederationDatasets) or source is None:
        return b""
    found = count_holdings(datasets.federation, source, setup.experiment)
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def count_holdings(
    federation: Federation, source: Source, experiment: Experiment, most: int | None = SHOWN
) -> dict[str, Any]:
    """Rows of each label that clients hold, as plain values.

    `partition`; `clients`, how many there are; `labels`, their names (empty if rows have no single class: then a client
    has one count, its rows); `tiers`, each with `name`, `clients` and whether it is `absent`; `held`, for each counted
    client its `client`, `tier` and `counts`. Of many clients every tier gives an even sample.
    """
    tiers = list(_tiers(experiment, federation.clients))
    picked = [(name, index) for name, _, theirs in tiers for index in _sample(theirs, federation.clients, most)]
    counts = np.array([federation.label_counts(index) for _, index in picked]).reshape(len(picked), -1)
    one_class = source.classes > 0 and source.train.columns["y"].dim() == 1
    names = [one_line(name, NAME_LENGTH) for name in source.names or map(str, range(source.classes))]
    labels, columns = _fewer_labels(names, counts) if one_class else ([], counts)
    return {
        "partition": experiment.data.partition,
        "clients": federation.clients,
        "labels": labels,
        "tiers": [{"name": name, "clients": len(theirs), "absent": absent} for name, absent, theirs in tiers],
        "held": [
            {"client": f"c{index}", "tier": name, "counts": row}
            for (name, index), row in zip(picked, columns.tolist(), strict=True)
        ],
    }


def _tiers(experiment: Experiment, clients: int) -> Iterator[tuple[str, bool, range]]:
    """The tiers with their clients; one without a name if clients change their tier."""
    if experiment.fleet.tiers != "fixed":
        yield "", False, range(clients)
        return
    ends = tier_ends([tier.share for tier in experiment.tier], clients)
    for tier, start, end in zip(experiment.tier, [0, *ends], ends, strict=False):
        yield tier.name, tier.absent, range(start, end)


def _sample(theirs: range, clients: int, most: int | None) -> list[int]:
    """Clients of a tier, evenly spaced: as many as its share of those that are counted, and one at least."""
    if most is None or clients <= most or not theirs:
        return list(theirs)
    size = max(1, len(theirs) * most // clients)
    return [theirs[int(place)] for place in np.linspace(0, len(theirs) - 1, size).round()]


def _fewer_labels(names: list[str], counts: np.ndarray[Any, Any]) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The labels with the most rows, in order, and all others as one."""
    if len(names) <= LABELS:
        return names, counts
    most = np.sort(np.argsort(-counts.sum(0), kind="stable")[: LABELS - 1])
    rest = counts.sum(1, keepdims=True) - counts[:, most].sum(1, keepdims=True)
    return [*(names[label] for label in most), f"{len(names) - len(most)} others"], np.hstack([counts[:, most], rest])
