"""Where a client's half runs: live networks that serve task after task, and the device a task sees."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from potluck.core import (
    EMPTY,
    Arrays,
    Cost,
    Edit,
    Examples,
    Fit,
    Local,
    Loss,
    Memory,
    Model,
    Problem,
    Reply,
    Skip,
    Spec,
    Task,
    Zoo,
    answer,
    payload,
    stream,
)
from potluck.learn import fit, observe, weights_of
from potluck.parts import Part


class Shard(Protocol):
    """What one device has of the data."""

    @property
    def train(self) -> Examples: ...
    @property
    def validation(self) -> Examples: ...
    @property
    def test(self) -> Examples: ...
    @property
    def labels(self) -> Sequence[int]: ...


class Shelf(Protocol):
    """Who has which examples. The server's shard is the public set and the server's own splits."""

    @property
    def public(self) -> Examples: ...
    def shard(self, client: str) -> Shard: ...


@dataclass(frozen=True, eq=False)
class World:
    """All that a device needs besides its task: the method, the networks, the data, the problem, the seed."""

    method: Any
    zoo: Zoo
    shelf: Shelf
    problem: Problem
    seed: int
    hardware: str = "cpu"
    """Where networks live and examples lie while a site works: torch's name of it. Models at rest stay on the CPU."""


@dataclass(frozen=True, eq=False)
class Letter:
    """A task on its way to a device, with the memory the client starts from."""

    task: Task
    memory: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a letter: a reply and the memory after it, or why there is none."""

    task: Task
    reply: Reply | None = None
    memory: Mapping[str, Any] | None = None
    """None: unchanged."""
    fault: str = ""
    """What a failed client's half raised, or a note that it had nothing to do."""
    skipped: bool = False


class _Live:
    """A live network that is filled anew for every model of its spec."""

    def __init__(self, spec: Spec, net: nn.Module) -> None:
        self.spec, self.net = spec, net
        self.tensors = dict(net.state_dict(keep_vars=True))
        self.weights = weights_of(net)
        self.noisy = any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in net.modules())

    def fill(self, arrays: Arrays) -> None:
        if arrays.keys() != self.tensors.keys():
            odd = sorted(arrays.keys() ^ self.tensors.keys())
            raise ValueError(f"a {self.spec.family} has other tensors than were sent: {', '.join(odd[:3])}")
        with torch.no_grad():
            torch._foreach_copy_(list(self.tensors.values()), [arrays[name] for name in self.tensors])


class Site:
    """Answers letters, one at a time, for any client of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hardware = torch.device(world.hardware)
        self._nets: dict[tuple[Spec, int], _Live] = {}
        self._columns: dict[int, tuple[Mapping[str, Tensor], dict[str, Tensor]]] = {}

    def answer(self, letter: Letter) -> Outcome:
        """Runs the client's half; whatever it raises becomes the outcome's fault."""
        started = time.perf_counter()
        task = letter.task
        bare = replace(task, models=EMPTY, arrays=EMPTY)
        device = SiteDevice(self, task, dict(letter.memory))
        try:
            reply = answer(self.world.method, task, device)
            cost = Cost(payload(task), payload(reply), device.flops, device.peak, time.perf_counter() - started)
        except Skip as note:
            return Outcome(bare, fault=str(note), skipped=True)
        except Exception as fault:
            return Outcome(bare, fault=f"{type(fault).__name__}: {fault}")
        return Outcome(bare, replace(reply, task=bare, cost=cost), _changed(letter.memory, device.memory))

    def live(self, spec: Spec, number: int) -> _Live:
        """The site's n-th network of this spec; a task that builds several of one spec gets several."""
        found = self._nets.get((spec, number))
        if found is None:
            net = self.world.zoo.build(Model(spec), stream(0, "blank")).to(self.hardware)
            found = self._nets[spec, number] = _Live(spec, net)
        return found

    def here(self, examples: Examples) -> Examples:
        """These examples where the networks are; the columns they share move once."""
        if self.hardware.type == "cpu":
            return examples
        key = id(next(iter(examples.columns.values())))
        if key not in self._columns:
            moved = {name: column.to(self.hardware) for name, column in examples.columns.items()}
            self._columns[key] = (examples.columns, moved)
        rows = None if examples.rows is None else examples.rows.to(self.hardware)
        return Examples(self._columns[key][1], rows, examples.prepare)


