"""Means that lead elsewhere than to the average."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from potluck.core import Arrays
from potluck.parts import OverlapMean


class Lengthened(OverlapMean):
    """A mean of which some tensors are so many times as far from the start."""

    def __init__(self, start: Arrays) -> None:
        super().__init__(start)
        self.by: Mapping[str, float] = {}

    def value(self) -> Arrays:
        out = dict(super().value())
        for name, times in self.by.items():
            old, far = self.start[name], self.start[name] + times * (out[name] - self.start[name])
            # Adding nothing loses the sign of -0.0; an entry that did not move keeps its bits.
            out[name] = torch.where(out[name] == old, old, far)
        return out
