"""What a method needs of a federation and what it allows: the facts by which one chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from potluck.core.plain import EMPTY


@dataclass(frozen=True)
class Facts:
    """Declared by every method, under its settings, as `facts`; the contract suite holds each to its word."""

    networks: Literal["one", "width", "depth", "any"] = "one"
    """What devices may train: all the same network; narrow or shallow parts of one; networks of any architecture."""
    public: Literal["none", "inputs", "labels"] = "none"
    """Public rows that it needs: none; rows without labels; labelled ones."""
    unlabelled: bool = False
    """Whether public rows without labels do as well, where it would use labels."""
    memory: bool = False
    """Whether clients keep something from round to round."""
    larger: bool = False
    """Whether the server's model may be larger than any client's, and is trained all over."""
    sums: bool = True
    """Whether the server needs no more than sums over clients of what they upload, as secure aggregation gives."""
    bound: bool = False
    """Whether it is a reference that ignores what devices can carry: shown beside the others, never ranked."""


def facts_of(method: object) -> Facts | None:
    """What a method (under its settings) declares; None where it declares nothing."""
    found = getattr(method, "facts", None)
    return found if isinstance(found, Facts) else None


@dataclass(frozen=True)
class ContractSettings:
    """Settings under which the contract suite tries a method. A class declares them as `contract`; all are optional."""

    as_fedavg: Mapping[str, Any] | None = None
    """With these settings, on equal devices, the method is FedAvg; None: never, and `why_not` says why."""
    why_not: str = ""
    within: float = 0.0
    """How far its weights may then be from FedAvg's; 0: they are equal bit for bit."""
    local: Mapping[str, Any] | None = None
    """How clients must train for that, where it matters."""
    rounds: int = 2
    """For how many rounds it is FedAvg."""
    idle: Mapping[str, Any] = EMPTY
    """With these settings the server itself trains nothing."""
    quick: Mapping[str, Any] = EMPTY
    """With these settings the server itself trains little."""
    tiers: Literal["depth", "width"] | None = None
    """What tiers differ in where the method is tried; None: in width if its facts say so, else in depth."""
