"""The run: rounds from the first to the last, each committed before the next begins."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from potluck.core import SERVER, Model, QuorumError, digest, pack, stream, unpack
from potluck.engines import Dispatcher, Engine, LedgerEntry, RoundSession
from potluck.learn import map_tensors, to_device
from potluck.ledger import RunFolder
from potluck.run.accounting import CostAccounting, Progress
from potluck.run.assemble import Setup
from potluck.run.background import BackgroundTask
from potluck.run.client_state import ROOM, ClientStateCache, Remembered
from potluck.run.interrupts import Interrupts
from potluck.run.privacy import count_uploads, guarantee
from potluck.run.scoring import score


class ProgressListener(Protocol):
    """Someone who looks on."""

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None: ...
    def warn(self, text: str) -> None: ...


class Loop:
    """One run in progress."""

    def __init__(
        self, setup: Setup, engine: Engine, folder: RunFolder, watch: ProgressListener, stops: Interrupts
    ) -> None:
        self.setup, self.engine, self.folder, self.watch, self.stops = setup, engine, folder, watch, stops
        self.context, self.experiment = setup.context, setup.experiment
        self.progress = Progress()
        self.scores: dict[str, Any] | None = None
        fresh: Any = self.context.method.init(self.context.zoo, stream(self.context.seed, "init"))
        self.state: Any = to_device(fresh, torch.device(self.context.hardware))
        # To reach a GPU takes longer than to read a file, and a GPU has more room to spare than most machines.
        self.recall = ClientStateCache(folder.memories.read, ROOM if self.context.hardware == "cpu" else 4 * ROOM)
        self.dispatcher = Dispatcher(
            engine,
            self.context.method,
            self.context.zoo,
            self.experiment.gate,
            self._remembered,
            setup.population.drops,
        )
        self.accounting = CostAccounting(folder.journal, self.context.zoo)
        self._saved = -1
        self._writing: BackgroundTask | None = None
        self._server_failed = False

    def restore(self, payload: bytes) -> None:
        """Goes back to where a checkpoint was written."""
        found = unpack(payload)
        self.progress = Progress(**found["progress"])
        self.state = dataclasses.replace(self.state, **to_device(found["state"], torch.device(self.context.hardware)))
        self.scores = found["scores"]
        self.dispatcher.strikes = dict(self.progress.strikes)
        self._saved = self.progress.done

    def run(self) -> None:
        """All rounds that are left."""
        if self._saved < 0 or self._owes_scores():
            self._score()
            with self.stops.held():
                self._save()
        while self.progress.done < self.experiment.rounds and not self.progress.stopped:
            self._round()
        with self.stops.held():
            if self._saved < self.progress.done:
                self._save()
            self._settle()

    def interrupted(self) -> None:
        """Saves the last committed round before leaving."""
        if 0 <= self._saved < self.progress.done:
            self._save()
        self._settle()

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
        cohort = self.setup.cohort(index)
        state, session = self._attempts(index)
        with self.stops.held():
            self.state = state
            self.progress.done = index + 1
            for client, count in session.strikes().items():
                self.dispatcher.strikes[client] = self.dispatcher.strikes.get(client, 0) + count
            self.progress.strikes = dict(self.dispatcher.strikes)
            self.recall.put(session.staged)
            self.accounting.round(self.progress, session, cohort, time.perf_counter() - started)
            self._count_uploads(session)
            self._missed(session)
            self._failed(session)
        due = self._due(index + 1)
        if due:
            self._score()
        with self.stops.held():
            if (index + 1) % self.experiment.run.checkpoint_every == 0:
                self._save()
        while self.engine.notes:
            self._warn(index + 1, self.engine.notes.pop(0))
        self.watch.round(index + 1, self.scores if due else None, self.progress.totals)

    def _attempts(self, index: int) -> tuple[Any, RoundSession]:
        """The round's new state, from the first attempt that enough clients answered."""
        run = self.experiment.run
        for attempt in range(run.retries + 1):
            session = self.dispatcher.open(index, attempt)
            state = self.context.method.round(self.state, self.setup.view(index, session))
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

    def _ready(self) -> tuple[Any, RoundSession | None]:
        """The state to score: what the method makes of it with the last cohort; scored, then discarded."""
        index = self.progress.done - 1
        if index < 0:
            return self.state, None
        session = self.dispatcher.open(index)
        shown = self.context.method.ready(self.state, self.setup.view(index, session))
        session.close()
        return shown, session

    def _owes_scores(self) -> bool:
        """Whether a run that is resumed was stopped after a round, but before its scores."""
        return self._due(self.progress.done) and (self.scores or {}).get("round") != self.progress.done

    def _due(self, done: int) -> bool:
        return done % self.experiment.score.every == 0 or done == self.experiment.rounds

    def _score(self) -> None:
        shown, session = self._ready()
        scoring = self.dispatcher.open(self.progress.done, everyone=True)
        scores, faults = score(self.setup, scoring, shown, self.progress.done)
        with self.stops.held():
            if session:
                self.accounting.tasks(self.progress, session.entries, self.setup.cohort(self.progress.done - 1))
                faults += [entry.reason for entry in session.entries if entry.reason and not entry.skipped]
            if faults:
                self._warn(self.progress.done, f"scoring after round {self.progress.done}: {faults[0]}")
            self.scores = scores
            self.folder.scores.append(scores)
            self.accounting.coverage(self.progress)
            self.progress.stopped = self._reached()

    def _reached(self) -> bool:
        if not self.experiment.run.stop_at or self.scores is None:
            return False
        (metric, wanted), *_ = self.experiment.run.stop_at.items()
        whole = self.scores["global"] or {}
        found = [whole[split][metric] for split in ("validation", "test") if whole]
        found.append((self.scores["clients"] or {}).get("mean"))
        known = [score for score in found if score is not None]
        return bool(known) and bool(known[0] >= wanted)

    def _save(self) -> None:
        progress = dataclasses.asdict(self.progress)
        value = {"progress": progress, "state": dict(vars(self.state)), "scores": self.scores}
        self._settle()
        self._saved = self.progress.done
        if self.context.hardware == "cpu":
            self.folder.commit(self._saved, pack(value), self.recall.unsaved())
        else:
            self.folder.prepare(self._saved, self.recall.unsaved())
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
            self._writing = BackgroundTask(partial(_written, self.folder, self._saved, value, ready))
        self.recall.saved(self._saved)

    def _settle(self) -> None:
        """Waits for the checkpoint that is being written beside the rounds."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()
            self.folder.prune()

    def _remembered(self, client: str) -> Remembered | None:
        return self.recall.get(client, self.progress.done)

    @property
    def promise(self) -> dict[str, Any] | None:
        """What is promised to clients by now, where their updates get noise."""
        mechanism = self.context.mechanism
        return None if mechanism is None else guarantee(self.experiment.privacy, mechanism, self.progress.uploads)

    def _count_uploads(self, session: RoundSession) -> None:
        if self.context.mechanism is not None:
            self.progress.uploads = count_uploads(self.progress.uploads, session.entries)
            self.folder.journal.append({"event": "privacy", "round": self.progress.done, **(self.promise or {})})

    def _missed(self, session: RoundSession) -> None:
        """Warns when a tier has sent nothing for three rounds."""
        done = self.progress.done
        for tier in self.context.zoo.tiers:
            gone = done - self.progress.seen.get(tier.name, 0)
            if gone == 3 and session.coverage < 1:
                covered = f"{session.coverage:.0%} of the model was trained"
                self._warn(done, f"round {done}: nothing from tier '{tier.name}' for 3 rounds; {covered}")

    def _failed(self, session: RoundSession) -> None:
        """Warns when work of the server's own is refused for the first time: no faulty device is to blame for that."""
        found = [entry for entry in session.entries if entry.task.to == SERVER and entry.verdict == "quarantined"]
        if found and not self._server_failed:
            self._server_failed = True
            task, done = found[0].task, self.progress.done
            what = f"'{task.verb}'" + (f" ({task.key})" if task.key else "")
            self._warn(done, f"round {done}: the server's own {what} is refused and left out: {found[0].reason}")

    def _warn(self, done: int, text: str) -> None:
        self._note(done, text)
        self.watch.warn(text)

    def _note(self, done: int, text: str) -> None:
        self.folder.journal.append({"event": "warning", "round": done, "text": text})


def _written(folder: RunFolder, done: int, value: Mapping[str, Any], ready: torch.cuda.Event) -> None:
    """Fetches a state from the GPU, beside what that does next, and writes it as a checkpoint."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_event(ready)
    with torch.cuda.stream(aside):
        fetched = map_tensors(value, lambda tensor: tensor.cpu())
    folder.checkpoints.write(done, pack(fetched))


def _commonest(entries: Sequence[LedgerEntry]) -> str:
    """Why clients were absent, most often."""
    reasons = Counter(entry.reason for entry in entries if entry.reason)
    return "".join(f"; {count} of them: {reason}" for reason, count in reasons.most_common(1))


def _tensors(value: Any, path: str) -> dict[str, Tensor]:
    """Every tensor in a state, by its path."""
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, Model):
        return _tensors(value.arrays, path)
    if isinstance(value, Mapping):
        found: dict[str, Tensor] = {}
        for name, item in value.items():
            found |= _tensors(item, f"{path}/{name}")
        return found
    return {}
