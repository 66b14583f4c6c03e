"""Numbers as whole numbers in a finite ring, in which masks hide them and sums are exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core import SettingsError

Values = NDArray[Any]
"""Whole numbers in the ring: uint32 or uint64."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ring:
    """The whole numbers modulo 2 to the power of `bits`."""

    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.bits // 8}")

    @property
    def signed(self) -> np.dtype[Any]:
        return np.dtype(f"<i{self.bits // 8}")

    def zeros(self, count: int) -> Values:
        return np.zeros(count, self.dtype)

    def encode(self, values: Floats, scale: float) -> Values:
        """Numbers times the scale, rounded to whole numbers; negative ones are in the upper half of the ring."""
        return np.rint(values * scale).astype(np.int64).astype(self.dtype)

    def decode(self, values: Values, scale: float) -> Floats:
        """The numbers that whole numbers stand for."""
        return values.view(self.signed).astype(np.float64) / scale

    def scale(self, largest: float, count: int) -> float:
        """The finest scale, a power of two, with which `count` numbers of at most this size cannot overflow."""
        room = 2.0 ** (self.bits - 1) - 1 - count  # each number may be rounded up by a half
        if room <= 0 or not largest > 0:
            raise ValueError(f"{count} numbers of at most {largest:g} have no scale in {self.bits} bits")
        return 2.0 ** math.floor(math.log2(room / (largest * count)))


def clip_factor(square: float, clip: float) -> float:
    """What an update of this squared norm is multiplied by, so that its norm is at most `clip`."""
    if not math.isfinite(square):
        raise ValueError("its update is not finite")
    length = math.sqrt(square)
    return clip / length if length > clip else 1.0


def check_bits(bits: int, clip: float, cohort: int) -> None:
    """Refuses a ring in which a sum would be too coarse."""
    step = 1 / Ring(bits).scale(clip, cohort)
    if step * 1e4 > clip:
        raise SettingsError(
            f"secure.bits = {bits} leaves steps of {step:.2g} for {cohort} clients and secure.clip = {clip:g}; set it "
            "to 64."
        )
