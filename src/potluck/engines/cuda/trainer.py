"""Local training with captured steps: on a GPU, a whole step is one CUDA graph, captured once and replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core import Batch, Column, Edit, Examples, Fit, Loss, client_fault
from potluck.learn import (
    WARM_UPS,
    CapturePolicy,
    FitJob,
    GraphCache,
    LocalSteps,
    Turns,
    draw_batches,
    fit_result,
    map_tensors,
    on_stream,
    structure_key,
    tensor_leaves,
)

RARE = 16
"""Steps that run uncaptured before capture, for batches smaller than captured ones (the last batch of an epoch).
Capturing takes about as long as this many steps, and every client may have another size of last batch."""

Kind = tuple[int, int]
"""The kind of a step: its batch size, and the index of its loss if losses take turns."""


def capture_key(job: FitJob, resident: bool) -> Hashable:
    """Jobs of one network with equal keys can use one trainer. A `TypeError` says why a job cannot be captured.

    Resident columns are compared by identity; others are copied, so they are compared by shape.
    """
    loss = job.loss.losses if isinstance(job.loss, Turns) else job.loss
    columns = tuple(
        (name, id(column) if resident else (len(job.examples), column.shape[1:], column.dtype))
        for name, column in sorted(job.examples.columns.items())
    )
    local = replace(job.local, lr=0.0, schedule="constant", epochs=1, steps=None, batch=1)
    how = (local, job.want_gradient, job.precision, job.noise is None, job.examples.prepare, job.examples.augment)
    return structure_key(loss), structure_key(list(job.edits)), how, columns


class CapturedTrainer:
    """Trains one network in one way; everything that a step uses has a fixed address in memory."""

    def __init__(self, job: FitJob, resident: bool, stream: torch.cuda.Stream | None, policy: CapturePolicy) -> None:
        self.stream, self.policy = stream, policy
        # Its own tensors; each client's tensors are copied into them.
        self.loss: Loss = map_tensors(job.loss, torch.clone)
        self.edits: list[Edit] = [map_tensors(edit, torch.clone) for edit in job.edits]
        self.steps = LocalSteps(job.net, job.weights, job.local, job.lr, self.edits, job.want_gradient, job.precision)
        names = () if resident else job.examples.columns
        self.copies = {name: torch.empty_like(job.examples.column(name)) for name in names}
        """Where each client's rows are copied to, unless columns are resident."""
        columns: Mapping[str, Column] = job.examples.columns if resident else self.copies
        self.resident = resident
        # A captured step needs fixed shapes: `steady` is a version of `prepare` that does not shorten batches.
        prepare = getattr(job.examples.prepare, "steady", job.examples.prepare)
        self.examples = Examples(columns, None, prepare, job.examples.augment)
        self.noise = None if job.noise is None else GeneratorState(self.steps.hardware)
        self._allocate(0, 0, None)

    def load(self, job: FitJob) -> None:
        """Loads a client's job: rows, random numbers, learning rate, and the tensors of its loss and edits."""
        batches, draws = draw_batches(job.examples, job.local, job.rng)
        self.batches = batches
        self.order = job.loss.order if isinstance(job.loss, Turns) else (0,) * len(batches)
        # The copy reads host memory before the call returns; waiting for it to arrive would stop all streams.
        rows = torch.cat(batches).to(self.rows.device, non_blocking=True)
        if self.resident and job.examples.rows is not None:
            rows = job.examples.rows[rows]
        drawn = torch.cat([one for one in draws if one is not None]) if draws[0] is not None else None
        if len(rows) > len(self.rows) or len(batches) > len(self.values):
            self._allocate(len(rows), len(batches), drawn)
        self.rows[: len(rows)] = rows
        if drawn is not None and self.draws is not None:
            self.draws[: len(drawn)] = drawn.to(self.draws.device, non_blocking=True)
        if not self.resident:
            for name, column in self.copies.items():
                column.copy_(job.examples.column(name))
        mine, theirs = tensor_leaves([self.loss, self.edits]), tensor_leaves([job.loss, list(job.edits)])
        if mine:
            torch._foreach_copy_(mine, theirs)
        if self.noise is not None and job.noise is not None:
            self.noise.seed(job.noise)
        self.at.zero_()
        self.number.zero_()
        self.steps.reset(job.lr)
        if not self.steps.net.training:
            self.steps.net.train()

    def step(self, number: int) -> None:
        """Runs step `number` of the loaded job: a replay if its kind was captured."""
        with nullcontext() if self.noise is None else self.noise.install():
            kind = len(self.batches[number]), self.order[number]
            self.graphs.run(kind, partial(self._work, kind), self._patience(kind))

    def _patience(self, kind: Kind) -> int:
        """How many steps of this kind run before one is captured."""
        return RARE if any(size > kind[0] for size, _ in self.graphs.made) else WARM_UPS

    def result(self, mean: float) -> Fit:
        """The result of the loaded job."""
        return fit_result(self.steps, self.batches, mean)

    def mean_loss(self) -> Tensor:
        """The mean training loss of the loaded job, as a tensor."""
        return self.values[: len(self.batches)].mean()

    def _work(self, kind: Kind) -> None:
        size, turn = kind
        where = self.at + torch.arange(size, device=self.at.device)
        drawn = None if self.draws is None else self.draws.index_select(0, where)
        batch: Batch = self.examples.batch(self.rows.index_select(0, where), drawn)
        loss = self.loss.losses[turn] if isinstance(self.loss, Turns) else self.loss
        value = self.steps.step(loss, batch)
        self.values.index_copy_(0, self.number.view(1), value.float().view(1))
        self.at.add_(size)
        self.number.add_(1)

    def _allocate(self, rows: int, steps: int, draws: Tensor | None) -> None:
        """Allocates space for twice this many rows and steps; graphs captured with the old memory are dropped."""
        where = self.steps.hardware
        self.rows = torch.zeros(2 * rows, dtype=torch.long, device=where)
        self.values = torch.zeros(2 * steps, device=where)
        self.draws = None if draws is None else draws.new_zeros((2 * rows, *draws.shape[1:]), device=where)
        self.at, self.number = (torch.zeros((), dtype=torch.long, device=where) for _ in range(2))
        pool: Any = torch.cuda.graph_pool_handle() if where.type == "cuda" else None
        self.graphs = GraphCache(self.stream, pool, self.policy)


