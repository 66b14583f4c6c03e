"""Local training whose steps are captured once and replayed: on a GPU a step is launched whole, as a CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core import Batch, Edit, Examples, Fit, Loss
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
"""Steps that run as they are before one of their kind is captured, where batches are smaller than captured ones: the
last of an epoch. Capturing takes as long as about so many steps, and there may be a size for every client."""

Kind = tuple[int, int]
"""Of a step: the rows of its batch, and whose turn it is among losses that take turns."""


def capture_key(job: FitJob, resident: bool) -> Hashable:
    """What jobs for one network must share to use one trainer; a `TypeError` says why this one cannot be captured.

    Columns that stay where they are go by their identity; others are copied, and go by their shapes.
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
    """Trains one network in one way, with everything that a step touches at a fixed place in memory."""

    def __init__(self, job: FitJob, resident: bool, stream: torch.cuda.Stream | None, policy: CapturePolicy) -> None:
        self.stream, self.policy = stream, policy
        # Tensors of its own, to be filled with each client's.
        self.loss: Loss = map_tensors(job.loss, torch.clone)
        self.edits: list[Edit] = [map_tensors(edit, torch.clone) for edit in job.edits]
        self.steps = LocalSteps(job.net, job.weights, job.local, job.lr, self.edits, job.want_gradient, job.precision)
        columns = job.examples.columns
        if not resident:
            columns = {name: torch.empty_like(job.examples.column(name)) for name in columns}
        self.resident = resident
        # What cuts batches to a length of their own has a stand-in that does not: a captured step has one shape.
        prepare = getattr(job.examples.prepare, "steady", job.examples.prepare)
        self.examples = Examples(columns, None, prepare, job.examples.augment)
        self.noise = None if job.noise is None else GeneratorState(self.steps.hardware)
        self._allocate(0, 0, None)

    def load(self, job: FitJob) -> None:
        """Makes a client's round ready: rows, random numbers, rate, and what its loss and edits hold."""
        batches, draws = draw_batches(job.examples, job.local, job.rng)
        self.batches = batches
        self.order = job.loss.order if isinstance(job.loss, Turns) else (0,) * len(batches)
        # A copy of ordinary memory is taken before the call returns; to wait for its arrival would stop all streams.
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
            for name, column in self.examples.columns.items():
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
        """The round's next step: replayed, if one of its kind was captured."""
        with nullcontext() if self.noise is None else self.noise.installed():
            kind = len(self.batches[number]), self.order[number]
            self.graphs.run(kind, partial(self._work, kind), self._patience(kind))

    def _patience(self, kind: Kind) -> int:
        """How many steps of a kind run as they are, before one is captured."""
        return RARE if any(size > kind[0] for size, _ in self.graphs.made) else WARM_UPS

    def result(self, mean: float) -> Fit:
        """What is told of the round."""
        return fit_result(self.steps, self.batches, mean)

    def mean_loss(self) -> Tensor:
        """The mean of the round's losses, as a tensor."""
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
        """Room for so many rows and steps, and more; graphs captured with less room are dropped."""
        where = self.steps.hardware
        self.rows = torch.zeros(2 * rows, dtype=torch.long, device=where)
        self.values = torch.zeros(2 * steps, device=where)
        self.draws = None if draws is None else draws.new_zeros((2 * rows, *draws.shape[1:]), device=where)
        self.at, self.number = (torch.zeros((), dtype=torch.long, device=where) for _ in range(2))
        pool: Any = torch.cuda.graph_pool_handle() if where.type == "cuda" else None
        self.graphs = GraphCache(self.stream, pool, self.policy)


class GeneratorState:
    """One client's state of torch's own generator, installed for a step at a time."""

    def __init__(self, hardware: torch.device) -> None:
        self._hardware = hardware
        self._state = torch.empty(0)

    def seed(self, seed: int) -> None:
        self._state = torch.Generator(self._hardware).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, torch's own generator goes on where this client's noise ended."""
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


def replay(trainers: Sequence[CapturedTrainer]) -> dict[CapturedTrainer, Exception]:
    """All steps of rounds that are loaded, side by side: everyone's first, then everyone's second; what went wrong."""
    faults: dict[CapturedTrainer, Exception] = {}
    streams = [trainer.stream for trainer in trainers if trainer.stream is not None]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for number in range(max((len(trainer.batches) for trainer in trainers), default=0)):
        for trainer in trainers:
            if number < len(trainer.batches) and trainer not in faults:
                try:
                    with on_stream(trainer.stream):
                        trainer.step(number)
                except Exception as fault:
                    faults[trainer] = fault
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    return faults
