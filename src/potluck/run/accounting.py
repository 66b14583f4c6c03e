"""Cost accounting: writes the cost and the outcome of every task into the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.core import SERVER, Client, Cost, Tier, Zoo
from potluck.engines import LedgerEntry, RoundSession
from potluck.fleet import Price, price, profile
from potluck.ledger import Journal, replace_nonfinite


@dataclass
class Progress:
    """The part of a checkpoint besides the method's state and the scores."""

    done: int = 0
    strikes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """The round in which each tier last took part."""
    totals: dict[str, float] = field(default_factory=dict)
    trained: dict[str, list[int]] = field(default_factory=dict)
    """How often each unit of each axis group was trained, for methods that send parts of the model."""
    uploads: dict[str, int] = field(default_factory=dict)
    """How often each client uploaded an update; counted only with [privacy]."""
    stopped: bool = False
    usual: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of replies that the gate accepted, on which its limits depend."""


class CostAccounting:
    """Writes costs into the ledger and adds up the totals."""

    def __init__(self, journal: Journal, zoo: Zoo) -> None:
        self.journal, self.zoo = journal, zoo

    def round(self, progress: Progress, session: RoundSession, cohort: Sequence[Client], seconds: float) -> None:
        """Records a committed round: its tasks, then the round itself."""
        slowest = self.tasks(progress, session.entries, cohort)
        came = {entry.task.to for entry in session.entries if entry.verdict == "accepted"}
        progress.seen |= {client.tier.name: progress.done for client in cohort if client.id in came}
        self._count_units(progress, session.held)
        _add(progress.totals, device_seconds=slowest, seconds=seconds)
        losses = [loss for entry in session.entries if entry.task.to != SERVER and (loss := _loss(entry)) is not None]
        event = {
            "event": "round",
            "round": progress.done,
            "seconds": seconds,
            "sent": len(session.entries),
            "accepted": session.accepted,
            "coverage": session.coverage,
            "loss": sum(losses) / len(losses) if losses else None,
            "device_seconds": slowest,
        }
        if progress.trained:
            event["least"] = min(min(counts) for counts in progress.trained.values())
        self.journal.append(event)

    def tasks(self, progress: Progress, entries: Sequence[LedgerEntry], cohort: Sequence[Client]) -> float:
        """Computes the cost of tasks and writes a line for each. Returns the seconds of the slowest device.

        The server's own work has separate totals.
        """
        tiers = {client.id: client.tier for client in cohort}
        slowest = 0.0
        for entry in entries:
            tier, cost = tiers.get(entry.task.to), _wire_cost(entry)
            paid = price(cost, profile(tier.profile if tier else "server"))
            self.journal.append(_line(progress.done, entry, cost, tier, paid))
            if entry.task.to == SERVER:
                _add(progress.totals, server_flops=cost.flops, server_joules=paid.joules)
                continue
            slowest = max(slowest, paid.seconds)
            _add(
                progress.totals,
                bytes_down=cost.bytes_down,
                bytes_up=cost.bytes_up,
                flops=cost.flops,
                joules=paid.joules,
            )
        return slowest

    def coverage(self, progress: Progress) -> None:
        """Records how often each unit was trained so far."""
        if progress.trained:
            self.journal.append({"event": "coverage", "round": progress.done, "groups": progress.trained})

    def _count_units(self, progress: Progress, held: Sequence[Mapping[str, tuple[int, ...]] | None]) -> None:
        """Counts the units of every part that clients returned; None means the whole model."""
        if all(units is None for units in held) and not progress.trained:
            return
        sizes = self.zoo.full.sizes
        for group, size in sizes.items():
            counts = progress.trained.setdefault(group, [0] * size)
            for units in held:
                for unit in range(size) if units is None else units.get(group, ()):
                    counts[unit] += 1


def _wire_cost(entry: LedgerEntry) -> Cost:
    """A task's cost; the server's own tasks transfer no bytes."""
    return replace(entry.cost, bytes_down=0, bytes_up=0) if entry.task.to == SERVER else entry.cost


def _line(done: int, entry: LedgerEntry, cost: Cost, tier: Tier | None, paid: Price) -> dict[str, Any]:
    line = {
        "event": "task",
        "round": done,
        "client": entry.task.to,
        "tier": tier.name if tier else entry.task.to,
        "verb": entry.task.verb,
        "key": entry.task.key,
        "outcome": entry.verdict,
        "reason": entry.reason,
        "measured": {"bytes_down": cost.bytes_down, "bytes_up": cost.bytes_up, "seconds": cost.seconds},
        "modelled": {"flops": cost.flops, "memory": cost.memory, "seconds": paid.seconds, "joules": paid.joules},
        "loss": _loss(entry),
        "samples": entry.weight,
    }
    # Of clients, only the loss is recorded: other metrics are private and many. The server's own metrics are recorded.
    metrics = {name: replace_nonfinite(value) for name, value in entry.metrics.items() if name != "loss"}
    return {**line, "metrics": metrics} if metrics and entry.task.to == SERVER else line


def _loss(entry: LedgerEntry) -> float | None:
    """The training loss of a task; None if there was no step, or if the loss is not finite."""
    loss = entry.metrics.get("loss")
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


def _add(totals: dict[str, float], **more: float) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value
