"""The ledger, with the costs of every task: one JSON object per line, with its kind (``event``) and its round.

Rounds count from 1. Seconds, FLOPs, memory and joules under ``modelled`` follow from the task and the device's
profile; if that rests on measurements (`potluck measure`) or on fleet.file, a `basis` there says which: measured,
fitted, other network, drawn. What stands under ``measured`` was measured here. A number that is not finite is null. The
events:

- `task`, for every task of a committed round, or of an attempt at one: `round`; `client` and its `tier` (for the
  server's own work, both are "server"); `verb`, what it was asked to do; `key`, which of several such tasks;
  `outcome`: accepted, absent (no answer) or quarantined (refused at the gate), with the `reason`; `measured`, with
  `bytes_down`, `bytes_up` and `seconds`; `modelled`, with `flops`, `memory` in bytes, `seconds` and `joules`; the
  training `loss`; `samples`, the weight of the reply. Of the server's own tasks also other `metrics`. In an attempt
  that failed, also `attempt`.
- `round`, for every committed round: `round`; `seconds` that it took here; `sent` tasks and `accepted` replies;
  `coverage`, the share of the server's weights that were trained; the mean training `loss`; `device_seconds`,
  modelled, of the slowest device; `round_seconds`, with the server's own work; both with the attempts that failed
  before. If parts of the model are trained, `least`: how often the least trained unit was trained so far.
- `attempt`, for an attempt at a round that missed its quorum: `round`, `attempt` (from 1), `seconds`, `sent`,
  `accepted`, `device_seconds` and `round_seconds`.
- `coverage`, if parts of the model are trained: `round`; `groups`, how often each unit of each axis group was trained.
- `gate`, if the gate's limits follow from earlier replies: `round`; `limits` by kind of reply.
- `privacy`, under [privacy]: `round`, `clip`, `noise`, `delta`; `epsilon_each` of one upload; `uploads` of the client
  that uploaded most, and the `epsilon` of all of these.
- `secure`, under [secure], for each secure sum: `round`; how many clients were `asked` and have `uploaded`; how many
  `blocks` there were, how many could be `planned` and were `opened`; the `entries` of all of them, and the
  `opened_entries`; the blocks that stayed `closed`, each with its `tiers`, its `entries`, its `holders` and how many of
  them `uploaded`; clients that were `faulty`, and why; how many opened blocks were `refused`, because no honest clients
  have such a sum, and `why`; whether too few uploaded for `run.quorum` (`short`).
- `charge`, under [privacy], before a client is asked for an update: `round` is always 0; its `number`; the `client`;
  the round that it is `of`. So uploads are counted even if the process dies.
- `nodes`, in a federation between machines: `round`; `nodes`, each with `client` (its id), `name`, `tier`, whether it
  is `there`, was `asked` and has `answered`, and its `bytes_down` and `bytes_up`.
- `warning`, for what the run warned of: `round` and `text`.

If the server adds the noise ([privacy] where = "server"), `privacy` has other fields: `round`, `where`, `mechanism`,
`neighbours` (which data sets epsilon compares), the `clip` of the next round, `noise`, `delta`, the `releases` so far
and their `epsilon`; `draw` and the largest `rate` at which a client is drawn (`rates` of all tiers, where they differ)
or, for noise on prefix sums, `uploads` of the client that was asked most often. Then `charge` is written once for each
sum, before noise is added. Its `client` is "server", and it has the `rate`, or `asked`, the clients of the round. If
clients add the noise together ([secure], too), the fields are those of noise on devices, with `where` = "clients" and
`neighbours`; `noise` is that of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.core import EMPTY, SERVER, Client, Cost, Tier, Zoo
from potluck.engines import LedgerEntry, RoundSession
from potluck.fleet import Price, Profile, needed_memory, price, profile
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
    central: dict[str, Any] = field(default_factory=dict)
    """Under [privacy] where = "server": what was released, and what the noise of later rounds depends on."""
    tried: list[dict[str, Any]] = field(default_factory=list)
    """The ledger's lines of the attempts at the next round that missed their quorum."""
    stopped: bool = False
    usual: dict[str, list[float]] = field(default_factory=dict)
    """Numbers of replies that the gate accepted, on which its limits depend."""
    secured: dict[str, int] = field(default_factory=dict)
    """Of all secure sums: how many `entries` there were, and how many of them were `opened`."""
    closed: dict[str, int] = field(default_factory=dict)
    """In how many secure sums the entries that only these tiers hold stayed closed, by the tiers' names."""
    clients: dict[str, Any] = field(default_factory=dict)
    """The roster of a federation of real nodes; empty in a simulation."""

    @property
    def attempts(self) -> int:
        """How many attempts at the next round missed their quorum."""
        return sum(line["event"] == "attempt" for line in self.tried)


def _tier_device(client: Client) -> Profile:
    return profile(client.tier.profile)


class CostAccounting:
    """Writes costs into the ledger and adds up the totals."""

    def __init__(self, journal: Journal, zoo: Zoo, device: Callable[[Client], Profile] = _tier_device) -> None:
        self.journal, self.zoo, self.device = journal, zoo, device

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
        known = {client.id: client for client in clients}
        devices: dict[str, Profile] = {}
        spent: dict[str, float] = {}
        for entry in entries:
            id, cost = entry.task.to, _wire_cost(entry)
            client = known.get(id)
            if id not in devices:
                devices[id] = self.device(client) if client else profile("server")
            paid = price(cost, devices[id])
            line = {**_line(progress.done, entry, cost, client.tier if client else None, paid, devices[id]), **facts}
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


def _line(done: int, entry: LedgerEntry, cost: Cost, tier: Tier | None, paid: Price, device: Profile) -> dict[str, Any]:
    memory = needed_memory(cost.memory, device)
    basis = {} if device.basis == "modelled" else {"basis": device.basis}
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
        "modelled": {"flops": cost.flops, "memory": memory, "seconds": paid.seconds, "joules": paid.joules, **basis},
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
