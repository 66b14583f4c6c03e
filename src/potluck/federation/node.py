"""A node: answers the server's messages with its own data, its own memory and its own copy of the code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
    nearest_name,
    one_line,
    text_of,
)
from potluck.engines import TaskEnvelope, TaskResult, Worker
from potluck.engines.remote import Parts
from potluck.engines.remote.messages import ModelCache, bare_task, pack_plain, pack_result, read_head, word
from potluck.federation.audit import contents
from potluck.federation.charter import Charter, CharterError, make_setup, network_checksums, read_charter, versions
from potluck.federation.measure import DeviceBudget, Measured, largest_that_fits, measure
from potluck.federation.node_data import read_node_data
from potluck.federation.node_folder import NodeFolder, Served
from potluck.federation.node_memory import NodeMemory
from potluck.federation.roster import Roster
from potluck.ledger import LedgerError
from potluck.run.assemble import Setup
from potluck.run.measuring import usual_memory
from potluck.run.world import own_code

if TYPE_CHECKING:
    from potluck.secure.protocol import Identities

ROOM = 128 << 20
"""Bytes of models that a node keeps, so that they need not be sent again."""
NO_LOG = "its audit log cannot be written: the disk may be full"
_PATH = re.compile(r"(?<![\w.])(?:/|[A-Za-z]:\\)[^\s:;,'\"]+")


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
    trusted: tuple[str, ...] = ()
    """Modules of one's own, with a method or a network, that a charter may name."""
    hardware: str = "cpu"
    threads: int = 1
    """Threads that compute. With one, results are the same on every machine of a kind; large networks may need more."""


@dataclass(eq=False)
class Agreement:
    """A charter that the node agreed to, and all that it needs to work under it."""

    charter: Charter
    setup: Setup
    worker: Worker
    tier: str
    measured: Mapping[str, Measured]
    memory: NodeMemory


