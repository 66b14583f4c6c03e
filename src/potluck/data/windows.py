"""Recordings of any length, stored end to end, cut into windows of one length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core import InputError, SettingsError

Array = NDArray[Any]


def windows(x: Array, off: Array, length: int, name: str) -> tuple[Array, Array]:
    """Windows of (channels, length), and the recording that each is from; recording i is ``x[off[i]:off[i + 1]]``.

    Windows do not overlap. What is left at a recording's end is dropped, and so is a recording shorter than a window.
    """
    if not length:
        raise SettingsError(f"{name}: recordings of different lengths (it has 'off'); set data.window to a length")
    _check(x, off, name)
    counts = np.diff(off) // length
    if not counts.sum():
        raise SettingsError(
            f"{name}: data.window = {length}, but the longest recording has {np.diff(off).max(initial=0)}"
        )
    recording = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(recording)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = off[recording].astype(np.int64) + number * length
    return x[starts[:, None] + np.arange(length)].transpose(0, 2, 1), recording


def _check(x: Array, off: Array, name: str) -> None:
    if x.ndim != 2:
        raise InputError(f"{name}: x has the shape {x.shape}; recordings end to end are (samples, channels)")
    whole = off.ndim == 1 and len(off) > 1 and np.issubdtype(off.dtype, np.integer)
    if not whole or off[0] != 0 or off[-1] != len(x) or (off[1:] < off[:-1]).any():
        raise InputError(
            f"{name}: off must rise from 0 to the {len(x)} samples of x, one more than there are recordings"
        )
