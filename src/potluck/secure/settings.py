"""The settings of secure aggregation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from potluck.core import Task

KEYS, SHARES, AGREE, OPEN = "secure keys", "secure shares", "secure agree", "secure open"
"""The verbs of phases 1, 2, 4 and 5; the task of phase 3 has the method's own verb."""
VERBS = (KEYS, SHARES, AGREE, OPEN)
PHASES = 5
REQUEST = "secure"
"""Under this name, a task's config has the request."""


@dataclass(frozen=True)
class Secure:
    """Secure aggregation, under [secure]: the server sees sums of updates, and no single one. See docs/security.md."""

    enabled: bool = False
    """Whether it is on."""
    min_holders: int = 3
    """A block (entries that the same devices hold) is opened only if this many clients contributed to it; otherwise it
    keeps its value."""
    clip: float = 100.0
    """The largest norm of an update that leaves a device; a longer one is scaled down. It also sets how fine numbers
    are rounded."""
    statistics: float = 1000.0
    """The largest change of a batch-norm statistic in a round; a larger one is cut."""
    bits: Literal[32, 64] = 32
    """The length of the whole numbers that updates are rounded to."""
    threshold: float = 1 / 3
    """The share of a client's neighbours that can together open its masks, and without whom a block stays closed; never
    fewer than min_holders. So many must also agree on who uploaded. Above a half, a server that tells some clients
    otherwise than others gets no sum; then fewer may be lost."""

    def __post_init__(self) -> None:
        if not 2 <= self.min_holders <= 1_000_000:
            raise ValueError(f"secure.min_holders = {self.min_holders} must be at least 2")
        for name in ("clip", "statistics"):
            if not 1e-6 <= getattr(self, name) <= 1e9:
                raise ValueError(f"secure.{name} = {getattr(self, name)} must be from 1e-6 to 1e9")
        if self.bits not in (32, 64):
            raise ValueError(f"secure.bits = {self.bits} must be 32 or 64")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"secure.threshold = {self.threshold} must be above 0 and at most 1")

    def shares_needed(self, shares: int) -> int:
        """How many of so many shares of a client's secret give the secret. Fewer than `min_holders` clients never can,
        where there are as many."""
        return min(shares, max(self.min_holders, math.ceil(self.threshold * shares - 1e-9)))


def phase_of(task: Task) -> int:
    """The phase that a task of a secure sum belongs to, from 0 to 4."""
    return {KEYS: 0, SHARES: 1, AGREE: 3, OPEN: 4}.get(task.verb, 2)


def is_protocol(task: Task) -> bool:
    """Whether a task only serves a secure sum: it trains nothing."""
    return task.verb in VERBS


def request_bytes(task: Task) -> int:
    """Bytes of the request of a secure sum; 0 if a task has none."""
    return len(canonical(task.config[REQUEST])) if REQUEST in task.config else 0


def canonical(plain: Any) -> bytes:
    """Plain values as bytes, the same on all machines."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_listed).encode()


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is no plain value")
