"""The local loop: batches drawn before it starts, gradients edited inside it, one number read after it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Batch, BufferLayout, Edit, Examples, Fit, Local, Loss
from potluck.learn.losses import BlendGradients, JointLoss, Turns
from potluck.learn.optimisers import SplitOptimiser, clip_gradients, make_optimiser

if TYPE_CHECKING:
    from collections.abc import Iterator

Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
"""How exactly local training computes. Weights, gradients and optimisers are float32 throughout; "tf32" and "bf16" let
matrix products and convolutions round their inputs."""


@dataclass(frozen=True, eq=False)
class FitJob:
    """A fit with everything it needs, ready to run: alone, stacked with others, or captured as a CUDA graph."""

    net: nn.Module
    examples: Examples
    local: Local
    lr: float
    loss: Loss
    edits: Sequence[Edit]
    rng: torch.Generator
    """Draws the order of rows and the augmentations."""
    weights: Mapping[str, Tensor]
    """The network's trainable weights."""
    want_gradient: bool = False
    precision: Precision = "fp32"
    noise: int | None = None
    """The seed for what the network draws from torch's own generator, as dropout does; None: it draws nothing."""
    kind: Hashable = None
    """Equal for networks that differ in nothing but their weights; None: the network cannot be stacked."""
    buffer: tuple[Tensor, BufferLayout] | None = None
    """The one buffer in which the weights lie, if they do, and where each of them is."""

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """While this lasts, torch's own generator is this job's; afterwards it is as it was."""
        with torch.random.fork_rng():
            torch.manual_seed(self.noise or 0)
            yield


def run_fit(job: FitJob) -> Fit:
    """Trains a network in place, by itself."""
    batches, draws = draw_batches(job.examples, job.local, job.rng)
    steps = LocalSteps(job.net, job.weights, job.local, job.lr, job.edits, job.want_gradient, job.precision)
    losses: list[Tensor] = []
    if not job.net.training:
        job.net.train()
    with nullcontext() if job.noise is None else job.seeded():
        for number, (rows, drawn) in enumerate(zip(batches, draws, strict=True)):
            loss = job.loss.turn(number) if isinstance(job.loss, Turns) else job.loss
            losses.append(steps.step(loss, job.examples.batch(rows, drawn)))
    return fit_result(steps, batches, float(torch.stack(losses).mean()) if losses else float("nan"))


def trainable_weights(net: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable weights of a live network, by name."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def batch_rows(samples: int, local: Local, rng: torch.Generator) -> list[Tensor]:
    """The rows of every batch of a client's round, in order."""
    if samples == 0:
        return []
    if local.steps is None and local.epochs == 1 and samples <= local.batch:
        return [torch.randperm(samples, generator=rng)]
    batches: list[Tensor] = []
    if local.steps is None:
        for _ in range(local.epochs):
            batches.extend(torch.split(torch.randperm(samples, generator=rng), local.batch))
        return batches
    while len(batches) < local.steps:
        batches.extend(torch.split(torch.randperm(samples, generator=rng), local.batch))
    return batches[: local.steps]


def draw_batches(examples: Examples, local: Local, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor | None]]:
    """The rows of every batch of a client's round, and the random numbers of their augmentation, if there is one."""
    batches = batch_rows(len(examples), local, rng)
    return batches, [examples.augment.draw(len(rows), rng) if examples.augment else None for rows in batches]


def fit_result(steps: LocalSteps, batches: Sequence[Tensor], loss: float) -> Fit:
    """What is told of local steps along these batches."""
    count = max(len(batches), 1)
    return Fit(
        net=steps.net,
        steps=len(batches),
        samples=sum(map(len, batches)),
        lr=steps.lr,
        loss=loss,
        last=batches[-1] if batches else torch.zeros(0, dtype=torch.long),
        gradient={name: total / count for name, total in zip(steps.names, steps.sums, strict=True)}
        if steps.sums
        else None,
    )


