"""The local loop: rows drawn before it starts, gradients edited inside it, one number read after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Batch, Edit, Examples, Fit, Local, Loss
from potluck.learn.joint import Joint, Meeting
from potluck.learn.losses import Turns
from potluck.learn.optimisers import Apart, clip_gradients, make_optimiser

Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
"""How exactly local training computes. Weights, gradients and optimisers are float32 throughout; "tf32" and "bf16" let
matrix products and convolutions round their inputs."""


def rows(samples: int, local: Local, rng: torch.Generator) -> list[Tensor]:
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


def weights_of(net: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable weights of a live network, by name."""
    return {name: weight for name, weight in net.named_parameters() if weight.requires_grad}


def fit(
    net: nn.Module,
    examples: Examples,
    local: Local,
    lr: float,
    loss: Loss,
    edits: Sequence[Edit] = (),
    *,
    rng: torch.Generator,
    weights: Mapping[str, Tensor] | None = None,
    want_gradient: bool = False,
    precision: Precision = "fp32",
) -> Fit:
    """Trains in place. `weights` are the net's trainable weights, where the caller has them at hand."""
    weights = weights_of(net) if weights is None else weights
    batches, dice = draw_batches(examples, local, rng)
    way = LocalSteps(net, weights, local, lr, edits, want_gradient, precision)
    losses: list[Tensor] = []
    if not net.training:
        net.train()
    for number, (batch, thrown) in enumerate(zip(batches, dice, strict=True)):
        current = loss.turn(number) if isinstance(loss, Turns) else loss
        losses.append(way.step(current, examples.batch(batch, thrown)))
    return fitted(way, batches, lr, float(torch.stack(losses).mean()) if losses else float("nan"))


def draw_batches(examples: Examples, local: Local, rng: torch.Generator) -> tuple[list[Tensor], list[Tensor | None]]:
    """The rows of every batch of a client's round, and the dice of those that are varied."""
    batches = rows(len(examples), local, rng)
    return batches, [examples.augment.draw(len(batch), rng) if examples.augment else None for batch in batches]


def fitted(way: LocalSteps, batches: Sequence[Tensor], lr: float, loss: float) -> Fit:
    """What is told of a descent along these batches."""
    return Fit(
        steps=len(batches),
        samples=sum(map(len, batches)),
        lr=lr,
        loss=loss,
        last=batches[-1] if batches else torch.zeros(0, dtype=torch.long),
        gradient={name: total / max(len(batches), 1) for name, total in zip(way.names, way.sums, strict=True)}
        if way.sums
        else None,
    )


class LocalSteps:
    """One client's way down: what every step does to its weights, in place, without asking a tensor for its number."""

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
        self.move = make_optimiser(local, lr, self.hardware)
        self.apart: Apart | None = None

    def reset(self, lr: float) -> None:
        """Back to the start of a way down, at this rate; the weights are not touched."""
        self.lr = lr
        self.move.reset(lr)
        if self.sums:
            torch._foreach_zero_(self.sums)

    def step(self, loss: Loss, batch: Batch) -> Tensor:
        """One step down this loss; its value before the step."""
        if isinstance(loss, Joint):
            return self._joint(loss, batch)
        value, grads = self._gradient(loss, batch, self.live)
        self._descend(grads, self.edits)
        return value

    def _joint(self, loss: Joint, batch: Batch) -> Tensor:
        reached = loss.reached(self.names)
        inside = [self.weights[name] for name in reached]
        value, grads = self._gradient(loss.main, batch, self.live)
        if loss.blend is not None:
            _, aside = self._gradient(loss.aside, batch, inside)
            met = Meeting(dict(zip(reached, aside, strict=True)), loss.blend)
            self._descend(grads, (*self.edits, met))
            return value
        if self.apart is None:
            self.apart = Apart(self.local, self.lr, [name in reached for name in self.names], self.hardware)
            self.move = self.apart
        self._descend(grads, self.edits)
        _, aside = self._gradient(loss.aside, batch, inside)
        with torch.no_grad():
            self.apart.some(inside, self._clipped(aside))
        return value

    def _gradient(self, loss: Loss, batch: Batch, of: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        with autocast(self.precision, self.hardware):
            value = loss(self.net, batch)
        return value.detach(), list(torch.autograd.grad(value, of, materialize_grads=True))

    def _descend(self, grads: list[Tensor], edits: Sequence[Edit]) -> None:
        with torch.no_grad():
            if self.sums:
                torch._foreach_add_(self.sums, grads)
            if edits:
                edited: Mapping[str, Tensor] = dict(zip(self.names, grads, strict=True))
                for edit in edits:
                    edited = edit(edited, self.weights)
                grads = [edited[name] for name in self.names]
            self.move(self.live, self._clipped(grads))

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        return grads if self.local.clip is None else clip_gradients(grads, self.local.clip)


def autocast(precision: Precision, hardware: torch.device) -> AbstractContextManager[object]:
    """While this lasts, forward passes round as a precision says."""
    if precision != "bf16":
        return nullcontext()
    # A cache of rounded weights would be captured once and grow stale.
    return torch.autocast(hardware.type, torch.bfloat16, cache_enabled=False)
