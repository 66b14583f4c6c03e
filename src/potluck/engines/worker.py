"""The worker that runs the client side of tasks: reusable networks, and the device that a task sees."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from potluck.core import (
    SERVER,
    Arrays,
    BufferLayout,
    Column,
    Cost,
    Examples,
    Fit,
    FitRequest,
    FlatArrays,
    Loss,
    Memory,
    Model,
    Newborn,
    Reply,
    SecretNoise,
    Skip,
    Spec,
    Task,
    Work,
    Zoo,
    answer,
    client_fault,
    describe,
    payload,
    stream,
    text_of,
    trains,
)
from potluck.engines.context import ClientData, SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.form import Malformed, clean_memory, clean_reply
from potluck.engines.step_counts import StepCounts
from potluck.learn import (
    FitJob,
    Precision,
    StepCount,
    can_stack,
    gather_statistics,
    held_tensors,
    predict_logits,
    run_fit,
    to_device,
    trainable_weights,
    turns_of,
)
from potluck.secure.settings import REQUEST, VERBS, request_bytes

if TYPE_CHECKING:
    from potluck.secure.client import SecureClient

T = TypeVar("T")

RunFits: TypeAlias = Callable[[Sequence[FitJob]], "list[Fit | BaseException]"]
"""Runs fit jobs; a failed job gives its exception instead of a result."""

MemoryEntry: TypeAlias = tuple[tuple[str, ...], object, object]
"""A path in a memory, the object there (or its type), and a value that changes when the object does."""


class Worker:
    """Runs tasks for any client of a simulation, one at a time or side by side."""

    def __init__(self, context: SimulationContext) -> None:
        self.context = context
        self.hardware = torch.device(context.hardware)
        self._slots: dict[tuple[Spec, int, Hashable], NetworkSlot] = {}
        self._columns: dict[int, tuple[Mapping[str, Column], dict[str, Column]]] = {}
        self.cache: dict[Hashable, Any] = {}
        """Objects that tasks keep for later tasks (`Device.cached`)."""
        self.step_counts = StepCounts(context.zoo, context.problem.loss)
        if self.hardware.type == "cuda":
            _set_kernels(context.precision)

    def run(self, envelope: TaskEnvelope) -> TaskResult:
        """Runs the client side of one task; an exception becomes the fault of the result."""
        run = TaskRun(self, envelope)
        while run.job is not None:
            try:
                fit: Fit | BaseException = run_fit(run.job)
            except BaseException as fault:
                fit = client_fault(fault)
            run.resume(fit)
        return run.result

    def run_side_by_side(self, envelopes: Sequence[TaskEnvelope], run_fits: RunFits) -> list[TaskResult]:
        """Runs the client side of several tasks: each up to its next fit request, then all these fits together."""
        if not all(trains(self.context.method, envelope.task.verb) for envelope in envelopes):
            return [self.run(envelope) for envelope in envelopes]
        runs = [TaskRun(self, envelope, place) for envelope, place in zip(envelopes, _places(envelopes), strict=True)]
        while waiting := [(run, run.job) for run in runs if run.job is not None]:
            for (run, _), fit in zip(waiting, run_fits([job for _, job in waiting]), strict=True):
                run.resume(fit)
        return [run.result for run in runs]

    def slot(self, spec: Spec, number: int, place: Hashable = None) -> NetworkSlot:
        """The network slot number `number` of this spec at this place; a task may build several of one spec."""
        found = self._slots.get((spec, number, place))
        if found is None:
            net = self.context.zoo.build(Newborn(spec), stream(0, "blank")).to(self.hardware)
            found = self._slots[spec, number, place] = NetworkSlot(spec, net, self.context.channels_last)
        return found

    def move(self, examples: Examples) -> Examples:
        """These examples on the networks' hardware; shared columns are copied once, rows in files at each batch."""
        if self.hardware.type == "cpu":
            return examples
        key = id(next(iter(examples.columns.values())))
        if key not in self._columns:
            moved = {name: column.to(self.hardware) for name, column in examples.columns.items()}
            self._columns[key] = (examples.columns, moved)
        rows = None if examples.rows is None else examples.rows.to(self.hardware, non_blocking=True)
        return Examples(self._columns[key][1], rows, examples.prepare, examples.augment)

    def close(self) -> None:
        """Frees networks, captured graphs and columns, so that the next run has GPU memory."""
        self.cache.clear()
        self._slots.clear()
        self._columns.clear()

    def resident(self, examples: Examples) -> bool:
        """Whether these examples use the simulation's own columns, which stay at one address; rows in files don't."""
        if not all(isinstance(column, Tensor) for column in examples.columns.values()):
            return False
        first = next(iter(examples.columns.values()))
        return any(first is column for _, moved in self._columns.values() for column in moved.values())


