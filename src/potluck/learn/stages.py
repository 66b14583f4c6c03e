"""Features of a network: what its stages say of some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from potluck.core import Examples
from potluck.learn.hooks import forward_hooks

BATCH = 64
"""Rows in one forward pass."""


def stages(net: nn.Module) -> tuple[str, ...]:
    """The modules to compare, in forward order: stem, the children of the body, body; or else all children."""
    parts = dict(net.named_children())
    if not {"stem", "body"} <= parts.keys():
        return tuple(parts)
    return ("stem", *(f"body.{name}" for name, _ in parts["body"].named_children()), "body")


def stage_features(net: nn.Module, examples: Examples, pad: int | None = None) -> dict[str, Tensor]:
    """The features of each stage, (rows, units): means over pixels, or over tokens that are not padding.

    A stage that is called several times, or that returns no tensor, is left out.
    """
    where = next(net.parameters()).device
    seen: dict[str, list[Tensor]] = {}
    net.eval()
    with torch.no_grad(), _record_outputs(net, seen) as begin:
        for at in range(0, len(examples), BATCH):
            x = examples[slice(at, at + BATCH)]["x"].to(where)
            begin(x, pad)
            net(x)
    found = {name: torch.cat(parts) for name, parts in seen.items()}
    return {name: features for name, features in found.items() if len(features) == len(examples)}


@contextmanager
def _record_outputs(net: nn.Module, seen: dict[str, list[Tensor]]) -> Iterator[Callable[[Tensor, int | None], None]]:
    """Inside this context, the outputs of stages are added to `seen`. Call the yielded function before each batch."""
    tokens: list[Tensor] = []

    def begin(x: Tensor, pad: int | None) -> None:
        tokens[:] = [] if x.is_floating_point() else [torch.ones_like(x) if pad is None else (x != pad).long()]

    def listen(name: str) -> Callable[[nn.Module, object, object], None]:
        def note(module: nn.Module, given: object, made: object) -> None:
            if isinstance(made, Tensor) and made.dim() > 1:
                seen.setdefault(name, []).append(
                    _mean_over_positions(made, tokens[0] if tokens else None).double().cpu()
                )

        return note

    with forward_hooks(net, after={name: listen(name) for name in stages(net)}):
        yield begin


def _mean_over_positions(made: Tensor, tokens: Tensor | None) -> Tensor:
    """The mean over positions: over the pixels of a feature map, or over the tokens that are not padding."""
    if tokens is None or made.dim() != 3 or made.shape[:2] != tokens.shape:
        return made.flatten(2).mean(2) if made.dim() > 2 else made
    seen = tokens.unsqueeze(-1).to(made.dtype)
    return (made * seen).sum(1) / seen.sum(1).clamp(min=1)
