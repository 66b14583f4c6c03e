"""What a method needs from a federation and what it allows, so that users can choose a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from potluck.core.plain import EMPTY


@dataclass(frozen=True)
class Facts:
    """Every method declares these as `facts`; they may depend on its settings. The contract tests check them."""

    networks: Literal["one", "width", "depth", "any"] = "one"
    """What devices train: all the same network; narrower or shallower parts of one; networks of any architecture."""
    units: bool = False
    """Whether it also chooses units (channels, neurons) where all devices train the same network."""
    public: Literal["none", "inputs", "labels"] = "none"
    """The public data that it needs: none, inputs without labels, or inputs with labels."""
    unlabelled: bool = False
    """Whether a method with ``public = "labels"`` also works with public rows that have no labels."""
    memory: bool = False
    """Whether clients keep a memory from round to round."""
    larger: bool = False
    """Whether the server's model may be larger than every client's, with all of it still trained."""
    sums: bool = True
    """Whether the server needs only the sum of the clients' uploads, so that secure aggregation is possible."""
    bound: bool = False
    """Whether it is a reference that ignores the limits of devices. Reports show it but do not rank it."""


def facts_of(method: object) -> Facts | None:
    """The facts that a method declares under its settings; None if it declares none."""
    found = getattr(method, "facts", None)
    return found if isinstance(found, Facts) else None


@dataclass(frozen=True)
class ContractSettings:
    """Settings for the contract tests of a method. Its class declares them as `contract`; all are optional."""

    as_fedavg: Mapping[str, Any] | None = None
    """With these settings and equal devices the method equals FedAvg. None: it never does, and `why_not` says why."""
    why_not: str = ""
    within: float = 0.0
    """The largest difference from FedAvg's weights in that case; 0: they are equal bit for bit."""
    local: Mapping[str, Any] | None = None
    """The local training for which this holds; None: any."""
    rounds: int = 2
    """The number of rounds for which it equals FedAvg."""
    idle: Mapping[str, Any] = EMPTY
    """With these settings the server does no training of its own."""
    quick: Mapping[str, Any] = EMPTY
    """With these settings the server does little training of its own, so that tests are fast."""
    tiers: Literal["depth", "width"] | None = None
    """How tiers differ in the tests. None: in width if `facts.networks` is "width", else in depth."""
