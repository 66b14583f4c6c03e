"""Public rows that have nothing to do with what clients hold."""

from __future__ import annotations

import numpy as np
import torch

from potluck.core import Examples, SettingsError, numpy_stream
from potluck.data.pool import kinds_of, spread
from potluck.data.settings import Data
from potluck.data.source import Source


def unrelated(other: Source, source: Source, data: Data, seed: int) -> Examples:
    """So many rows of another source as public rows of this one, in its mix of classes, scaled in its own way.

    They have inputs and no labels, for a label of another set of classes would be learned as one of these.
    """
    if any(one.train.columns["x"].dtype == torch.int64 for one in (other, source)):
        raise SettingsError("data.public_from is for rows of numbers; tokens of two texts mean different things")
    if other.shape != source.shape:
        raise SettingsError(
            f"data.public_from has rows of {other.shape}, {source.name} has {source.shape}; "
            "set data.public_from.shape or data.public_from.size to make them equal"
        )
    if data.public > len(other.train):
        raise SettingsError(f"data.public = {data.public}, but data.public_from has {len(other.train)} rows; lower it")
    order = spread(kinds_of(other.train, other.classes)[0], numpy_stream(seed, "public"))
    rows = torch.from_numpy(np.sort(order[: data.public]))
    return Examples({"x": other.train.column("x")[rows]}, prepare=other.train.prepare)
