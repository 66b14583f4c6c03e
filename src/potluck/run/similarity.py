"""How alike two networks see the same rows: features of every stage, their CKA, and their picture in the plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from potluck.core import Examples

BATCH = 64
"""Rows looked at together."""


def cka(one: Tensor, other: Tensor) -> float | None:
    """Linear centred kernel alignment of two sets of features, of (rows, units) each; None where either is constant.

    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019,
    https://arxiv.org/abs/1905.00414. 1: the same up to turning and stretching as a whole; 0: nothing in common.
    """
    a, b = _centred(one), _centred(other)
    scale = (a.T @ a).norm() * (b.T @ b).norm()
    return float((a.T @ b).square().sum() / scale) if scale > 0 else None


def plane(features: Tensor) -> tuple[Tensor, list[float]]:
    """The two principal components of each row, and the share of the variance that each of them tells."""
    left, sizes, right = torch.linalg.svd(_centred(features), full_matrices=False)
    # A direction and its opposite are as good: let the largest entry point up.
    signs = right.gather(1, right.abs().argmax(1, keepdim=True)).sign().T
    found = torch.zeros(len(features), 2, dtype=left.dtype)
    shares, kept = torch.zeros(2, dtype=left.dtype), min(2, len(sizes))
    found[:, :kept] = (left * sizes * signs)[:, :kept]
    if sizes.any():
        shares[:kept] = (sizes.square() / sizes.square().sum())[:kept]
    return found, shares.tolist()


def stages(net: nn.Module) -> tuple[str, ...]:
    """The modules of a network to look at, in forward order: stem, what the body is made of, body; or all its parts."""
    parts = dict(net.named_children())
    if not {"stem", "body"} <= parts.keys():
        return tuple(parts)
    return ("stem", *(f"body.{name}" for name, _ in parts["body"].named_children()), "body")


def staged(net: nn.Module, examples: Examples, pad: int | None = None) -> dict[str, Tensor]:
    """What a network's stages make of examples: (rows, units), means over pixels or over tokens that are no padding.

    A stage that is called several times, or gives no tensor, is left out.
    """
    where = next(net.parameters()).device
    seen: dict[str, list[Tensor]] = {}
    net.eval()
    with torch.no_grad(), _watching(net, seen) as begin:
        for at in range(0, len(examples), BATCH):
            x = examples[slice(at, at + BATCH)]["x"].to(where)
            begin(x, pad)
            net(x)
    found = {name: torch.cat(parts) for name, parts in seen.items()}
    return {name: features for name, features in found.items() if len(features) == len(examples)}


@contextmanager
def _watching(net: nn.Module, seen: dict[str, list[Tensor]]) -> Iterator[Callable[[Tensor, int | None], None]]:
    """Notes what stages hand on, while this lasts; it is to be told of each batch that begins."""
    tokens: list[Tensor] = []

    def begin(x: Tensor, pad: int | None) -> None:
        tokens[:] = [] if x.is_floating_point() else [torch.ones_like(x) if pad is None else (x != pad).long()]

    def listen(name: str) -> Callable[[nn.Module, object, object], None]:
        def note(module: nn.Module, given: object, made: object) -> None:
            if isinstance(made, Tensor) and made.dim() > 1:
                seen.setdefault(name, []).append(_pooled(made, tokens[0] if tokens else None).double().cpu())

        return note

    handles = [net.get_submodule(name).register_forward_hook(listen(name)) for name in stages(net)]
    try:
        yield begin
    finally:
        for handle in handles:
            handle.remove()


def _pooled(made: Tensor, tokens: Tensor | None) -> Tensor:
    """The mean over places: of a map those of its channels, of a row of tokens those that are no padding."""
    if tokens is None or made.dim() != 3 or made.shape[:2] != tokens.shape:
        return made.flatten(2).mean(2) if made.dim() > 2 else made
    seen = tokens.unsqueeze(-1).to(made.dtype)
    return (made * seen).sum(1) / seen.sum(1).clamp(min=1)


def _centred(features: Tensor) -> Tensor:
    features = features.to(torch.float64)
    return features - features.mean(0)