class Leaving(NamedTuple):
    """An answer that is about to leave, and what the audit log says of it."""

    what: str
    parts: Parts
    facts: Mapping[str, Any] = EMPTY


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
        identities: Identities | None = None,
    ) -> None:
        self.id, self.folder, self.options, self.watch = id, folder, options, watch
        self.consent = consent
        """Asks whoever runs the node before it takes part; called once for each charter."""
        self.identities = identities
        """Its own, from its kit. Without them it takes part in no secure sums. (Tests without kits give seeded ones,
        which hide nothing from a server that knows the seed.)"""
        self.ended = ""
        """How the federation ended, once the server said so."""
        self.fault: UserError | None = None
        """Why the node cannot take part under the charter that the server sent. The process should end with it."""
        self.kept = NodeFolder(folder)
        self.audit = self.kept.audit
        self._models = ModelCache(ROOM)
        self._agreement: Agreement | None = None
        self._limits = Limits()
        torch.set_num_threads(options.threads)

    @property
    def memory(self) -> NodeMemory:
        """The memory of the run that the node takes part in."""
        assert self._agreement is not None, "no charter was agreed to yet"
        return self._agreement.memory

    def respond(self, parts: Parts) -> Parts:
        """The answer to a message. Whatever goes wrong becomes an answer; only Ctrl-C goes through.

        Every answer is in the audit log before it leaves. If it cannot be written there, nothing else leaves.
        """
        leaving = self._answer(parts)
        try:
            self.audit.add(leaving.what, leaving.parts, **leaving.facts)
        except OSError as fault:
            self.watch.say(f"the audit log cannot be written, so nothing is sent: {fault}")
            return pack_plain("declined", reason=NO_LOG, later=True)
        return leaving.parts

    def agree(self, charter: Charter, tier: str = "") -> Agreement:
        """Reads the data, builds the networks, measures them, and chooses a tier; asks nobody."""
        roster = Roster(0)
        experiment = replace(charter.experiment, fleet=type(charter.experiment.fleet)())
        hardware = replace(experiment.run, hardware=self.options.hardware)  # type: ignore[arg-type]
        experiment = replace(experiment, run=hardware)
        datasets = read_node_data(self.id, self.options.data, self.options.public, charter)
        setup = make_setup(experiment, charter.method, datasets, roster, self.identities)
        self._compare(charter, setup)
        context = replace(setup.context, own_noise=True)
        setup = replace(setup, context=context)
        tiers = list(context.zoo.tiers)
        _refuse_unknown_tier(self.options.tier, [tier.name for tier in tiers])
        measured = measure(context, experiment, tiers, self.id)
        wanted = tier or self.options.tier or largest_that_fits(measured, self.options.budget)
        if math.isinf(measured[wanted].seconds):
            needs = f"{measured[wanted].memory / 1e9:,.1f} GB"
            raise CharterError(f"--tier {wanted}: its network needs {needs}, more than this machine has.")
        return Agreement(charter, setup, Worker(context), wanted, measured, self.kept.memory(charter))

    def _answer(self, parts: Parts) -> Leaving:
        try:
            told = read_head(parts, self._limits)
            match told["kind"]:
                case "charter":
                    return Leaving("agreement", self._consider(told))
                case "task":
                    return self._work(told, parts)
                case "tier":
                    return Leaving("agreement", self._change_tier(told))
                case "end":
                    self.ended = word(told, "how") or "the federation ended"
                    return Leaving("goodbye", pack_plain("goodbye"))
                case odd:
                    raise MessageError(f"a message of the kind '{odd[:40]}'")
        except MessageError as fault:
            self.watch.say(f"a message of the server makes no sense: {one_line(str(fault))}")
            return self._refusal("refused", str(fault))
        except UserError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refusal("declined", str(fault))
        except LedgerError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refusal("declined", str(fault), later=True)
        except OSError as fault:
            self.watch.say(one_line(str(fault)))
            return self._refusal("declined", f"{fault.strerror or type(fault).__name__} at the node", later=True)
        except Exception as fault:
            self.watch.say(one_line(f"{type(fault).__name__}: {text_of(fault)}"))
            return self._refusal("declined", f"{type(fault).__name__} at the node")

    def _refusal(self, kind: str, reason: str, **more: bool) -> Leaving:
        """An answer that says why there is none; with `later`, the server may ask again."""
        said = self._public(reason)
        return Leaving(kind, pack_plain(kind, reason=said, **more), {"reason": said})

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
        try:
            charter = read_charter(told.get("charter"), self.options.trusted)
            if self._agreement is None or self._agreement.charter.hash != charter.hash:
                known = self.kept.agreement(charter.hash)
                found = self.agree(charter, self._last_tier(known))
                self.watch.measured(found.measured, found.tier)
                if not known and not self.consent(charter, found.tier):
                    raise CharterError("whoever runs the node said no.")
                self._keep(found)
        except UserError as fault:
            self.fault = fault
            raise
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
        names, wanted = list(now.measured), word(told, "tier")
        if wanted in names[: names.index(now.tier)]:
            self.watch.say(f"tier '{wanted}' instead of '{now.tier}', as the server offers: rounds were missed")
            self._keep(replace(now, tier=wanted))
        return self._agreed()

    def _work(self, told: Mapping[str, Any], parts: Parts) -> Leaving:
        """The answer to a task."""
        now = self._find(told.get("charter"))
        self._limits = now.charter.limits
        task, marks, arrays = told.get("task"), told.get("models"), word(told, "arrays")
        if not isinstance(task, Task) or not isinstance(marks, Mapping) or task.to != self.id:
            raise MessageError("a task that is none, or for another node")
        self._models.add(parts[1:])
        if missing := self._models.find([*map(str, marks.values()), *([arrays] if arrays else [])]):
            self._models.prune()
            return Leaving("missing", pack_plain("missing", marks=missing))
        models: dict[str, Model] = {key: self._models.model(str(mark), self._limits) for key, mark in marks.items()}
        for key, model in models.items():
            self._refuse_vast(now, key, model)
        task = replace(task, models=models, arrays=self._models.arrays(arrays, self._limits) if arrays else EMPTY)
        return self._run(now, task, told)

    def _refuse_vast(self, now: Agreement, key: str, model: Model) -> None:
        """A network without numbers is small on its way, and may be of any size here."""
        zoo = now.setup.context.zoo
        if isinstance(model, Newborn) and zoo.cost(model.spec, 1).parameter_bytes > self._limits.bytes:
            raise MessageError(f"model '{key[:40]}' is larger than the charter allows")

    def _run(self, now: Agreement, task: Task, told: Mapping[str, Any]) -> Leaving:
        receipt, attempt, oldest = told.get("memory") or {}, told.get("attempt"), told.get("oldest")
        if not isinstance(receipt, Mapping) or type(attempt) is not int or type(oldest) is not int:
            raise MessageError("a task without its place in the run")
        memory = now.memory.load(receipt, now.tier) if receipt else None
        fresh = bool(receipt) and memory is None
        if fresh:
            why = "is of another tier" if receipt.get("tier") != now.tier else "is not here"
            self.watch.say(f"the memory that the server names {why}: starting without one")
        self.watch.begins(task)
        result = now.worker.run(TaskEnvelope(task, memory or EMPTY, attempt))
        if result.fault:
            result = replace(result, fault=self._public(result.fault))
        result, kept = self._remember(now, task, result, "" if fresh else word(receipt, "sha256"), oldest)
        if task.verb == "score" and not task.key:
            self._keep_served(now, task, {} if fresh else receipt, told)
        updates = now.charter.experiment.nodes.updates
        answer = pack_result(result, task, kept, fresh, self._models.prune(), now.setup.context.zoo, updates)
        self.watch.ends(task, result, sum(len(part) for part in answer))
        held = contents(result.reply, task) if result.reply is not None else {"reason": result.fault}
        after = task.round + (task.verb != "score")
        return Leaving("result", answer, {"round": after, "verb": task.verb, "key": task.key, **held})

    def _remember(
        self, now: Agreement, task: Task, result: TaskResult, named: str, oldest: int
    ) -> tuple[TaskResult, Mapping[str, Any] | None]:
        """Saves the new memory, if there is one; the result, or what came of it, and the receipt."""
        kept: Mapping[str, Any] | None = None
        served = self.kept.served()
        try:
            if result.memory is not None and result.reply is not None:
                kept = now.memory.save(task.round, result.memory, now.tier, named)
            now.memory.prune(named, task.round, oldest, [word(served.receipt, "sha256")] if served else ())
        except (LedgerError, OSError) as fault:
            self.watch.say(one_line(str(fault)))
            return TaskResult(bare_task(task), fault="its memory cannot be saved: the disk may be full"), None
        return result, kept

    def _keep_served(self, now: Agreement, task: Task, receipt: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Keeps the model that is scored, for exports on this node."""
        mark = str(told["models"].get("model", ""))
        labels = list(now.setup.context.datasets.shard(self.id).labels)
        found = Served(now.charter.hash, task.round, now.tier, labels, dict(receipt), mark)
        try:
            self.kept.keep_served(found, self._models.part(mark) if mark else None)
        except (LedgerError, OSError) as fault:
            self.watch.say(f"the model is not kept for exports: {one_line(str(fault))}")

    def _find(self, charter: Any) -> Agreement:
        """The agreement of this hash; after a restart it is made again from the node's folder."""
        if self._agreement is not None and self._agreement.charter.hash == charter:
            return self._agreement
        known = self.kept.agreement(charter) if isinstance(charter, str) else {}
        if not known:
            raise CharterError("this node has not agreed to that charter.")
        self._agreement = self.agree(read_charter(known["charter"], self.options.trusted), self._last_tier(known))
        return self._agreement

    def _last_tier(self, known: Mapping[str, Any]) -> str:
        """The tier of a charter that was agreed to before; empty if it was not, or if other options were given."""
        return str(known.get("tier", "")) if known.get("options") == self._wishes() else ""

    def _wishes(self) -> list[Any]:
        budget = self.options.budget
        return [self.options.tier, budget.memory, str(budget.seconds)]

    def _keep(self, found: Agreement) -> None:
        self.kept.keep_agreement(found.charter, tier=found.tier, options=self._wishes())
        self._agreement = found

    def _public(self, text: str) -> str:
        """A reason as the server may read it: without paths of this machine."""
        named = {self.options.data: "its data", self.options.public: "its public rows", self.folder: "its folder"}
        for path in sorted((path for path in named if path is not None), key=lambda path: -len(str(path))):
            text = text.replace(str(path), named[path])
        return one_line(_PATH.sub("a file", text))


def _refuse_unknown_tier(wanted: str, names: list[str]) -> None:
    if wanted and wanted not in names:
        near = nearest_name(wanted, names)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(names)}."
        raise CharterError(f"--tier {wanted}: no tier of this federation; {hint}")
