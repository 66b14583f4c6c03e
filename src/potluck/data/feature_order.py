"""The order of rows by their inputs, for data whose features lean by tier."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core import Examples

SAMPLE_ROWS = 1024
"""The most rows from which the principal component is computed."""
SAMPLE_VALUES = 2**25
"""The most values of these rows: 256 MB."""
AT_ONCE = 1024
"""Rows whose scores are computed at a time."""


def feature_order(examples: Examples) -> NDArray[np.int64]:
    """Row numbers, sorted by the first principal component of the inputs as networks get them, the lowest first.

    The component is that of at most 1,024 rows, evenly spaced; of more rows it is an estimate. It points to where its
    largest entry is positive. Scores are compared to six digits, so that the last bits of a machine do not matter, and
    rows with the same score keep their order. All inputs are read once.
    """
    count = len(examples)
    if not count:
        return np.zeros(0, np.int64)
    wide = max(1, math.prod(examples.columns["x"].shape[1:]))
    size = min(count, SAMPLE_ROWS, max(2, SAMPLE_VALUES // wide))
    sample = _inputs(examples, torch.from_numpy(np.linspace(0, count - 1, size).round().astype(np.int64)))
    mean = sample.mean(0)
    direction = principal_component(sample - mean)
    pieces = (_inputs(examples, torch.arange(at, min(at + AT_ONCE, count))) - mean for at in range(0, count, AT_ONCE))
    scores = torch.cat([piece @ direction for piece in pieces]).numpy()
    spread = float(scores.std())
    return np.argsort(np.round(scores / spread, 6) if spread else scores, kind="stable")


def principal_component(rows: Tensor) -> Tensor:
    """The direction, of length 1, in which these centred rows vary most; its largest entry is positive."""
    if len(rows) < rows.shape[1]:  # the matrix of inner products is smaller, and has the same leading direction
        found: Tensor = torch.linalg.eigh(rows @ rows.T).eigenvectors[:, -1] @ rows
    else:
        found = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -1]
    length = found.norm()
    if not length:
        return torch.zeros_like(found)
    pointing: Tensor = found / length * found[found.abs().argmax()].sign()
    return pointing


def _inputs(examples: Examples, rows: Tensor) -> Tensor:
    return examples[rows]["x"].reshape(len(rows), -1).to(torch.float64)