class LocalSteps:
    """One client's optimiser steps: each changes the weights in place and never asks a tensor for its number."""

    def __init__(
        self,
        net: nn.Module,
        weights: Mapping[str, Tensor],
        local: Local,
        lr: float,
        edits: Sequence[Edit] = (),
        want_gradient: bool = False,
        precision: Precision = "fp32",
    ) -> None:
        self.net, self.weights, self.local, self.lr, self.edits = net, weights, local, lr, edits
        self.names, self.live = list(weights), list(weights.values())
        self.hardware = self.live[0].device if self.live else torch.device("cpu")
        self.precision = precision
        # Of gradients before edits (a joint loss's main ones); empty unless they are wanted.
        self.sums = [torch.zeros_like(weight) for weight in self.live] if want_gradient else []
        self.optimiser = make_optimiser(local, lr, self.hardware)
        self.split: SplitOptimiser | None = None

    def reset(self, lr: float) -> None:
        """Starts again at this rate; the weights are not touched."""
        self.lr = lr
        self.optimiser.reset(lr)
        if self.sums:
            torch._foreach_zero_(self.sums)

    def step(self, loss: Loss, batch: Batch) -> Tensor:
        """One optimiser step; the loss before it."""
        value, grads, edits = self._gradients(loss, batch)
        with torch.no_grad():
            if self.sums:
                torch._foreach_add_(self.sums, grads)
            if edits:
                edited: Mapping[str, Tensor] = dict(zip(self.names, grads, strict=True))
                for edit in edits:
                    edited = edit(edited, self.weights)
                grads = [edited[name] for name in self.names]
            self.optimiser(self.live, self._clip(grads))
        if isinstance(loss, JointLoss) and self.split is not None and loss.blend is None:
            inside = [self.weights[name] for name in loss.reached(self.names)]
            _, aside = self._gradient(loss.aside, batch, inside)
            with torch.no_grad():
                self.split.some(inside, self._clip(aside))
        return value

    def _gradients(self, loss: Loss, batch: Batch) -> tuple[Tensor, list[Tensor], Sequence[Edit]]:
        """The loss, its gradients, and the edits that they go through."""
        if not isinstance(loss, JointLoss):
            return *self._gradient(loss, batch, self.live), self.edits
        reached = loss.reached(self.names)
        value, grads = self._gradient(loss.main, batch, self.live)
        if loss.blend is None:
            if self.split is None:
                chosen = [name in reached for name in self.names]
                self.optimiser = self.split = SplitOptimiser(self.local, self.lr, chosen, self.hardware)
            return value, grads, self.edits
        _, aside = self._gradient(loss.aside, batch, [self.weights[name] for name in reached])
        return value, grads, (*self.edits, BlendGradients(dict(zip(reached, aside, strict=True)), loss.blend))

    def _gradient(self, loss: Loss, batch: Batch, of: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        with autocast(self.precision, self.hardware):
            value = loss(self.net, batch)
        return value.detach(), list(torch.autograd.grad(value, of, materialize_grads=True))

    def _clip(self, grads: list[Tensor]) -> list[Tensor]:
        return grads if self.local.clip is None else clip_gradients(grads, self.local.clip)


def autocast(precision: Precision, hardware: torch.device) -> AbstractContextManager[object]:
    """While this lasts, forward passes round as a precision says."""
    if precision != "bf16":
        return nullcontext()
    # A cache of rounded weights would be captured once and grow stale.
    return torch.autocast(hardware.type, torch.bfloat16, cache_enabled=False)


def gather_statistics(net: nn.Module, examples: Examples, batch: int, loss: Loss, rng: torch.Generator) -> int:
    """One pass in training mode without gradients, in which batch norms gather statistics; the number of batches."""
    net.train()
    rows: list[Tensor] = list(torch.split(torch.randperm(len(examples), generator=rng), batch))
    with torch.no_grad():
        for some in rows:
            loss(net, examples[some])
    return len(rows)
