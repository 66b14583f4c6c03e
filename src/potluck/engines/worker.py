"""Where a client's half runs: live networks that serve task after task, and the device a task sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from potluck.core import (
    SERVER,
    Arrays,
    Cost,
    Edit,
    Examples,
    Fit,
    Local,
    Loss,
    Memory,
    Model,
    Reply,
    Skip,
    Spec,
    Task,
    answer,
    payload,
    stream,
)
from potluck.engines.context import Shard, SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.network_slot import NetworkSlot
from potluck.learn import FitJob, Precision, kept, observe, predict_logits, to_device

T = TypeVar("T")

Grant: TypeAlias = Callable[[FitJob], Fit]
"""Does a fit."""


class Worker:
    """Answers letters, one at a time, for any client of a world."""

    def __init__(self, context: SimulationContext) -> None:
        self.context = context
        self.hardware = torch.device(context.hardware)
        self._nets: dict[tuple[Spec, int, Hashable], NetworkSlot] = {}
        self._columns: dict[int, tuple[Mapping[str, Tensor], dict[str, Tensor]]] = {}
        self.ready: dict[Hashable, Any] = {}
        """What tasks made ready for the next of their kind."""
        if self.hardware.type == "cuda":
            _calibrate(context.precision)

    def answer(self, envelope: TaskEnvelope, place: Hashable = None, grant: Grant = FitJob.granted) -> TaskResult:
        """Runs the client's half; whatever it raises becomes the outcome's fault.

        Halves that run side by side have a place each, with networks of its own; `grant` does their fits.
        """
        half = TaskRun(self, envelope, place, grant)
        return half.outcome(lambda: answer(self.context.method, envelope.task, half.device))

    def live(self, spec: Spec, number: int, place: Hashable = None) -> NetworkSlot:
        """A place's n-th network of this spec; a task that builds several of one spec gets several."""
        found = self._nets.get((spec, number, place))
        if found is None:
            net = self.context.zoo.build(Model(spec), stream(0, "blank")).to(self.hardware)
            found = self._nets[spec, number, place] = NetworkSlot(spec, net, self.context.channels_last)
        return found

    def here(self, examples: Examples) -> Examples:
        """These examples where the networks are; the columns they share move once."""
        if self.hardware.type == "cpu":
            return examples
        key = id(next(iter(examples.columns.values())))
        if key not in self._columns:
            moved = {name: column.to(self.hardware) for name, column in examples.columns.items()}
            self._columns[key] = (examples.columns, moved)
        rows = None if examples.rows is None else examples.rows.to(self.hardware, non_blocking=True)
        return Examples(self._columns[key][1], rows, examples.prepare, examples.augment)

    def close(self) -> None:
        """Lets go of networks, recordings and columns, which on a GPU leave no room for the next run's."""
        self.ready.clear()
        self._nets.clear()
        self._columns.clear()

    def resident(self, examples: Examples) -> bool:
        """Whether the columns of these examples are the world's own, which stay where they are."""
        first = next(iter(examples.columns.values()))
        return any(first is column for _, moved in self._columns.values() for column in moved.values())


def _calibrate(precision: Precision) -> None:
    """Kernels that give the same bits each time, and round no more than they are told to."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


class TaskRun:
    """A client's half of a round, while it runs."""

    def __init__(
        self, site: Worker, envelope: TaskEnvelope, place: Hashable = None, grant: Grant = FitJob.granted
    ) -> None:
        self.envelope = envelope if site.hardware.type == "cpu" else _brought(envelope, site.hardware)
        self.device = WorkerDevice(site, self.envelope.task, dict(self.envelope.memory), place, grant)
        self._hardware, self._context = site.hardware, site.context
        self._started = time.perf_counter()

    def outcome(self, work: Callable[[], Reply]) -> TaskResult:
        """What becomes of the letter, once this has made the reply."""
        task, device = self.envelope.task, self.device
        bare = Task(task.verb, task.to, task.key, task.round, config=task.config, memory=task.memory)
        try:
            reply = self._leaving(work())
            seconds = time.perf_counter() - self._started
            cost = Cost(payload(task), payload(reply), device.flops, device.peak, seconds)
        except Skip as note:
            return TaskResult(bare, fault=str(note), skipped=True)
        except Exception as fault:
            return TaskResult(bare, fault=f"{type(fault).__name__}: {fault}")
        arrays = to_device(reply.arrays, self._hardware)
        stamped = Reply(reply.models, arrays, reply.weight, reply.metrics, bare, cost)
        return TaskResult(bare, stamped, _changed(self.envelope.memory, device.memory))

    def _leaving(self, reply: Reply) -> Reply:
        """A reply as it leaves a client's device. Scores are for whoever runs the experiment, and leave as they are."""
        task, context = self.envelope.task, self._context
        if context.mechanism is None or task.to == SERVER or task.verb == "score":
            return reply
        return context.mechanism(task, reply, context.zoo, stream(context.seed, "veil", *task.address))


def _brought(envelope: TaskEnvelope, hardware: torch.device) -> TaskEnvelope:
    """A letter with everything that it brings where the networks are."""
    task = envelope.task
    brought = Task(
        *(task.verb, task.to, task.key, task.round, task.models, to_device(task.arrays, hardware)),
        *(task.config, task.memory),
    )
    return TaskEnvelope(brought, to_device(envelope.memory, hardware))


