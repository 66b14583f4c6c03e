"""The main loop of a run: rounds from first to last, each committed before the next begins."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from potluck.core import SERVER, Client, DivergedError, Model, QuorumError, ResourceError, digest, pack, stream
from potluck.engines import Dispatcher, Engine, LedgerEntry, RoundSession, Usual
from potluck.learn import ServerClip, map_tensors, to_device
from potluck.ledger import RunFolder
from potluck.run.accounting import CostAccounting, Progress
from potluck.run.assemble import Setup
from potluck.run.background import BackgroundTask
from potluck.run.central_privacy import CentralPrivacy
from potluck.run.client_state import ROOM, ClientStateCache, Remembered
from potluck.run.interrupts import Interrupts
from potluck.run.privacy import Charges, count_uploads, guarantee
from potluck.run.restoring import read_checkpoint, restore_state
from potluck.run.scoring import score, why_failed
from potluck.run.watch import Watch, Watches


class Loop:
    """One run in progress."""

    def __init__(self, setup: Setup, engine: Engine, folder: RunFolder, watch: Watch, stops: Interrupts) -> None:
        self.setup, self.engine, self.folder, self.watch, self.stops = setup, engine, folder, watch, stops
        self.context, self.experiment = setup.context, setup.experiment
        self.progress = Progress()
        self.scores: dict[str, Any] | None = None
        fresh: Any = self.context.method.init(self.context.zoo, stream(self.context.seed, "init"))
        self.state: Any = to_device(fresh, torch.device(self.context.hardware))
        # Copying to a GPU takes longer than reading a file, and GPUs have enough memory.
        self.recall = ClientStateCache(folder.memories.read, ROOM if self.context.hardware == "cpu" else 4 * ROOM)
        self.dispatcher = Dispatcher(
            engine,
            self.context.method,
            self.context.zoo,
            self.experiment.gate,
            self._memory_of,
            setup.population.drops,
            samples=self.context.samples,
            heard=watch.task if isinstance(watch, Watches) and watch.hear_tasks else None,
            secure=self.context.secure,
            session_label=setup.session_label or self.experiment.name,
        )
        self.charges = Charges(folder.journal)
        self.central: CentralPrivacy | None = None
        if isinstance(self.context.mechanism, ServerClip):
            self.central = CentralPrivacy(setup, folder.journal)
            self.dispatcher.private, self.dispatcher.charge = self.central, self.central.check
        elif self.context.mechanism is not None:
            self.dispatcher.charge = self.charges.add
        self.accounting = CostAccounting(folder.journal, self.context.zoo, setup.population.device)
        self._saved = -1
        self._writing: BackgroundTask | None = None
        self._server_failed = False
        self._overspent = False
        self._facts: dict[str, Any] = {}

    def restore(self, round: int, payload: bytes) -> None:
        """Restores the state of the checkpoint of this round."""
        found = read_checkpoint(self.folder.path, round, payload)
        self.progress, self.scores = found.progress, found.scores
        self.state = restore_state(self.state, to_device(found.state, torch.device(self.context.hardware)))
        self.dispatcher.strikes = dict(self.progress.strikes)
        self.dispatcher.usual = Usual(dict(self.progress.usual))
        self._saved = self.progress.done
        self.setup.population.restore(self.progress.clients)
        for line in self.progress.tried:
            self.folder.journal.append(line)
        if self.central is not None:
            self.progress.central = self.central.restore(self.progress.central)
        elif self.context.mechanism is not None:
            self.charges.restore(self.progress.charges)
            self.progress.uploads = dict(Counter(self.progress.uploads) + self.charges.open)
            self.progress.charges = self.charges.settle()

    def run(self) -> None:
        """Runs all remaining rounds."""
        unscored = self._saved < 0 or self._owes_scores()
        if unscored or self.progress.done < self.experiment.rounds:
            self.setup.population.begin(self.progress.done, self.experiment.run.quorum)
        if unscored:
            self._score()
            with self.stops.defer():
                self._save()
        while self.progress.done < self.experiment.rounds and not self.progress.stopped:
            self._round()
        with self.stops.defer():
            if self._saved < self.progress.done:
                self._save()
            self._wait_for_checkpoint()

    def save_before_exit(self) -> None:
        """Saves the last committed round before an exception ends the run."""
        if 0 <= self._saved < self.progress.done:
            self._save()
        self._wait_for_checkpoint()

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
        state, session, seconds = self._try_round(index)
        with self.stops.defer():
            self.state = state
            self.progress.done = index + 1
            for client, count in session.strikes().items():
                self.dispatcher.strikes[client] = self.dispatcher.strikes.get(client, 0) + count
            self.progress.strikes = dict(self.dispatcher.strikes)
            self._note_usual(session)
            self.recall.put(session.staged)
            asked = self.setup.asked(index, session)
            self.accounting.round(self.progress, session, asked, seconds)
            self._count_uploads(session, committed=True)
            self._note_privacy()
            self._note_secure(session, asked)
            self._warn_of_silent_tier(session)
            self._warn_of_server_failure(session)
            self._note_clients(session)
        due = self._is_score_due(index + 1)
        if due:
            self._score()
        with self.stops.defer():
            if (index + 1) % self.experiment.run.checkpoint_every == 0:
                self._save()
        while self.engine.notes:
            self._warn(index + 1, self.engine.notes.pop(0))
        self.watch.round(index + 1, self.scores if due else None, self.progress.totals)

    def _try_round(self, index: int) -> tuple[Any, RoundSession, float]:
        """The new state of a round, from the first attempt that reaches the quorum, with its session and seconds.

        A resumed run goes on with the next attempt; if all were made, it may make as many again.
        """
        run, made = self.experiment.run, self.progress.attempts
        first = made - made % (run.retries + 1)
        for attempt in range(made, first + run.retries + 1):
            self.setup.population.begin(index, run.quorum)
            started = time.perf_counter()
            session = self.dispatcher.open(index, attempt)
            view = self.setup.view(index, session)
            session.quorum = min(run.quorum, len(view.cohort))
            state = self.context.method.round(self.state, view)
            session.close()
            asked = {entry.task.to for entry in session.entries if not entry.skipped} - {SERVER}
            came = {entry.task.to for entry in session.entries if entry.verdict == "accepted"} - {SERVER}
            if session.secure:
                came &= session.opened
            if len(came) >= min(run.quorum, len(asked)):
                if not _is_finite(state):
                    self._refuse_diverged(session, time.perf_counter() - started)
                if not asked:
                    stays = "the model stays as it is" if self.central is None else "the model gets noise alone"
                    self._note(index + 1, f"round {index + 1}: nobody could take part; {stays}")
                return state, session, time.perf_counter() - started
            text = f"round {index + 1}: {len(came)} of {len(asked)} clients answered; run.quorum is {run.quorum}"
            why = _most_common_reason(session.entries)
            tried = f"{text} (try {attempt - first + 1} of {run.retries + 1}){why}"
            self._end_failed_attempt(session, time.perf_counter() - started, tried)
        kept = f"The model is as it was after round {index}"
        if _most_are_not_finite(session.entries):
            raise DivergedError(f"{text}{why}. The run diverged: lower local.lr, or set local.clip. {kept}.")
        raise QuorumError(f"{text}{why}. {kept}; resume when clients are back.")

    def _refuse_diverged(self, session: RoundSession, seconds: float) -> NoReturn:
        """Ends a run in which the server's model is not finite, though what the clients sent is."""
        index = self.progress.done
        text = f"round {index + 1}: the server's model is not finite, though all that clients sent is"
        self._end_failed_attempt(session, seconds, text)
        remedy = "lower local.lr or the learning rate of the method's server, or set local.clip"
        raise DivergedError(f"{text}. The run diverged: {remedy}. The model is as it was after round {index}.")

    def _end_failed_attempt(self, session: RoundSession, seconds: float, text: str) -> None:
        """Books what an attempt that missed its quorum has cost, and saves it, so that a kill cannot undo it."""
        with self.stops.defer():
            asked = self.setup.asked(self.progress.done, session)
            self.accounting.failed_attempt(self.progress, session, asked, seconds)
            self.progress.tried.append(self._warn(self.progress.done + 1, text))
            self._count_uploads(session, committed=False)
            self._save()

    def _state_to_score(self) -> tuple[Any, RoundSession | None]:
        """The state to score, made by the method's `ready` with the last cohort, and the session of its tasks."""
        index = self.progress.done - 1
        if index < 0:
            return self.state, None
        session = self.dispatcher.open(index, needed=True)
        shown = self.context.method.ready(self.state, self.setup.view(index, session))
        session.close()
        return shown, session

    def _owes_scores(self) -> bool:
        """Whether a resumed run was stopped after a round but before its scores were computed."""
        return self._is_score_due(self.progress.done) and (self.scores or {}).get("round") != self.progress.done

    def _is_score_due(self, done: int) -> bool:
        return done % self.experiment.score.every == 0 or done == self.experiment.rounds

    def _score(self) -> None:
        shown, session = self._state_to_score()
        scoring = self.dispatcher.open(self.progress.done, everyone=True)
        scores, faults = score(self.setup, scoring, shown, self.progress.done)
        if self.progress.done == self.experiment.rounds and (why := why_failed(scoring)):
            raise ResourceError(
                f"the scores after round {self.progress.done}, the last one, cannot be computed: {why}. "
                "All rounds are saved: potluck resume computes them again."
            )
        with self.stops.defer():
            if session:
                self.accounting.tasks(self.progress, session.entries, self.setup.asked(self.progress.done - 1, session))
                faults += [entry.reason for entry in session.entries if entry.reason and not entry.skipped]
            if faults:
                self._warn(self.progress.done, f"scoring after round {self.progress.done}: {faults[0]}")
            self.scores = scores
            self.folder.scores.append(scores)
            self.accounting.coverage(self.progress)
            self.progress.stopped = self._has_reached_target()

    def _has_reached_target(self) -> bool:
        if not self.experiment.run.stop_at or self.scores is None:
            return False
        (metric, wanted), *_ = self.experiment.run.stop_at.items()
        whole = self.scores["global"] or {}
        found = [whole[split][metric] for split in ("validation", "test") if whole]
        found.append((self.scores["clients"] or {}).get("mean"))
        known = [score for score in found if score is not None]
        return bool(known) and bool(known[0] >= wanted)

    def _note_clients(self, session: RoundSession) -> None:
        """Tells the population who answered, and records what it says of them."""
        asked = [entry for entry in session.entries if entry.task.to != SERVER and not entry.skipped]
        answered = {entry.task.to: False for entry in asked}
        answered |= {entry.task.to: True for entry in asked if entry.verdict != "absent"}
        if session.secure:  # the first phases are no answer: who is lost after them has missed the round
            answered |= {entry.task.to: False for entry in asked if entry.verdict == "absent"}
        for event in self.setup.population.end(self.progress.done - 1, answered):
            self.folder.journal.append(event)

    def _note_facts(self) -> None:
        """Writes into the manifest what changed of the clients: nodes may come at any time."""
        facts = self.setup.population.facts()
        if facts != self._facts:
            self._facts, tiers = facts, self.folder.manifest()["tiers"]
            counted = [tier | {"clients": facts["tiers"].get(tier["name"], 0)} for tier in tiers]
            self.folder.update_manifest(**facts | {"tiers": counted})

    def _save(self) -> None:
        self.progress.clients = self.setup.population.state()
        self._note_facts()
        progress = dataclasses.asdict(self.progress)
        value = {"progress": progress, "state": dict(vars(self.state)), "scores": self.scores}
        self._wait_for_checkpoint()
        self._saved = self.progress.done
        if self.context.hardware == "cpu":
            self.folder.commit(self._saved, pack(value), self.recall.pack_unsaved())
        else:
            needs = self.folder.prepare(self._saved, self.recall.pack_unsaved())
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
            self._writing = BackgroundTask(partial(_write_checkpoint, self.folder, self._saved, value, needs, ready))
        self.recall.mark_saved(self._saved)

    def _wait_for_checkpoint(self) -> None:
        """Waits for the checkpoint that is written in the background."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()
            self.folder.prune()

    def _memory_of(self, client: str) -> Remembered | None:
        return self.recall.get(client, self.progress.done)

    @property
    def secured(self) -> dict[str, Any] | None:
        """How much the secure sums opened so far, of how many holders at least, and how often what some tiers hold
        stayed closed; None without [secure]."""
        wanted, found = self.experiment.secure, self.progress
        told = {"min_holders": wanted.min_holders, **found.secured, "closed": dict(found.closed)}
        return told if wanted.enabled else None

    @property
    def promise(self) -> dict[str, Any] | None:
        """The current privacy guarantee; None without [privacy]."""
        if self.central is not None:
            return self.central.promise(self.progress.done)
        mechanism, uploads = self.context.mechanism, Counter(self.progress.uploads) + self.charges.open
        return None if mechanism is None else guarantee(self.experiment.privacy, mechanism, uploads)

    def _count_uploads(self, session: RoundSession, committed: bool) -> None:
        """Counts what clients uploaded in this session, also if it is an attempt that failed."""
        if self.central is not None:
            self.progress.central = self.central.settle(committed)
        elif self.context.mechanism is not None:
            self.progress.uploads = count_uploads(self.progress.uploads, session.entries)
            self.progress.charges = self.charges.settle()

    def _note_privacy(self) -> None:
        """Writes the privacy guarantee into the ledger; warns once if it is weaker than was asked for."""
        promise, done, wanted = self.promise, self.progress.done, self.experiment.privacy
        if promise is None:
            return
        self.folder.journal.append({"event": "privacy", "round": done, **promise})
        aim = wanted.epsilon if wanted.epsilon is not None and wanted.per == "run" else math.inf
        if promise["epsilon"] > aim * (1 + 1e-6) and not self._overspent:
            self._overspent = True
            why = "uploads in attempts that failed, or in rounds that were done again, count too"
            self._warn(done, f"round {done}: epsilon is {promise['epsilon']:.4g}; privacy.epsilon is {aim:g} ({why})")

    def _note_secure(self, session: RoundSession, asked: Sequence[Client]) -> None:
        """Records what became of the round's secure sums."""
        done, tiers = self.progress.done, {client.id: client.tier.name for client in asked if session.secure}
        for told in session.secure:
            closed = []
            for block in told["closed"]:
                held = sorted({tiers[client] for client in block["holders"] if client in tiers})
                closed.append({**block, "holders": len(block["holders"]), "tiers": held})
                name = " and ".join(held)
                self.progress.closed[name] = self.progress.closed.get(name, 0) + 1
            self.folder.journal.append({"event": "secure", "round": done, **told, "closed": closed})
            had, more = self.progress.secured, {"entries": told["entries"], "opened": told["opened_entries"]}
            self.progress.secured = {name: had.get(name, 0) + count for name, count in more.items()}
            for client, why in told["faulty"].items():
                self._warn(done, f"round {done}: in a secure sum, client {client[:8]} is at fault: {why}")
            if told["refused"]:
                self._warn(
                    done, f"round {done}: {told['refused']} blocks of a secure sum keep their value: {told['why']}"
                )

    def _note_usual(self, session: RoundSession) -> None:
        """Keeps what the gate accepted in this round, and records the limits that it used."""
        usual = self.dispatcher.usual
        if limits := self.experiment.gate.limits(usual):
            self.folder.journal.append({"event": "gate", "round": self.progress.done, "limits": limits})
        usual.add(session.accepted_numbers)
        self.progress.usual = dict(usual.values)

    def _warn_of_silent_tier(self, session: RoundSession) -> None:
        """Warns if a tier has sent nothing for three rounds."""
        done = self.progress.done
        for tier in self.context.zoo.tiers:
            gone = done - self.progress.seen.get(tier.name, 0)
            if gone == 3 and session.coverage < 1:
                covered = f"{session.coverage:.0%} of the model was trained"
                self._warn(done, f"round {done}: nothing from tier '{tier.name}' for 3 rounds; {covered}")

    def _warn_of_server_failure(self, session: RoundSession) -> None:
        """Warns when one of the server's own tasks fails or is refused for the first time: no client is the cause."""
        own = (entry for entry in session.entries if entry.task.to == SERVER and not entry.skipped)
        found = [entry for entry in own if entry.verdict != "accepted"]
        if found and not self._server_failed:
            self._server_failed = True
            task, done = found[0].task, self.progress.done
            what = f"'{task.verb}'" + (f" ({task.key})" if task.key else "")
            how = "is refused and left out" if found[0].verdict == "quarantined" else "fails and is left out"
            self._warn(done, f"round {done}: the server's own {what} {how}: {found[0].reason}")

    def _warn(self, done: int, text: str) -> dict[str, Any]:
        self.watch.warn(text)
        return self._note(done, text)

    def _note(self, done: int, text: str) -> dict[str, Any]:
        """Writes a warning into the ledger, and returns its line."""
        line = {"event": "warning", "round": done, "text": text}
        self.folder.journal.append(line)
        return line


