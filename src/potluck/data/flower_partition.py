"""Partitions of flwr-datasets (Flower): its partitioners divide row numbers by labels or users, and see nothing else.

The rows are shuffled first, as Flower's `FederatedDataset` does it. That, and what a partitioner draws itself, follows
from the seed of the run. The library's own loading, plotting and telemetry are not used. Tested with flwr-datasets
0.6.1, which needs a Python environment of its own (`constraints-flower.txt`).
"""

from __future__ import annotations

import inspect
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core import SettingsError, numpy_stream, one_line, require_library, suggestion, to_plain
from potluck.data.partition import FixedPartition, Rows
from potluck.data.settings import FLOWER, Data

NATURAL = ("NaturalIdPartitioner", "GroupedNaturalIdPartitioner")
"""Partitioners whose clients are users, or groups of users, however many there are."""

_VERTICAL = "it divides columns among clients, and here clients divide rows"
REFUSED = {
    "VerticalEvenPartitioner": _VERTICAL,
    "VerticalSizePartitioner": _VERTICAL,
    "IdToSizeFncPartitioner": "it takes a function, which settings cannot hold; choose LinearPartitioner, "
    "SquarePartitioner or ExponentialPartitioner",
    "Partitioner": "it is what the others are made from",
}
"""Partitioners that cannot be used here, and why."""

GIVEN = {"num_partitions": "data.clients", "seed": "the seed of the run"}
"""Arguments that follow from other settings."""


def flower_shards(data: Data, columns: Mapping[str, NDArray[Any]], rows: int, seed: int) -> tuple[FixedPartition, int]:
    """Who holds which of so many rows, and how many clients there are.

    `columns` are "label" and "user" of each row, as far as there are any; a user below 0 is none, and such a row is
    left out if rows are divided by user.
    """
    asked, name = f"data.partition = '{data.partition}'", data.partition.removeprefix(FLOWER)
    if why := REFUSED.get(name):
        raise SettingsError(f"{asked} cannot be used: {why}")
    rng = numpy_stream(seed, "partition", "flwr")
    kind = _partitioner(name, asked)
    arguments = _arguments(kind, data, columns, int(rng.integers(2**32)), asked)
    shards = _divide(kind, arguments, columns, rng.permutation(rows), asked)
    if name in NATURAL:
        shards = [shards[place] for place in rng.permutation(len(shards))[: data.clients]]
    elif len(shards) != data.clients:
        raise SettingsError(f"{asked} makes {len(shards)} clients, and data.clients = {data.clients}; make them equal")
    owners = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    return FixedPartition(np.concatenate(shards), owners, len(shards), data.samples), len(shards)


def _partitioner(name: str, asked: str) -> Any:
    """The class of this name."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when the library is imported
    require_library("flwr_datasets", "flower", asked)
    from flwr_datasets import partitioner

    known = [each for each in partitioner.__all__ if each not in REFUSED]
    if name not in known:
        hint = suggestion(f"{FLOWER}{name}", [f"{FLOWER}{each}" for each in known], f"There are: {', '.join(known)}.")
        raise SettingsError(f"{asked}: flwr-datasets has no such partitioner.{hint}")
    return getattr(partitioner, name)


def _arguments(kind: Any, data: Data, columns: Mapping[str, Any], seed: int, asked: str) -> dict[str, Any]:
    """What the partitioner is made with; an error for names that it does not have, and for those that it lacks."""
    known = inspect.signature(kind).parameters
    own = [name for name in known if name not in GIVEN]
    for name in data.flwr:
        if name in GIVEN:
            raise SettingsError(f"data.flwr.{name} follows from {GIVEN[name]}; leave it out")
        if name not in known:
            hint = suggestion(name, own, f"There are: {', '.join(own) or 'none'}.")
            raise SettingsError(f"[data.flwr] has no setting '{name}' for {kind.__name__}.{hint}")
    found = {"num_partitions": data.clients, "seed": seed, "partition_by": _usual_column(kind)} | to_plain(data.flwr)
    found = {name: value for name, value in found.items() if name in known}
    for name, parameter in known.items():
        if name not in found and parameter.default is parameter.empty:
            raise SettingsError(f"{asked} needs data.flwr.{name}; set it")
    by = found.get("partition_by")
    if by is not None and by not in columns:
        there = f"it can be {' or '.join(map(repr, columns))}" if columns else "there are neither labels nor users"
        raise SettingsError(f"{asked} divides rows by {by!r}, which this data does not have; {there}")
    if by == "label" and columns["label"].dtype.kind == "f" and kind.__name__ != "ContinuousPartitioner":
        raise SettingsError(f"{asked} needs one class per row, and labels are numbers; choose ContinuousPartitioner")
    if "distribution_array" in found:
        found["distribution_array"] = _table(found["distribution_array"])
    return found


def _usual_column(kind: Any) -> str:
    return "user" if kind.__name__ in NATURAL else "label"


def _table(values: Any) -> NDArray[np.float64]:
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 2:
        raise SettingsError("data.flwr.distribution_array must be a list of lists of numbers, one for each label")
    return found


def _divide(
    kind: Any, arguments: Mapping[str, Any], columns: Mapping[str, NDArray[Any]], order: Rows, asked: str
) -> list[Rows]:
    """The rows of each partition."""
    from datasets import Dataset

    by = arguments.get("partition_by", "")
    if by == "user":
        order = order[columns["user"][order] >= 0]
    # Values from 0 without gaps: a partitioner may count on that, and the training rows may lack a label.
    plain = {name: _without_gaps(values[order]) for name, values in columns.items() if name == by}
    with _quiet():
        try:
            made = kind(**arguments)
            made.dataset = Dataset.from_dict({"row": order, **plain})
            parts = [made.load_partition(each) for each in range(made.num_partitions)]
            return [np.array(part.with_format("numpy")["row"][:], np.int64) for part in parts]
        except Exception as fault:  # whatever the library says of these arguments and rows
            raise SettingsError(f"{asked}: {one_line(str(fault), 400) or type(fault).__name__}") from None


def _without_gaps(values: NDArray[Any]) -> NDArray[Any]:
    if not np.issubdtype(values.dtype, np.integer):
        return values
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library's warnings and progress bars from the screen."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