def _changed(before: Mapping[str, Any], after: Memory) -> Memory | None:
    """The memory after a task, or None where nothing was put into it. Values at rest are replaced, never altered."""
    same = before.keys() == after.keys() and all(after[name] is value for name, value in before.items())
    return None if same else after


class SiteDevice:
    """The device of one task."""

    def __init__(self, site: Site, task: Task, memory: Memory) -> None:
        world = site.world
        self.client, self.round = task.to, task.round
        self.memory, self.zoo, self.problem = memory, world.zoo, world.problem
        self.flops = self.peak = 0
        self._site, self._task = site, task
        self._built: dict[Spec, int] = {}
        self._lives: dict[int, _Live] = {}
        self._rng: torch.Generator | None = None
        self._shard: Shard | None = None

    @property
    def shard(self) -> Shard:
        if self._shard is None:
            self._shard = self._site.world.shelf.shard(self.client)
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
        return self._site.here(self._site.world.shelf.public)

    @property
    def rng(self) -> torch.Generator:
        if self._rng is None:
            task = self._task
            self._rng = stream(self._site.world.seed, "task", task.round, task.to, task.verb, task.key)
        return self._rng

    def build(self, model: Model) -> nn.Module:
        number = self._built.get(model.spec, 0)
        self._built[model.spec] = number + 1
        live = self._site.live(model.spec, number)
        self._lives[id(live.net)] = live
        arrays = model.arrays
        if arrays is None:
            born = stream(self._site.world.seed, "birth", self.client, model.spec.key)
            arrays = self.zoo.fresh(model.spec, born).arrays or {}
        live.fill(arrays)
        return live.net

    def rest(self, net: nn.Module) -> Arrays:
        tensors = self._lives[id(net)].tensors
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def fit(
        self,
        net: nn.Module,
        examples: Examples,
        local: Local,
        loss: Loss | None = None,
        edits: Sequence[Edit] = (),
        want_gradient: bool = False,
    ) -> Fit:
        live = self._lives[id(net)]
        hardware = self._site.hardware
        with self._noise(live):
            done = fit(
                net,
                examples,
                local,
                local.rate(self.round),
                located(loss or self.problem.loss, hardware),
                [located(edit, hardware) for edit in edits],
                rng=self.rng,
                weights=live.weights,
                want_gradient=want_gradient,
            )
        self._count(live.spec, min(local.batch, len(examples)), local, done)
        return done

    @contextmanager
    def _noise(self, live: _Live) -> Iterator[None]:
        """Dropout draws from torch's own generator: seeded from this task's stream, and put back as it was."""
        if not live.noisy:
            yield
            return
        seed = int(torch.randint(2**62, (), generator=self.rng))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield

    def observe(self, net: nn.Module, examples: Examples, batch: int) -> int:
        seen = observe(net, examples, batch, self.problem.loss, self.rng)
        if seen:
            work = self.zoo.cost(self._lives[id(net)].spec, batch)
            self.flops += work.flops * len(examples) // (3 * batch)  # forward is a third of a training step
            self.peak = max(self.peak, work.parameter_bytes)
        return seen

    def _count(self, spec: Spec, batch: int, local: Local, done: Fit) -> None:
        """Counts the work: FLOPs of the rows seen; memory of weights, gradients, optimiser slots and activations."""
        if not done.steps:
            return
        work = self.zoo.cost(spec, batch)
        self.flops += work.flops * done.samples // batch
        slots = 2 if local.optimiser == "adam" else int(local.momentum > 0)
        self.peak = max(self.peak, work.parameter_bytes * (2 + slots) + work.activation_bytes)


def located(value: Any, hardware: torch.device) -> Any:
    """A loss or an edit with its tensors where the networks are."""
    if hardware.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(hardware)
    if isinstance(value, tuple):
        return tuple(located(item, hardware) for item in value)
    if isinstance(value, Mapping):
        return {name: located(item, hardware) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type | Part):
        return replace(value, **{field.name: located(getattr(value, field.name), hardware) for field in fields(value)})
    return value
