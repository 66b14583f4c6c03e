"""Local training that is recorded once and played again: on a GPU a step is launched whole, as a CUDA graph."""

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
    WARM,
    CapturePolicy,
    FitJob,
    GraphCache,
    LocalSteps,
    Turns,
    draw_batches,
    fitted,
    map_tensors,
    on,
    structure_key,
    tensor_leaves,
)

RARE = 16
"""Steps that run as they are before one of their kind is recorded, where batches are smaller than recorded ones: the
last of an epoch. Recording takes as long as about so many steps, and there may be a size for every client."""

Kind = tuple[int, int]
"""Of a step: the rows of its batch, and whose turn it is among losses that take turns."""


def recipe(job: FitJob, resident: bool) -> Hashable:
    """What wishes for one network must share to be trained by one track; a `TypeError` says why this one cannot be.

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
    """One way to train one network, with everything that a step touches at a fixed place in memory."""

    def __init__(
        self, job: FitJob, resident: bool, stream: torch.cuda.Stream | None, recordings: CapturePolicy
    ) -> None:
        self.stream, self.recordings = stream, recordings
        # Tensors of its own, to be filled with each client's.
        self.loss: Loss = map_tensors(job.loss, torch.clone)
        self.edits: list[Edit] = [map_tensors(edit, torch.clone) for edit in job.edits]
        self.way = LocalSteps(job.net, job.weights, job.local, job.lr, self.edits, job.want_gradient, job.precision)
        columns = job.examples.columns
        if not resident:
            columns = {name: torch.empty_like(job.examples.column(name)) for name in columns}
        self.resident = resident
        # What cuts batches to a length of their own has a stand-in that does not: a recorded step has one shape.
        prepare = getattr(job.examples.prepare, "steady", job.examples.prepare)
        self.examples = Examples(columns, None, prepare, job.examples.augment)
        self.noise = None if job.noise is None else Noise(self.way.hardware)
        self._room(0, 0, None)

    def load(self, job: FitJob) -> None:
        """Makes a client's round ready: rows, dice, rate, and what its loss and edits hold."""
        batches, dice = draw_batches(job.examples, job.local, job.rng)
        self.batches, self.lr = batches, job.lr
        self.order = job.loss.order if isinstance(job.loss, Turns) else (0,) * len(batches)
        # A copy of ordinary memory is taken before the call returns; to wait for its arrival would stop all streams.
        rows = torch.cat(batches).to(self.rows.device, non_blocking=True)
        if self.resident and job.examples.rows is not None:
            rows = job.examples.rows[rows]
        thrown = torch.cat([one for one in dice if one is not None]) if dice[0] is not None else None
        if len(rows) > len(self.rows) or len(batches) > len(self.values):
            self._room(len(rows), len(batches), thrown)
        self.rows[: len(rows)] = rows
        if thrown is not None and self.dice is not None:
            self.dice[: len(thrown)] = thrown.to(self.dice.device, non_blocking=True)
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
        self.way.reset(job.lr)
        if not self.way.net.training:
            self.way.net.train()

    def step(self, number: int) -> None:
        """The round's next step: played, if one of its kind was recorded."""
        with nullcontext() if self.noise is None else self.noise.lent():
            kind = len(self.batches[number]), self.order[number]
            self.tapes.do(kind, partial(self._work, kind), self._patience(kind))

    def _patience(self, kind: Kind) -> int:
        """How many steps of a kind run as they are, before one is recorded."""
        return RARE if any(size > kind[0] for size, _ in self.tapes.made) else WARM

    def fit(self, mean: float) -> Fit:
        """What is told of the round."""
        return fitted(self.way, self.batches, self.lr, mean)

    def mean(self) -> Tensor:
        """The mean of the round's losses, as a tensor."""
        return self.values[: len(self.batches)].mean()

    def _work(self, kind: Kind) -> None:
        size, turn = kind
        where = self.at + torch.arange(size, device=self.at.device)
        drawn = None if self.dice is None else self.dice.index_select(0, where)
        batch: Batch = self.examples.batch(self.rows.index_select(0, where), drawn)
        loss = self.loss.losses[turn] if isinstance(self.loss, Turns) else self.loss
        value = self.way.step(loss, batch)
        self.values.index_copy_(0, self.number.view(1), value.float().view(1))
        self.at.add_(size)
        self.number.add_(1)

    def _room(self, rows: int, steps: int, dice: Tensor | None) -> None:
        """Room for so many rows and steps, and more; what was recorded on smaller room is forgotten."""
        where = self.way.hardware
        self.rows = torch.zeros(2 * rows, dtype=torch.long, device=where)
        self.values = torch.zeros(2 * steps, device=where)
        self.dice = None if dice is None else dice.new_zeros((2 * rows, *dice.shape[1:]), device=where)
        self.at, self.number = (torch.zeros((), dtype=torch.long, device=where) for _ in range(2))
        pool: Any = torch.cuda.graph_pool_handle() if where.type == "cuda" else None
        self.tapes = GraphCache(self.stream, pool, self.recordings)


class Noise:
    """What a network draws from torch's own generator, as one client's: lent for a step at a time."""

    def __init__(self, hardware: torch.device) -> None:
        self._hardware = hardware
        self._state = torch.empty(0)

    def seed(self, seed: int) -> None:
        self._state = torch.Generator(self._hardware).manual_seed(seed).get_state()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
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


def play(tracks: Sequence[CapturedTrainer]) -> dict[CapturedTrainer, Exception]:
    """All steps of rounds that are loaded, side by side: everyone's first, then everyone's second; what went wrong."""
    faults: dict[CapturedTrainer, Exception] = {}
    streams = [track.stream for track in tracks if track.stream is not None]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for number in range(max((len(track.batches) for track in tracks), default=0)):
        for track in tracks:
            if number < len(track.batches) and track not in faults:
                try:
                    with on(track.stream):
                        track.step(number)
                except Exception as fault:
                    faults[track] = fault
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    return faults
