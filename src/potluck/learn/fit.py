"""The loop of local training: batches are drawn before it, gradients are edited in it, the loss is read after it."""

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
"""The numerical precision of local training. Weights, gradients and optimisers are always float32; with "tf32" and
"bf16", matrix products and convolutions round their inputs."""


@dataclass(frozen=True, eq=False)
class FitJob:
    """One local training, ready to run: alone, stacked with others, or captured as a CUDA graph."""

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
    """The seed of torch's global generator, which dropout uses; None: the network draws nothing."""
    kind: Hashable = None
    """Equal for networks that differ only in their weights; None: the network cannot be stacked."""
    buffer: tuple[Tensor, BufferLayout] | None = None
    """The flat buffer that holds the weights, and its layout; None: there is no such buffer."""

    @contextmanager
    def seed_torch(self) -> Iterator[None]:
        """Inside this context, torch's global generator has this job's seed; afterwards its state is restored."""
        with torch.random.fork_rng():
            torch.manual_seed(self.noise or 0)
            yield


def run_fit(job: FitJob) -> Fit:
    """Trains one network in place."""
    batches, draws = draw_batches(job.examples, job.local, job.rng)
    steps = LocalSteps(job.net, job.weights, job.local, job.lr, job.edits, job.want_gradient, job.precision)
    losses: list[Tensor] = []
    if not job.net.training:
        job.net.train()
    with nullcontext() if job.noise is None else job.seed_torch():
        for number, (rows, drawn) in enumerate(zip(batches, draws, strict=True)):
            loss = job.loss.turn(number) if isinstance(job.loss, Turns) else job.loss
            losses.append(steps.step(loss, job.examples.batch(rows, drawn)))
    return fit_result(steps, batches, _mean_loss(losses))


def _mean_loss(losses: Sequence[Tensor]) -> float:
    if len(losses) == 1:
        return float(losses[0])
    return float(torch.stack(list(losses)).mean()) if losses else float("nan")


def trainable_weights(net: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable weights of a live network, by name."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def batch_rows(samples: int, local: Local, rng: torch.Generator) -> list[Tensor]:
    """The rows of every batch of one local training, in order."""
    if samples == 0:
        return []
    if local.steps is None and local.epochs == 1 and samples <= local.batch:
        return [torch.randperm(samples, generator=rng)]
    batches: list[Tensor] = []
    if local.steps is None:
        for _ in range(local.epochs):
            batches.extend(_one_pass(samples, local, rng))
        return batches
    while len(batches) < local.steps:
        batches.extend(_one_pass(samples, local, rng))
    return batches[: local.steps]


def _one_pass(samples: int, local: Local, rng: torch.Generator) -> Sequence[Tensor]:
    return torch.split(torch.randperm(samples, generator=rng), local.batch)[: local.batches(samples)]


def draw_batches(examples: Examples, local: Local, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor | None]]:
    """The rows of every batch of one local training, and the random numbers of their augmentation, if there is one."""
    batches = batch_rows(len(examples), local, rng)
    return batches, [examples.augment.draw(len(rows), rng) if examples.augment else None for rows in batches]


def fit_result(steps: LocalSteps, batches: Sequence[Tensor], loss: float) -> Fit:
    """The result of local steps on these batches."""
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
    """One client's optimiser steps: each changes the weights in place and reads no value from the GPU."""

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
        # Sums of gradients before edits (of a joint loss: of its main loss); empty unless they are requested.
        self.sums = [torch.zeros_like(weight) for weight in self.live] if want_gradient else []
        self.optimiser = make_optimiser(local, lr, self.hardware)
        self.split: SplitOptimiser | None = None

    def reset(self, lr: float) -> None:
        """Starts again with this learning rate; the weights stay."""
        self.lr = lr
        self.optimiser.reset(lr)
        if self.sums:
            torch._foreach_zero_(self.sums)

    def step(self, loss: Loss, batch: Batch) -> Tensor:
        """Does one optimiser step and returns the loss before it."""
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
            inside = [self.weights[name] for name in loss.names_in_reach(self.names)]
            _, aside = self._gradient(loss.aside, batch, inside)
            with torch.no_grad():
                self.split.some(inside, self._clip(aside))
        return value

    def _gradients(self, loss: Loss, batch: Batch) -> tuple[Tensor, list[Tensor], Sequence[Edit]]:
        """The loss, its gradients, and the edits to apply to them."""
        if not isinstance(loss, JointLoss):
            return *self._gradient(loss, batch, self.live), self.edits
        reached = loss.names_in_reach(self.names)
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
    """A context in which forward passes use this precision."""
    if precision != "bf16":
        return nullcontext()
    # No cache of rounded weights: a CUDA graph would capture it once and then replay old weights.
    return torch.autocast(hardware.type, torch.bfloat16, cache_enabled=False)


def gather_statistics(net: nn.Module, examples: Examples, batch: int, loss: Loss, rng: torch.Generator) -> int:
    """One pass in training mode without gradients, to gather batch norm statistics. Returns the number of batches."""
    net.train()
    rows: list[Tensor] = list(torch.split(torch.randperm(len(examples), generator=rng), batch))
    with torch.no_grad():
        for some in rows:
            loss(net, examples[some])
    return len(rows)
