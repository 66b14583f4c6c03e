"""Randomness as a function of what it is for, never of what was drawn before.

Every stream is named by a key, such as ``(seed, "train", round, client)``. Two runs that ask for the same key get the
same numbers, in any order and on any machine; so nothing random is ever saved.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
import torch

Key: TypeAlias = "str | int"


def entropy(seed: int, *key: Key) -> np.random.SeedSequence:
    """The seed sequence of one stream."""
    words = [part if isinstance(part, int) else zlib.crc32(part.encode()) + (1 << 32) for part in key]
    return np.random.SeedSequence(seed, spawn_key=words)


def stream(seed: int, *key: Key) -> torch.Generator:
    """A torch generator of its own for this key."""
    state = entropy(seed, *key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


def dice(seed: int, *key: Key) -> np.random.Generator:
    """A numpy generator of its own for this key."""
    return np.random.Generator(np.random.PCG64(entropy(seed, *key)))