def _write_checkpoint(
    folder: RunFolder, done: int, value: Mapping[str, Any], needs: Mapping[str, int], ready: torch.cuda.Event
) -> None:
    """Copies a state from the GPU, while the GPU continues, and writes it as a checkpoint."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_event(ready)
    with torch.cuda.stream(aside):
        fetched = map_tensors(value, lambda tensor: tensor.cpu())
    folder.checkpoints.write(done, pack(fetched), needs)


def _most_common_reason(entries: Sequence[LedgerEntry]) -> str:
    """The most common reason why clients were absent."""
    reasons = Counter(entry.reason for entry in entries if entry.reason)
    return "".join(f"; {count} of them: {reason}" for reason, count in reasons.most_common(1))


def _most_are_not_finite(entries: Sequence[LedgerEntry]) -> bool:
    """Whether most of the replies that are missing were refused because they are not finite."""
    reasons = [entry.reason for entry in entries if entry.reason and not entry.skipped]
    return 2 * sum("not finite" in reason for reason in reasons) > len(reasons)


def _is_finite(state: Any) -> bool:
    """Whether every number of a state is finite. It waits for each kind of hardware once, not for each tensor."""
    floats: dict[torch.device, list[Tensor]] = {}
    for tensor in _tensors(vars(state), "").values():
        if tensor.is_floating_point() and tensor.numel():
            floats.setdefault(tensor.device, []).append(tensor)
    # Norms take one operation for all tensors. One that is not finite can also be an overflow: then see every entry.
    return all(
        bool(torch.stack(torch._foreach_norm(found)).isfinite().all())
        or all(bool(tensor.isfinite().all()) for tensor in found)
        for found in floats.values()
    )


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