def _changed(before: Mapping[str, Any], after: Memory) -> Memory | None:
    """The memory after a task, or None where nothing was put into it. Values at rest are replaced, never altered."""
    same = before.keys() == after.keys() and all(after[name] is value for name, value in before.items())
    return None if same else after


class WorkerDevice:
    """The device of one task."""

    def __init__(self, site: Worker, task: Task, memory: Memory, place: Hashable, grant: Grant) -> None:
        context = site.context
        self.client, self.round = task.to, task.round
        self.memory, self.zoo, self.problem = memory, context.zoo, context.problem
        self.flops = self.peak = 0
        self._site, self._task, self._place, self._grant = site, task, place, grant
        self._built: dict[Spec, int] = {}
        self._lives: dict[int, NetworkSlot] = {}
        self._rng: torch.Generator | None = None
        self._shard: Shard | None = None

    @property
    def shard(self) -> Shard:
        if self._shard is None:
            common = self._task.verb == "score" and self._task.config.get("common")
            self._shard = self._site.context.datasets.shard(SERVER if common else self.client)
        return self._shard

    @property
    def data(self) -> Examples:
        return self._site.here(self.shard.train)

    @property
    def validation(self) -> Examples:
        return self._site.here(self.shard.validation)

    @property
    def test(self) -> Examples:
        return self._site.here(self.shard.test)

    @property
    def labels(self) -> Sequence[int]:
        return self.shard.labels

    @property
    def public(self) -> Examples:
        return self._site.here(self._site.context.datasets.public)

    @property
    def rng(self) -> torch.Generator:
        if self._rng is None:
            task = self._task
            self._rng = stream(self._site.context.seed, "task", task.round, task.to, task.verb, task.key)
        return self._rng

    def build(self, model: Model) -> nn.Module:
        number = self._built.get(model.spec, 0)
        self._built[model.spec] = number + 1
        live = self._site.live(model.spec, number, self._place)
        self._lives[id(live.net)] = live
        arrays = model.arrays
        if arrays is None:
            born = stream(self._site.context.seed, "birth", self.client, model.spec.key)
            arrays = self.zoo.fresh(model.spec, born).arrays or {}
        live.fill(arrays)
        return live.net

    def again(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._site.ready:
            self._site.ready[key] = make()
        found: T = self._site.ready[key]
        return found

    def rest(self, net: nn.Module) -> Arrays:
        return self._lives[id(net)].rest()

    def fit(
        self,
        net: nn.Module,
        examples: Examples,
        local: Local,
        loss: Loss | None = None,
        edits: Sequence[Edit] = (),
        want_gradient: bool = False,
    ) -> Fit:
        job = self.job(net, examples, local, loss, edits, want_gradient)
        return self.told(job, self._grant(job))

    def job(
        self,
        net: nn.Module,
        examples: Examples,
        local: Local,
        loss: Loss | None = None,
        edits: Sequence[Edit] = (),
        want_gradient: bool = False,
    ) -> FitJob:
        """A fit that is yet to be done."""
        live, hardware = self._lives[id(net)], self._site.hardware
        loss = to_device(loss or self.problem.loss, hardware)
        edits = [to_device(edit, hardware) for edit in edits]
        kind, lr = live.spec if live.dense else None, local.rate(self.round)
        laid = (live.buffer, live.layout) if live.dense and live.layout.entries else None
        precision = self._site.context.precision
        noise = int(torch.randint(2**62, (), generator=self.rng)) if live.noisy else None
        return FitJob(
            *(kind, net, live.weights, examples, local, lr, loss, edits, self.rng, want_gradient, laid),
            *(precision, noise),
        )

    def told(self, job: FitJob, done: Fit) -> Fit:
        """Counts the work of a fit: FLOPs of the rows seen, and memory.

        In memory are weights, gradients, optimiser slots and activations; what losses and edits hold, frozen networks
        too, of which each batch asks a forward pass; and the gradients' mean, if it was asked for.
        """
        if not done.steps:
            return done
        batch, local = min(job.local.batch, len(job.examples)), job.local
        work, (tensors, nets) = self._lives[id(job.net)].work(self.zoo, batch), kept(job.loss, *job.edits)
        asked = [self._lives[id(net)].work(self.zoo, batch) for net in nets]
        self.flops += (work.flops + sum(other.flops for other in asked) // 3) * done.samples // batch
        slots = 2 if local.optimiser == "adam" else int(local.momentum > 0)
        copies = 2 + slots + (done.gradient is not None)
        beside = sum(tensor.nbytes for tensor in tensors) + sum(other.parameter_bytes for other in asked)
        self.peak = max(self.peak, work.parameter_bytes * copies + work.activation_bytes + beside)
        return done

    def observe(self, net: nn.Module, examples: Examples, batch: int) -> int:
        seen = observe(net, examples, batch, self.problem.loss, self.rng)
        if seen:
            self._passed(net, len(examples))
        return seen

    def predict(self, net: nn.Module, examples: Examples) -> Tensor:
        scores = predict_logits(net, examples)
        self._passed(net, len(examples))
        return scores

    def charge(self, flops: int, memory: int) -> None:
        self.flops, self.peak = self.flops + flops, max(self.peak, memory)

    def _passed(self, net: nn.Module, rows: int) -> None:
        """Counts a pass without learning: forward is a third of a training step, and nothing is kept."""
        work = self._lives[id(net)].work(self.zoo, 1)
        self.charge(work.flops * rows // 3, work.parameter_bytes)
