"""The local loop: rows drawn before it starts, gradients edited inside it, one number read after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from potluck.core import Edit, Examples, Fit, Grads, Local, Loss
from potluck.learn.descend import clipped, stepper
from potluck.learn.losses import Turns


def rows(samples: int, local: Local, rng: torch.Generator) -> list[Tensor]:
    """The rows of every batch of a client's round, in order."""
    if samples == 0:
        return []
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
) -> Fit:
    """Trains in place. `weights` are the net's trainable weights, where the caller has them at hand."""
    weights = weights_of(net) if weights is None else weights
    names, live = list(weights), list(weights.values())
    batches = rows(len(examples), local, rng)
    step = stepper(local, lr)
    losses: list[Tensor] = []
    sums = [torch.zeros_like(weight) for weight in live] if want_gradient else []
    if not net.training:
        net.train()
    for number, batch in enumerate(batches):
        current = loss.turn(number) if isinstance(loss, Turns) else loss
        value = current(net, examples[batch])
        grads = list(torch.autograd.grad(value, live, materialize_grads=True))
        losses.append(value.detach())
        with torch.no_grad():
            if want_gradient:
                torch._foreach_add_(sums, grads)
            if edits:
                grads = _edited(edits, dict(zip(names, grads, strict=True)), weights, names)
            if local.clip is not None:
                grads = clipped(grads, local.clip)
            step(live, grads)
    return Fit(
        steps=len(batches),
        samples=sum(map(len, batches)),
        lr=lr,
        loss=float(torch.stack(losses).mean()) if losses else float("nan"),
        last=batches[-1] if batches else torch.zeros(0, dtype=torch.long),
        gradient={name: total / max(len(batches), 1) for name, total in zip(names, sums, strict=True)}
        if sums
        else None,
    )


def _edited(edits: Sequence[Edit], grads: Grads, weights: Mapping[str, Tensor], names: list[str]) -> list[Tensor]:
    for edit in edits:
        grads = edit(grads, weights)
    return [grads[name] for name in names]
