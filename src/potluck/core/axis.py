"""Axis groups: which tensor dimensions index the same units (channels, neurons)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Axis:
    """One tensor dimension, or a segment of one, that indexes the units of a group.

    Channels that must be kept or removed together share a group: the output rows of a layer, the input columns of the
    next layer, the norm between them, both sides of a residual sum. A dimension holds ``outer * size * inner`` entries:
    `outer` copies one after the other (attention heads), `inner` entries per unit (a flattened feature map).
    """

    group: str
    size: int
    outer: int = 1
    inner: int = 1

    @property
    def length(self) -> int:
        return self.outer * self.size * self.inner


Dimension: TypeAlias = "Axis | tuple[Axis, ...] | None"
"""What one tensor dimension indexes. None: it is never cut. Several axes: segments one after the other (concat)."""

Dimensions: TypeAlias = "tuple[Dimension, ...]"
"""One entry per dimension of a tensor. Trailing dimensions that are never cut may be left out."""
