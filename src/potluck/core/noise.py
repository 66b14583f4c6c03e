"""Gaussian noise that hides something: from a stream that nobody can guess or compute backwards.

torch's generator on the CPU uses 32 bits of its seed, and what it will draw follows from what it has drawn. That is
good for simulations, which must repeat, and hides nothing. Real federations draw from SHAKE-256 with a key of 32 bytes
from the operating system. It is the same stream on every machine, whatever is installed there, so that noise on prefix
sums can be drawn again from its key.
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 32
PIECE = 1 << 16
"""Pairs of numbers that are drawn at once, so that they are still in the cache when they are used."""


class SecretNoise:
    """Standard normal numbers from a secret key: the same key gives the same numbers in the same order.

    Each pair is made of two uniform numbers of 53 bits by the Box-Muller transform, in float64. None is further from
    zero than 8.6; a true normal number is, with a probability of 1e-17.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.key = os.urandom(KEY_BYTES) if key is None else key
        """Without it, the noise cannot be told from true noise."""
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key of {len(self.key)} bytes; it must have {KEY_BYTES}")
        self._piece = 0

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """The next numbers, in float64."""
        count = math.prod(shape)
        pairs = -(-count // 2)
        pieces = [self._pairs(min(PIECE, pairs - at)) for at in range(0, pairs, PIECE)]
        drawn = np.concatenate(pieces) if pieces else np.empty(0)
        return torch.from_numpy(drawn[:count]).reshape(shape)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The next numbers from 0 to 1 (which does not come), in float64."""
        return self._words(count).astype(np.float64) * 2.0**-53

    def _words(self, count: int) -> NDArray[np.uint64]:
        """Whole numbers of 53 bits."""
        text = self.key + self._piece.to_bytes(8, "little")
        self._piece += 1
        return np.frombuffer(hashlib.shake_256(text).digest(8 * count), "<u8") >> np.uint64(11)

    def _pairs(self, pairs: int) -> NDArray[np.float64]:
        words = self._words(2 * pairs)
        length = np.sqrt(
            -2 * np.log((words[:pairs] + np.uint64(1)) * 2.0**-53)
        )  # above 0, so that its logarithm is finite
        angle = words[pairs:] * (2 * math.pi * 2.0**-53)
        return np.concatenate([length * np.cos(angle), length * np.sin(angle)])


NoiseSource: TypeAlias = "torch.Generator | SecretNoise"
"""Where noise is drawn from: a simulation's generator, or a secret stream."""


def normal(shape: tuple[int, ...], source: NoiseSource) -> Tensor:
    """Standard normal numbers in float64: the same on every device."""
    if isinstance(source, SecretNoise):
        return source.normal(tuple(shape))
    return torch.randn(shape, generator=source, dtype=torch.float64)
