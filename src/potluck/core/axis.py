"""Axis groups: which dimensions of which tensors count the same units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Axis:
    """One dimension (or a segment of one) that counts the units of a group.

    Channels that must travel together share a group: the output rows of a layer, the input columns of the next, the
    norm between them, both sides of a residual sum. A dimension holds ``outer * size * inner`` entries: `outer` copies
    one after the other (heads), `inner` entries per unit (a flattened map).
    """

    group: str
    size: int
    outer: int = 1
    inner: int = 1

    @property
    def length(self) -> int:
        return self.outer * self.size * self.inner


Dimension: TypeAlias = "Axis | tuple[Axis, ...] | None"
"""What one dimension of a tensor counts; None: always whole; several axes: segments one after the other (concat)."""

Dimensions: TypeAlias = "tuple[Dimension, ...]"
"""One entry per dimension of a tensor; trailing dimensions may be left out (whole)."""
