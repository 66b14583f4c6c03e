"""Cost accounting: writes the cost and the outcome of every task into the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.core import EMPTY, SERVER, Client, Cost, Tier, Zoo
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
    charges: int = 0
    """The number of the last charge in the ledger that `uploads` includes."""
    tried: list[dict[str, Any]] = field(default_factory=list)
    """The ledger's lines of the attempts at the next round that missed their quorum."""
    stopped: bool = False
    usual: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of replies that the gate accepted, on which its limits depend."""
    clients: dict[str, Any] = field(default_factory=dict)
    """The roster of a federation of real nodes; empty in a simulation."""

    @property
    def attempts(self) -> int:
        """How many attempts at the next round missed their quorum."""
        return sum(line["event"] == "attempt" for line in self.tried)


class CostAccounting:
    """Writes costs into the ledger and adds up the totals."""

    def __init__(self, journal: Journal, zoo: Zoo) -> None:
        self.journal, self.zoo = journal, zoo

    def round(self, progress: Progress, session: RoundSession, clients: Sequence[Client], seconds: float) -> None:
        """Records a committed round: its tasks, then the round itself, with the time of attempts that failed."""
        slowest, own = self.tasks(progress, session.entries, clients)
        failed = [line for line in progress.tried if line["event"] == "attempt"]
        before, waited = (sum(line[name] for line in failed) for name in ("device_seconds", "round_seconds"))
        progress.tried.clear()
        came = {entry.task.to for entry in session.entries if entry.verdict == "accepted"}
        progress.seen |= {client.tier.name: progress.done for client in clients if client.id in came}
        self._count_units(progress, session.held)
        _add(progress.totals, device_seconds=slowest, round_seconds=slowest + own, seconds=seconds)
        losses = [loss for entry in session.entries if entry.task.to != SERVER and (loss := _loss(entry)) is not None]
        event = {
            "event": "round",
            "round": progress.done,
            "seconds": seconds,
            "sent": len(session.entries),
            "accepted": session.accepted,
            "coverage": session.coverage,
            "loss": sum(losses) / len(losses) if losses else None,
            "device_seconds": before + slowest,
            "round_seconds": waited + slowest + own,
        }
        if progress.trained:
            event["least"] = min(min(counts) for counts in progress.trained.values())
        self.journal.append(event)

    def failed_attempt(
        self, progress: Progress, session: RoundSession, clients: Sequence[Client], seconds: float
    ) -> None:
        """Records an attempt at the next round that missed its quorum: what it cost was spent all the same.

        Its lines also go into the checkpoint. A resumed run drops them from the ledger, as the round is not committed,
        and writes them again.
        """
        facts = {"round": progress.done + 1, "attempt": progress.attempts + 1}
        lines: list[dict[str, Any]] = []
        slowest, own = self.tasks(progress, session.entries, clients, facts, lines)
        _add(progress.totals, device_seconds=slowest, round_seconds=slowest + own, seconds=seconds)
        event = {"event": "attempt", **facts, "seconds": seconds, "sent": len(session.entries)}
        costs = {"device_seconds": slowest, "round_seconds": slowest + own}
        lines.append({**event, "accepted": session.accepted, **costs})
        self.journal.append(lines[-1])
        progress.tried += lines

    def tasks(
        self,
        progress: Progress,
        entries: Sequence[LedgerEntry],
        clients: Sequence[Client],
        facts: Mapping[str, int] = EMPTY,
        lines: list[dict[str, Any]] | None = None,
    ) -> tuple[float, float]:
        """Computes the cost of tasks and writes a line for each; returns the slowest device's seconds and the server's.

        Each does its tasks one after the other. The server's own work has separate totals. `facts` are put into each
        line, and `lines` gets a copy of them all.
        """
        tiers = {client.id: client.tier for client in clients}
        spent: dict[str, float] = {}
        for entry in entries:
            tier, cost = tiers.get(entry.task.to), _wire_cost(entry)
            paid = price(cost, profile(tier.profile if tier else "server"))
            line = {**_line(progress.done, entry, cost, tier, paid), **facts}
            self.journal.append(line)
            if lines is not None:
                lines.append(line)
            spent[entry.task.to] = spent.get(entry.task.to, 0.0) + paid.seconds
            if entry.task.to == SERVER:
                _add(progress.totals, server_flops=cost.flops, server_joules=paid.joules)
                continue
            _add(
                progress.totals,
                bytes_down=cost.bytes_down,
                bytes_up=cost.bytes_up,
                flops=cost.flops,
                joules=paid.joules,
            )
        own = spent.pop(SERVER, 0.0)
        return max(spent.values(), default=0.0), own

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
    if entry.task.to != SERVER:
        return line
    metrics = {name: replace_nonfinite(value) for name, value in entry.metrics.items() if name != "loss"}
    return {**line, "metrics": metrics} if metrics else line


def _loss(entry: LedgerEntry) -> float | None:
    """The training loss of a task; None if there was no step, or if the loss is not finite."""
    loss = entry.metrics.get("loss")
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


def _add(totals: dict[str, float], **more: float) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value
