"""The run: rounds from the first to the last, each committed before the next begins."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from potluck.core import SERVER, Client, Model, QuorumError, Round, digest, pack, stream, unpack
from potluck.engines import Desk, Engine, Entry, Session
from potluck.fleet import price, profile
from potluck.ledger import RunFolder
from potluck.run.assemble import Setup
from potluck.run.interrupts import Interrupts
from potluck.run.scoring import scored


class Watch(Protocol):
    """Someone who looks on."""

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass
class Progress:
    """What a checkpoint holds besides the method's state."""

    done: int = 0
    strikes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """The round in which each tier last took part."""
    totals: dict[str, float] = field(default_factory=dict)
    stopped: bool = False


class Loop:
    """One run in progress."""

    def __init__(self, setup: Setup, engine: Engine, folder: RunFolder, watch: Watch, stops: Interrupts) -> None:
        self.setup, self.engine, self.folder, self.watch, self.stops = setup, engine, folder, watch, stops
        self.world, self.experiment = setup.world, setup.experiment
        self.progress = Progress()
        self.scores: dict[str, Any] | None = None
        self.state: Any = self.world.method.init(self.world.zoo, stream(self.world.seed, "init"))
        self.desk = Desk(
            engine, self.world.method, self.world.zoo, self.experiment.gate, self._recall, setup.crew.drops
        )
        self._saved = -1
        self._memories: dict[str, bytes] = {}

    def restore(self, payload: bytes) -> None:
        """Goes back to where a checkpoint was written."""
        found = unpack(payload)
        self.progress = Progress(**found["progress"])
        self.state = dataclasses.replace(self.state, **found["state"])
        self.scores = found["scores"]
        self.desk.strikes = dict(self.progress.strikes)
        self._saved = self.progress.done

    def run(self) -> None:
        """All rounds that are left."""
        if self._saved < 0 or self._owes_scores():
            self._score(self._shown())
            with self.stops.held():
                self._save()
        while self.progress.done < self.experiment.rounds and not self.progress.stopped:
            self._round()
        with self.stops.held():
            if self._saved < self.progress.done:
                self._save()

    def interrupted(self) -> None:
        """Saves the last committed round before leaving."""
        if 0 <= self._saved < self.progress.done:
            self._save()

    def weights(self) -> str:
        """SHA-256 over the server's tensors and the clients' memories."""
        total = hashlib.sha256(digest(_tensors(vars(self.state), "")).encode())
        for client in sorted(self.folder.memories.clients()):
            found = self.folder.memories.read(client)
            if found:
                total.update(client.encode() + hashlib.sha256(found[1]).digest())
        return total.hexdigest()

    def _round(self) -> None:
        index = self.progress.done
        started = time.perf_counter()
        cohort = self._cohort(index)
        state, session = self._attempts(index, cohort)
        entries = session.entries
        due = self._due(index + 1)
        shown = self._ready(state, index, cohort) if due else state
        with self.stops.held():
            self.state = state
            self.progress.done = index + 1
            for client, count in session.strikes().items():
                self.desk.strikes[client] = self.desk.strikes.get(client, 0) + count
            self.progress.strikes = dict(self.desk.strikes)
            self._memories |= {client: pack(memory) for client, memory in session.staged.items()}
            self._log(index + 1, entries, cohort, session, time.perf_counter() - started)
        if due:
            self._score(shown)
        with self.stops.held():
            if (index + 1) % self.experiment.run.checkpoint_every == 0:
                self._save()
        self.watch.round(index + 1, self.scores if due else None, self.progress.totals)

    def _attempts(self, index: int, cohort: Sequence[Client]) -> tuple[Any, Session]:
        """The round's new state, from the first attempt that enough clients answered."""
        run = self.experiment.run
        for attempt in range(run.retries + 1):
            session = self.desk.open(index, attempt)
            state = self.world.method.round(self.state, self._view(index, cohort, session))
            session.close()
            asked = {entry.task.to for entry in session.entries if not entry.skipped} - {SERVER}
            came = {entry.task.to for entry in session.entries if entry.verdict == "accepted"} - {SERVER}
            if len(came) >= min(run.quorum, len(asked)):
                if not asked:
                    self._note(index + 1, f"round {index + 1}: nobody could take part; the model stays as it is")
                return state, session
            text = f"round {index + 1}: {len(came)} of {len(asked)} clients answered; run.quorum is {run.quorum}"
            why = _commonest(session.entries)
            self._warn(index + 1, f"{text} (try {attempt + 1} of {run.retries + 1}){why}")
        raise QuorumError(f"{text}{why}. The model is as it was after round {index}; resume when clients are back.")

    def _view(self, index: int, cohort: Sequence[Client], session: Session) -> Round:
        def recruit(wanted: Callable[[Client], bool]) -> Sequence[Client]:
            return self.setup.crew.cohort(index, self.experiment.cohort, wanted)

        world = self.world
        return Round(index, cohort, self.setup.crew.clients, world.zoo, world.seed, session.send, session.fold, recruit)

    def _ready(self, state: Any, index: int, cohort: Sequence[Client]) -> Any:
        """The state to score: what the method makes of it with its own cohort, scored and then discarded."""
        session = self.desk.open(index)
        shown = self.world.method.ready(state, self._view(index, cohort, session))
        session.close()
        return shown

    def _shown(self) -> Any:
        """What to score now, between rounds."""
        index = self.progress.done - 1
        return self._ready(self.state, index, self._cohort(index)) if index >= 0 else self.state

    def _owes_scores(self) -> bool:
        """Whether a run that is resumed was stopped after a round, but before its scores."""
        return self._due(self.progress.done) and (self.scores or {}).get("round") != self.progress.done

    def _cohort(self, index: int) -> Sequence[Client]:
        return self.setup.crew.cohort(index, self.experiment.cohort)

    def _due(self, done: int) -> bool:
        return done % self.experiment.score.every == 0 or done == self.experiment.rounds

    def _score(self, shown: Any) -> None:
        self.scores = scored(self.setup, self.engine, shown, self.progress.done, self._recall)
        self.folder.scores.append(self.scores)
        self.progress.stopped = self._reached()

    def _reached(self) -> bool:
        wanted = self.experiment.run.stop_at.get("accuracy")
        if wanted is None or self.scores is None:
            return False
        whole = self.scores["global"] or {}
        found = [whole[split]["accuracy"] for split in ("validation", "test") if whole]
        found.append((self.scores["clients"] or {}).get("mean"))
        known = [accuracy for accuracy in found if accuracy is not None]
        return bool(known) and bool(known[0] >= wanted)

    def _save(self) -> None:
        progress = dataclasses.asdict(self.progress)
        payload = pack({"progress": progress, "state": dict(vars(self.state)), "scores": self.scores})
        self.folder.commit(self.progress.done, payload, self._memories)
        self._memories = {}
        self._saved = self.progress.done

    def _recall(self, client: str) -> tuple[int, Mapping[str, Any]] | None:
        """A client's last memory: of a round not yet on disk, or of the folder."""
        if client in self._memories:
            return self.progress.done, unpack(self._memories[client])
        found = self.folder.memories.read(client)
        return (found[0], unpack(found[1])) if found else None

    def _log(
        self, done: int, entries: Sequence[Entry], cohort: Sequence[Client], session: Session, seconds: float
    ) -> None:
        tiers = {client.id: client.tier for client in cohort}
        slowest, losses = 0.0, []
        totals = self.progress.totals
        for entry in entries:
            tier = tiers.get(entry.task.to)
            cost = entry.cost
            paid = price(cost, profile(tier.profile if tier else "server"))
            slowest = max(slowest, paid.seconds)
            loss = entry.metrics.get("loss")
            if isinstance(loss, float):
                losses.append(loss)
            _add(totals, bytes_down=cost.bytes_down, bytes_up=cost.bytes_up, flops=cost.flops, joules=paid.joules)
            self.folder.journal.append(
                {
                    "event": "task",
                    "round": done,
                    "client": entry.task.to,
                    "tier": tier.name if tier else entry.task.to,
                    "verb": entry.task.verb,
                    "key": entry.task.key,
                    "outcome": entry.verdict,
                    "reason": entry.reason,
                    "measured": {"bytes_down": cost.bytes_down, "bytes_up": cost.bytes_up, "seconds": cost.seconds},
                    "modelled": {
                        "flops": cost.flops, "memory": cost.memory, "seconds": paid.seconds, "joules": paid.joules
                    },
                    "loss": loss,
                    "samples": entry.weight,
                }
            )  # fmt: skip
            if entry.verdict == "accepted" and tier:
                self.progress.seen[tier.name] = done
        _add(totals, device_seconds=slowest, seconds=seconds)
        self.folder.journal.append(
            {
                "event": "round",
                "round": done,
                "seconds": seconds,
                "sent": len(entries),
                "accepted": session.accepted,
                "coverage": session.coverage,
                "loss": sum(losses) / len(losses) if losses else None,
                "device_seconds": slowest,
            }
        )
        self._missed(done, session)

    def _missed(self, done: int, session: Session) -> None:
        """Warns when a tier has sent nothing for three rounds."""
        for tier in self.world.zoo.tiers:
            gone = done - self.progress.seen.get(tier.name, 0)
            if gone == 3 and session.coverage < 1:
                covered = f"{session.coverage:.0%} of the model was trained"
                self._warn(done, f"round {done}: nothing from tier '{tier.name}' for 3 rounds; {covered}")

    def _warn(self, done: int, text: str) -> None:
        self._note(done, text)
        self.watch.warn(text)

    def _note(self, done: int, text: str) -> None:
        self.folder.journal.append({"event": "warning", "round": done, "text": text})


def _commonest(entries: Sequence[Entry]) -> str:
    """Why clients were absent, most often."""
    reasons = Counter(entry.reason for entry in entries if entry.reason)
    return "".join(f"; {count} of them: {reason}" for reason, count in reasons.most_common(1))


def _add(totals: dict[str, float], **more: float) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value


def _tensors(value: Any, path: str) -> dict[str, Tensor]:
    """Every tensor in a state, by its path."""
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, Model):
        return _tensors(value.arrays or {}, path)
    if isinstance(value, Mapping):
        found: dict[str, Tensor] = {}
        for name, item in value.items():
            found |= _tensors(item, f"{path}/{name}")
        return found
    return {}
