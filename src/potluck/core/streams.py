"""Randomness as a function of what it is for, never of what was drawn before.

Every stream is named by a key, such as ``(seed, "train", round, client)``. Two runs that ask for the same key get the
same numbers, in any order and on any machine; so nothing random is ever saved.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import torch

Key: TypeAlias = "str | int"


def entropy(seed: int, *key: Key) -> bytes:
    """Sixteen bytes that belong to this key alone. (Hashing is several times faster than spawning seed sequences.)"""
    parts = [part if isinstance(part, str) else int(part) for part in (seed, *key)]
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def stream(seed: int, *key: Key) -> torch.Generator:
    """A torch generator of its own for this key."""
    return torch.Generator().manual_seed(int.from_bytes(entropy(seed, *key)[:8], "little") >> 1)


def numpy_stream(seed: int, *key: Key) -> np.random.Generator:
    """A numpy generator of its own for this key."""
    words = int.from_bytes(entropy(seed, *key), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
