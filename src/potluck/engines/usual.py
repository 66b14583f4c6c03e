"""What is usual: weights and step lengths that the gate accepted in earlier rounds. Limits are multiples of medians."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KEPT = 200
"""How many of the newest values of each kind are kept: some rounds, whatever the population."""
LEAST = 5
"""With fewer values there is no limit yet: a median of few can be anybody's."""


@dataclass
class Usual:
    """Accepted numbers of committed rounds, by kind. It is a part of a run's progress."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def limit(self, kind: str, times: float) -> float | None:
        """So many times the median of a kind; None: there are too few values, or the median is zero."""
        found = self.values.get(kind, [])
        middle = statistics.median(found) if len(found) >= LEAST else 0.0
        return times * middle if middle > 0 else None

    def add(self, accepted: Mapping[str, Iterable[float]]) -> None:
        """Adds the numbers of a committed round. They are sorted, so that the order of clients does not matter."""
        for kind, numbers in accepted.items():
            self.values[kind] = [*self.values.get(kind, []), *sorted(numbers)][-KEPT:]
