"""A node: answers the server's messages with its own data, its own memory and its own copy of the code."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from potluck.core import (
    EMPTY,
    SERVER,
    Limits,
    MessageError,
    Model,
    Newborn,
    Task,
    UserError,
    display_name,
    one_line,
    text_of,
)
from potluck.engines import TaskEnvelope, TaskResult, Worker
from potluck.engines.remote import Parts
from potluck.engines.remote.messages import ModelCache, bare_task, pack_plain, pack_result, read_head
from potluck.federation.audit import AuditLog, contents
from potluck.federation.charter import Charter, CharterError, make_setup, network_checksums, read_charter, versions
from potluck.federation.measure import DeviceBudget, Measured, largest_that_fits, measure, usual_memory
from potluck.federation.node_data import read_node_data
from potluck.federation.node_memory import NodeMemory
from potluck.federation.roster import Roster
from potluck.ledger import LedgerError, write_atomically
from potluck.run.assemble import Setup
from potluck.run.world import own_code

ROOM = 1 << 30
"""Bytes of models that a node keeps, so that they need not be sent again."""


class NodeListener(Protocol):
    """Hears what a node does."""

    def say(self, text: str) -> None: ...
    def measured(self, found: Mapping[str, Measured], tier: str) -> None: ...
    def begins(self, task: Task) -> None: ...
    def ends(self, task: Task, result: TaskResult, sent: int) -> None: ...


@dataclass(frozen=True)
class NodeOptions:
    """What whoever runs a node decides."""

    data: Path
    public: Path | None = None
    """Its copy of the public rows."""
    tier: str = ""
    """The tier to take; empty: the largest that fits the budget."""
    budget: DeviceBudget = field(default_factory=lambda: DeviceBudget(usual_memory()))
    hardware: str = "cpu"
    threads: int = 0
    """Threads that compute; 0: as many as torch chooses. With one, results are the same on every machine of a kind."""


@dataclass(eq=False)
class Agreement:
    """A charter that the node agreed to, and all that it needs to work under it."""

    charter: Charter
    setup: Setup
    worker: Worker
    tier: str
    measured: Mapping[str, Measured]


class Node:
    """One side of a conversation: `respond` takes a message of the server and returns the answer.

    What it must remember is in its folder: the charter that it agreed to, its memory, and the audit log.
    """

    def __init__(
        self,
        id: str,
        folder: Path,
        options: NodeOptions,
        watch: NodeListener,
        consent: Callable[[Charter, str], bool] = lambda charter, tier: True,
    ) -> None:
        self.id, self.folder, self.options, self.watch = id, folder, options, watch
        self.consent = consent
        """Asks whoever runs the node before it takes part; called once for each charter and tier."""
        self.ended = ""
        """How the federation ended, once the server said so."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.memory = NodeMemory(folder / "memory")
        self.audit = AuditLog(folder / "audit.jsonl")
        self._models = ModelCache(ROOM)
        self._agreement: Agreement | None = None
        self._limits = Limits()
        if options.threads:
            torch.set_num_threads(options.threads)

    def respond(self, parts: Parts) -> Parts:
        """The answer to a message. Whatever goes wrong becomes an answer; only Ctrl-C goes through."""
        try:
            told = read_head(parts, self._limits)
            match told["kind"]:
                case "charter":
                    return self._log("agreement", self._consider(told))
                case "task":
                    return self._work(told, parts)
                case "tier":
                    return self._log("agreement", self._change_tier(told))
                case "end":
                    self.ended = one_line(str(told.get("how") or "the federation ended"))
                    return self._log("goodbye", pack_plain("goodbye"))
                case odd:
                    raise MessageError(f"a message of the kind '{odd[:40]}'")
        except MessageError as fault:
            self.watch.say(f"a message of the server makes no sense: {one_line(str(fault))}")
            return self._refuse("refused", one_line(str(fault)))
        except LedgerError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refuse("declined", self._public(str(fault)), later=True)
        except UserError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refuse("declined", self._public(str(fault)))
        except OSError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refuse("declined", f"{fault.strerror or type(fault).__name__} at the node", later=True)
        except Exception as fault:
            self.watch.say(one_line(f"{type(fault).__name__}: {text_of(fault)}"))
            return self._refuse("declined", f"{type(fault).__name__} at the node")

    def agree(self, charter: Charter, tier: str = "") -> Agreement:
        """Reads the data, builds the networks, measures them, and chooses a tier; asks nobody."""
        roster = Roster(0)
        experiment = replace(charter.experiment, fleet=type(charter.experiment.fleet)())
        hardware = replace(experiment.run, hardware=self.options.hardware)  # type: ignore[arg-type]
        experiment = replace(experiment, run=hardware)
        datasets = read_node_data(self.id, self.options.data, self.options.public, charter)
        setup = make_setup(experiment, charter.method, datasets, roster)
        self._compare(charter, setup)
        context = replace(setup.context, own_noise=True)
        setup = replace(setup, context=context)
        tiers = list(context.zoo.tiers)
        measured = measure(context, experiment, tiers, self.id)
        wanted = tier or self.options.tier or largest_that_fits(measured, self.options.budget)
        if wanted not in measured:
            raise CharterError(f"--tier {wanted}: the tiers of this federation are {', '.join(measured)}.")
        if math.isinf(measured[wanted].seconds):
            needs = f"{measured[wanted].memory / 1e9:,.1f} GB"
            raise CharterError(f"--tier {wanted}: its network needs {needs}, more than this machine has.")
        return Agreement(charter, setup, Worker(context), wanted, measured)

    def _compare(self, charter: Charter, setup: Setup) -> None:
        """Compares what the charter says of networks and code with what is here."""
        if (found := own_code(setup)) != charter.plain["own_code"]:
            raise CharterError(
                f"your own code differs: the module of {display_name(setup.context.method)} has the checksum {found} "
                f"here and {str(charter.plain['own_code'])[:12]} at the server. Install the same."
            )
        theirs = charter.plain["networks"]
        for name, checksum in network_checksums(setup.context.zoo).items():
            if theirs.get(name) != checksum:
                who = "the server's network" if name == SERVER else f"the network of tier '{name}'"
                raise CharterError(f"{who} is another here ({checksum}) than at the server ({theirs.get(name)}).")

    def _consider(self, told: Mapping[str, Any]) -> Parts:
        """The answer to a charter: whether the node agrees, of which tier it is, and what it has."""
        charter = read_charter(told.get("charter"))
        known = self._known(charter.hash)
        if self._agreement is None or self._agreement.charter.hash != charter.hash:
            found = self.agree(charter, str(known.get("tier", "")))
            self.watch.measured(found.measured, found.tier)
            if not known and not self.consent(charter, found.tier):
                raise CharterError("whoever runs the node said no.")
            self._keep(found)
        return self._agreed()

    def _agreed(self) -> Parts:
        now = self._agreement
        assert now is not None
        data = now.setup.context.datasets.shard(self.id)
        return pack_plain(
            "agreed",
            charter=now.charter.hash,
            tier=now.tier,
            samples=len(data.train),
            scored=[len(data.validation), len(data.test)],
            measured={name: {"seconds": one.seconds, "memory": one.memory} for name, one in now.measured.items()},
            versions=versions(),
        )

    def _change_tier(self, told: Mapping[str, Any]) -> Parts:
        """The answer to an offer of another tier: a smaller one is taken."""
        now = self._agreement
        if now is None:
            raise CharterError("no charter was agreed to yet.")
        names, wanted = list(now.measured), told.get("tier")
        if wanted not in names or names.index(str(wanted)) > names.index(now.tier):
            raise CharterError(f"'{str(wanted)[:40]}' is no smaller tier.")
        self.watch.say(f"the server offers tier '{wanted}' instead of '{now.tier}', because rounds were missed: taken")
        self._keep(replace(now, tier=str(wanted)))
        return self._agreed()

    def _work(self, told: Mapping[str, Any], parts: Parts) -> Parts:
        """The answer to a task."""
        now = self._find(told.get("charter"))
        self._limits = now.charter.limits
        task, marks = told.get("task"), told.get("models")
        if not isinstance(task, Task) or not isinstance(marks, Mapping) or task.to != self.id:
            raise MessageError("a task that is none, or for another node")
        self._models.add(parts[1:])
        if missing := self._models.find([str(mark) for mark in marks.values()]):
            self._models.prune()
            return self._log("models are missing", pack_plain("missing", marks=missing))
        models: dict[str, Model] = {key: self._models.model(str(mark), self._limits) for key, mark in marks.items()}
        for key, model in models.items():  # a network without numbers is small on its way, and may be any size here
            if (
                isinstance(model, Newborn)
                and now.setup.context.zoo.cost(model.spec, 1).parameter_bytes > self._limits.bytes
            ):
                raise MessageError(f"model '{key[:40]}' is larger than the charter allows")
        task = replace(task, models=models)
        return self._run(now, task, told)

    def _run(self, now: Agreement, task: Task, told: Mapping[str, Any]) -> Parts:
        receipt, attempt, oldest = told.get("memory") or {}, told.get("attempt"), told.get("oldest")
        if not isinstance(receipt, Mapping) or type(attempt) is not int or type(oldest) is not int:
            raise MessageError("a task without its place in the run")
        memory = self.memory.load(receipt, now.tier) if receipt else None
        fresh = bool(receipt) and memory is None
        if fresh:
            self.watch.say("the memory that the server names is not here: starting fresh")
        self.watch.begins(task)
        result = now.worker.run(TaskEnvelope(task, memory or EMPTY, attempt))
        kept: Mapping[str, Any] | None = None
        try:
            if result.memory is not None and result.reply is not None:
                kept = self.memory.save(task.round, result.memory, now.tier)
            self.memory.prune(oldest)
        except (LedgerError, OSError) as fault:
            self.watch.say(one_line(str(fault)))
            result = TaskResult(bare_task(task), fault="its memory cannot be saved: the disk may be full")
            kept = None
        updates = now.charter.experiment.nodes.updates
        answer = pack_result(result, task, kept, fresh, self._models.prune(), now.setup.context.zoo, updates)
        told_of = contents(result.reply) if result.reply is not None else {"reason": result.fault}
        try:
            self.audit.add("result", answer, round=task.round + 1, verb=task.verb, key=task.key, **told_of)
        except OSError as fault:
            self.watch.say(f"the audit log cannot be written, so nothing is sent: {fault}")
            return self._refuse("declined", "its audit log cannot be written: the disk may be full")
        self.watch.ends(task, result, sum(len(part) for part in answer))
        return answer

    def _find(self, charter: Any) -> Agreement:
        """The agreement of this hash; after a restart it is made again from the node's folder."""
        if self._agreement is not None and self._agreement.charter.hash == charter:
            return self._agreement
        known = self._known(charter) if isinstance(charter, str) else {}
        if not known:
            raise CharterError("this node has not agreed to that charter.")
        self._agreement = self.agree(read_charter(known["charter"]), str(known["tier"]))
        return self._agreement

    def _known(self, charter: str) -> Mapping[str, Any]:
        """What the folder says of a charter that was agreed to before; empty if it was not."""
        path = self.folder / "charters" / f"{charter}.json"
        with suppress(OSError, ValueError):
            found = json.loads(path.read_bytes()) if charter.isalnum() else {}
            if isinstance(found, dict) and Charter(found.get("charter", {})).hash == charter:
                return found
        return {}

    def _keep(self, found: Agreement) -> None:
        """Writes down what was agreed to, so that a restarted node need not ask again."""
        folder = self.folder / "charters"
        folder.mkdir(exist_ok=True, mode=0o700)
        text = json.dumps({"charter": found.charter.plain, "tier": found.tier}, indent=1)
        write_atomically(folder / f"{found.charter.hash}.json", text.encode())
        self._agreement = found

    def _log(self, what: str, answer: Parts) -> Parts:
        self.audit.add(what, answer)
        return answer

    def _refuse(self, kind: str, reason: str, **more: bool) -> Parts:
        """An answer that says why there is none. With `later`, the server may ask again. It has nothing of the node's
        data, so it leaves also if the audit log cannot be written."""
        answer = pack_plain(kind, reason=reason, **more)
        with suppress(OSError):
            self.audit.add(kind, answer, reason=reason)
        return answer

    def _public(self, text: str) -> str:
        """A reason as the server may read it: without paths of this machine."""
        for path in (self.options.data, self.options.public, self.folder):
            if path is not None:
                text = text.replace(str(path), os.path.basename(path))
        return one_line(text)