def _set_kernels(precision: Precision) -> None:
    """Chooses deterministic kernels, and allows TF32 only if the precision asks for it."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _places(envelopes: Sequence[TaskEnvelope]) -> list[Hashable]:
    """A place (a set of networks) for each task; tasks with equal specs use the same few places in every round."""
    count: Counter[Hashable] = Counter()
    found: list[Hashable] = []
    for envelope in envelopes:
        kind = tuple((key, model.spec) for key, model in sorted(envelope.task.models.items()))
        found.append((kind, count[kind]))
        count[kind] += 1
    return found


def _draws(layer: nn.Module) -> bool:
    """Whether a layer drops units at random in training."""
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, nn.Dropout) and layer.p > 0


class NetworkSlot:
    """A live network that is reused: each model of its spec is copied into it."""

    def __init__(self, spec: Spec, net: nn.Module, channels_last: bool = False) -> None:
        self.spec, self.net = spec, net
        self.tensors = dict(net.state_dict(keep_vars=True))
        self.buffer, self.layout = _move_into_buffer(self.tensors, channels_last)
        # A list, not a set: its order reaches the bytes of memories, and must be the same in every process.
        self._others = [name for name in self.tensors if name not in self.layout.views]
        self.weights = trainable_weights(net)
        # Whether training draws from torch's global generator.
        self.noisy = any(_draws(layer) for layer in net.modules())
        self.stackable = can_stack(net)
        self._work: dict[int, Work] = {}

    def fill(self, arrays: Arrays) -> None:
        """Copies these tensors into the network."""
        if isinstance(arrays, FlatArrays) and arrays.layout == self.layout and not self._others and not arrays.others:
            self.buffer.copy_(arrays.buffer)
            return
        if arrays.keys() != self.tensors.keys():
            odd = sorted(arrays.keys() ^ self.tensors.keys())
            raise ValueError(f"a {self.spec.family} has other tensors than were sent: {', '.join(odd[:3])}")
        with torch.no_grad():
            torch._foreach_copy_(list(self.tensors.values()), [arrays[name] for name in self.tensors])

    def work(self, zoo: Zoo, batch: int) -> Work:
        """The work of one training step on a batch."""
        if batch not in self._work:
            self._work[batch] = zoo.cost(self.spec, batch)
        return self._work[batch]

    def snapshot(self) -> FlatArrays:
        """A copy of its tensors, on the same hardware."""
        others = {name: self.tensors[name].detach().clone() for name in self._others}
        return FlatArrays(self.buffer.clone(), self.layout, others)


def _move_into_buffer(tensors: Mapping[str, Tensor], channels_last: bool) -> tuple[Tensor, BufferLayout]:
    """Moves a network's float32 tensors into one buffer, each at an aligned offset."""
    chosen = {name: tensor for name, tensor in tensors.items() if tensor.dtype is torch.float32 and tensor.numel()}
    if len({tensor.data_ptr() for tensor in chosen.values()}) < len(chosen):  # tied weights stay where they are
        chosen = {}
    entries, end = [], 0
    for name, tensor in chosen.items():
        entries.append((name, end, tuple(tensor.shape)))
        end += -(-tensor.numel() // 16) * 16
    device = next((tensor.device for tensor in chosen.values()), None)
    buffer, layout = torch.zeros(end, device=device), BufferLayout(tuple(entries), channels_last)
    for name, view in layout.cut(buffer).items():
        chosen[name].data = view.copy_(chosen[name].detach())
    return buffer, layout


class TaskRun:
    """One task in progress. It pauses at every fit request until `resume` gives it the result."""

    def __init__(self, worker: Worker, envelope: TaskEnvelope, place: Hashable = None) -> None:
        if worker.hardware.type != "cpu":
            envelope = _move_envelope(envelope, worker.hardware)
        self.job: FitJob | None = None
        """The fit job that it waits for; None: the task is done."""
        self._task, self._worker, self._attempt = envelope.task, worker, envelope.attempt
        task = envelope.task
        told = {name: value for name, value in task.config.items() if name != REQUEST}
        self._bare = Task(task.verb, task.to, task.key, task.round, config=told, memory=task.memory)
        memory = dict(envelope.memory)
        self._before = memory_entries(memory)
        self._device = WorkerDevice(worker, task, memory, place)
        self._result: TaskResult | None = None
        self._started = time.perf_counter()
        self._work: Generator[FitRequest, Fit, Reply] | None = None
        self._advance(self._begin)

    @property
    def result(self) -> TaskResult:
        assert self._result is not None, "the task still waits for a fit"
        return self._result

    def resume(self, fit: Fit | BaseException) -> None:
        """Continues with the result of the requested fit, or with its exception."""
        assert self._work is not None
        assert self.job is not None
        self._advance(partial(self._continue, self._work, self.job, fit))

    def _continue(
        self, work: Generator[FitRequest, Fit, Reply], job: FitJob, fit: Fit | BaseException
    ) -> Reply | FitRequest:
        if isinstance(fit, BaseException):
            return work.throw(fit)
        self._device.count_fit(job, fit)
        return work.send(fit)

    def _begin(self) -> Reply | FitRequest:
        if self._task.verb in VERBS:
            return self._secure_client().answer(self._task)
        work = answer(self._worker.context.method, self._task, self._device)
        if isinstance(work, Reply):
            return work
        self._work = work
        return next(work)

    def _advance(self, go: Callable[[], Reply | FitRequest]) -> None:
        """Runs the client side up to its next fit request or its reply."""
        self.job = None
        try:
            try:
                asked = go()
            except StopIteration as end:
                asked = end.value
            if isinstance(asked, FitRequest):
                self.job = self._device.job(asked)
            else:
                self._result = self._finish(asked)
        except Skip as note:
            self._result = TaskResult(self._bare, fault=text_of(note), skipped=True)
        except Malformed as fault:
            self._result = TaskResult(self._bare, Reply(task=self._bare, cost=self._cost(0)), refused=str(fault))
        except BaseException as fault:
            self._result = TaskResult(self._bare, fault=describe(client_fault(fault)))

    def _finish(self, reply: object) -> TaskResult:
        if not isinstance(reply, Reply):
            method = type(self._worker.context.method).__name__
            raise TypeError(f"{method}.{self._task.verb} returned {type(reply).__name__}, not a Reply")
        hardware, known = self._worker.hardware, [model.spec for model in self._task.models.values()]
        reply = self._mask(self._protect(clean_reply(reply, hardware, known)))
        memory = self._changed_memory(known)
        arrays = to_device(reply.arrays, hardware)
        stamped = Reply(reply.models, arrays, reply.weight, reply.metrics, self._bare, self._cost(payload(reply)))
        return TaskResult(self._bare, stamped, memory)

    def _changed_memory(self, known: Iterable[Spec]) -> Memory | None:
        """The client's memory, if the task changed it."""
        try:
            if same_memory(self._before, memory_entries(self._device.memory)):
                return None
        except Exception:  # a memory that cannot be compared has changed; what is wrong with it is told below
            pass
        return clean_memory(self._device.memory, self._worker.hardware, known)

    def _cost(self, bytes_up: int) -> Cost:
        device, seconds = self._device, time.perf_counter() - self._started
        return Cost(payload(self._task) + request_bytes(self._task), bytes_up, device.flops, device.peak, seconds)

    def _mask(self, reply: Reply) -> Reply:
        """The reply with a masked update, if [secure] is on. Nothing else with tensors leaves a client then."""
        task, context = self._task, self._worker.context
        if REQUEST in task.config and task.verb not in VERBS:
            weight = context.method.weigh(reply, context.zoo)
            return self._secure_client().upload(task, reply, weight, context.zoo)
        exempt = task.to == SERVER or task.verb in VERBS
        if context.secure is not None and not exempt and (reply.models or reply.arrays):
            raise PermissionError(f"[secure] is on, and the answer to '{task.verb}' is not masked")
        return reply

    def _secure_client(self) -> SecureClient:
        found = self._worker.context.secure
        if found is None:
            raise PermissionError("the server asks for a secure sum, but [secure] is off here")
        return found

    def _protect(self, reply: Reply) -> Reply:
        """The reply with noise, if [privacy] asks for it. Scores get none: they are for the user who runs this. Nor do
        keys and shares of a secure sum: they follow from no data."""
        task, context = self._task, self._worker.context
        if context.mechanism is None or task.to == SERVER or task.verb in ("score", "personalise", *VERBS):
            return reply
        if context.own_noise:
            return context.mechanism(task, reply, context.zoo, SecretNoise())
        # A retried round sends other noise: equal noise on two unequal updates would show how they differ.
        again = (self._attempt,) if self._attempt else ()
        return context.mechanism(task, reply, context.zoo, stream(context.seed, "veil", *task.address, *again))


def _move_envelope(envelope: TaskEnvelope, hardware: torch.device) -> TaskEnvelope:
    """The envelope with its arrays and memory moved to this hardware."""
    task = envelope.task
    moved = Task(
        *(task.verb, task.to, task.key, task.round, task.models, to_device(task.arrays, hardware)),
        *(task.config, task.memory),
    )
    return replace(envelope, task=moved, memory=to_device(envelope.memory, hardware))


def memory_entries(value: Any, path: tuple[str, ...] = ()) -> list[MemoryEntry]:
    """A list of everything in a memory, to detect changes, also changes in place.

    Tensors are compared by identity and by torch's counter of in-place changes, so their contents are not read.
    """
    if type(value) is dict and not value:  # as most memories are
        return [(path, dict, 0)]
    if isinstance(value, Tensor):
        return [(path, value, -1 if value.is_inference() else value._version)]
    if isinstance(value, Model):
        return [(path, value, None), *memory_entries(value.arrays, path)]
    if isinstance(value, FlatArrays):
        return [(path, value, None), *memory_entries(value.buffer, path), *memory_entries(value.others, path)]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        plain = value is None or isinstance(value, bool | int | float | str)
        return [(path, type(value), value) if plain else (path, value, None)]
    return [
        (path, type(value), len(value)),
        *(e for name, item in items for e in memory_entries(item, (*path, str(name)))),
    ]


def same_memory(before: Sequence[MemoryEntry], after: Sequence[MemoryEntry]) -> bool:
    """Whether nothing changed between these two lists."""
    if len(before) != len(after):
        return False
    return all(a[0] == b[0] and a[1] is b[1] and a[2] == b[2] for a, b in zip(before, after, strict=True))


class WorkerDevice:
    """The device that one task sees."""

    def __init__(self, worker: Worker, task: Task, memory: Memory, place: Hashable) -> None:
        context = worker.context
        self.client, self.round = task.to, task.round
        self.memory, self.zoo, self.problem = memory, context.zoo, context.problem
        self.flops = self.peak = 0
        self._worker, self._task, self._place = worker, task, place
        self._built: Counter[Spec] = Counter()
        self._slots: dict[int, NetworkSlot] = {}
        self._rng: torch.Generator | None = None
        self._data: ClientData | None = None

    @property
    def _shard(self) -> ClientData:
        if self._data is None:
            common = self._task.verb == "score" and self._task.config.get("common")
            self._data = self._worker.context.datasets.shard(SERVER if common else self.client)
        return self._data

    @property
    def data(self) -> Examples:
        return self._worker.move(self._shard.train)

    @property
    def validation(self) -> Examples:
        return self._worker.move(self._shard.validation)

    @property
    def test(self) -> Examples:
        return self._worker.move(self._shard.test)

    @property
    def common_test(self) -> Examples:
        return self._worker.move(self._worker.context.datasets.shard(SERVER).test)

    @property
    def labels(self) -> Sequence[int]:
        return self._shard.labels

    @property
    def public(self) -> Examples:
        return self._worker.move(self._worker.context.datasets.public)

    @property
    def rng(self) -> torch.Generator:
        if self._rng is None:
            task = self._task
            self._rng = stream(self._worker.context.seed, "task", task.round, task.to, task.verb, task.key)
        return self._rng

    def build(self, model: Model) -> nn.Module:
        slot = self._worker.slot(model.spec, self._built[model.spec], self._place)
        self._built[model.spec] += 1
        self._slots[id(slot.net)] = slot
        arrays = model.arrays
        if isinstance(model, Newborn):
            birth = stream(self._worker.context.seed, "birth", self.client, model.spec.key)
            arrays = self.zoo.fresh(model.spec, birth).arrays
        slot.fill(arrays)
        return slot.net

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._worker.cache:
            self._worker.cache[key] = make()
        found: T = self._worker.cache[key]
        return found

    def snapshot(self, net: nn.Module) -> Arrays:
        return self._slots[id(net)].snapshot()

    def job(self, request: FitRequest) -> FitJob:
        """The fit job of a request, ready to run."""
        net = self.build(request.model) if isinstance(request.model, Model) else request.model
        slot, hardware, precision = self._slots[id(net)], self._worker.hardware, self._worker.context.precision
        return FitJob(
            net,
            request.examples,
            request.local,
            request.local.rate(self.round),
            to_device(request.loss or self.problem.loss, hardware),
            [to_device(edit, hardware) for edit in request.edits],
            self.rng,
            slot.weights,
            request.want_gradient,
            precision,
            noise=int(torch.randint(2**62, (), generator=self.rng)) if slot.noisy else None,
            kind=slot.spec if slot.stackable else None,
            buffer=(slot.buffer, slot.layout) if slot.stackable and slot.layout.entries else None,
        )

    def count_fit(self, job: FitJob, fit: Fit) -> None:
        """Adds the cost of a fit: FLOPs of the network and of all that the loss computes beside it, and peak memory.

        Memory holds weights, gradients, optimiser state and activations; the tensors and networks of losses and edits;
        and the mean gradient, if it was requested.
        """
        if not fit.steps:
            return
        batch, local, slot = min(job.local.batch, len(job.examples)), job.local, self._slots[id(job.net)]
        turns = [(self._step_count(loss, job, slot.spec), times) for loss, times in turns_of(job.loss) if times]
        every = sum(times for _, times in turns)
        self.flops += sum(count.total_flops(fit.steps, fit.samples) * times for count, times in turns) // every
        slots = 2 if local.optimiser == "adam" else int(local.momentum > 0)
        copies = 2 + slots + (fit.gradient is not None)
        tensors, nets = held_tensors(job.loss, *job.edits)
        beside = sum(tensor.nbytes for tensor in (*tensors, *(weight for net in nets for weight in net.parameters())))
        activations = max(count.activation_bytes(batch) for count, _ in turns)
        self.peak = max(self.peak, slot.work(self.zoo, batch).parameter_bytes * copies + activations + beside)

    def _step_count(self, loss: Loss, job: FitJob, spec: Spec) -> StepCount:
        return self._worker.step_counts.of(spec, loss, job.examples.columns, self._spec_of)

    def _spec_of(self, net: nn.Module) -> Spec | None:
        return self._slots[id(net)].spec if id(net) in self._slots else None

    def gather_statistics(self, net: nn.Module, examples: Examples, batch: int) -> int:
        seen = gather_statistics(net, examples, batch, self.problem.loss, self.rng)
        if seen:
            self._count_pass(net, len(examples))
        return seen

    def predict(self, net: nn.Module, examples: Examples) -> Tensor:
        logits = predict_logits(net, examples)
        self._count_pass(net, len(examples))
        return logits

    def charge(self, flops: int, memory: int) -> None:
        self.flops, self.peak = self.flops + flops, max(self.peak, memory)

    def _count_pass(self, net: nn.Module, rows: int) -> None:
        """Adds the cost of a forward pass, which stores no activations."""
        work = self._slots[id(net)].work(self.zoo, 1)
        self.charge(work.forward_flops * rows, work.parameter_bytes)