class GeneratorState:
    """One client's state of torch's global generator, installed for one step at a time."""

    def __init__(self, hardware: torch.device) -> None:
        self._hardware = hardware
        self._state = torch.empty(0)

    def seed(self, seed: int) -> None:
        self._state = torch.Generator(self._hardware).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def install(self) -> Iterator[None]:
        """Inside this context, torch's global generator continues from this client's state."""
        own = torch.default_generator
        if self._hardware.type == "cuda":
            own = torch.cuda.default_generators[torch.cuda.current_device()]
        before = own.get_state()
        own.set_state(self._state)
        try:
            yield
        finally:
            self._state = own.get_state()
            own.set_state(before)


def replay(trainers: Sequence[CapturedTrainer]) -> dict[CapturedTrainer, BaseException]:
    """Runs all steps of loaded trainers side by side: every first step, then every second. Returns the failures."""
    faults: dict[CapturedTrainer, BaseException] = {}
    streams = [trainer.stream for trainer in trainers if trainer.stream is not None]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for number in range(max((len(trainer.batches) for trainer in trainers), default=0)):
        for trainer in trainers:
            if number < len(trainer.batches) and trainer not in faults:
                try:
                    with on_stream(trainer.stream):
                        trainer.step(number)
                except BaseException as fault:
                    faults[trainer] = client_fault(fault)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    return faults
