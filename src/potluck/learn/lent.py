"""Features that clients lend each other: what enters a network's body, and what leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from potluck.core import Batch, Spec, Zoo


@dataclass(frozen=True, eq=False)
class Lent:
    """How far a network's body is from making of lent features what other bodies made of them.

    The mean squared error over samples and entries. Gradients reach the body alone.
    """

    entering: Tensor
    leaving: Tensor
    gather: bool = False
    """Let batch norms gather running statistics of lent features too; else they only normalise them."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        body = net.get_submodule("body")
        made = body(self.entering) if self.gather else traceless(body, self.entering)
        return functional.mse_loss(made, self.leaving)


def traceless(net: nn.Module, x: Tensor) -> Tensor:
    """What a network makes of an input, its own buffers left as they were."""
    buffers = {name: buffer.detach().clone() for name, buffer in net.named_buffers()}
    out: Tensor = functional_call(net, buffers, (x,))
    return out


def features(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What enters the body and what leaves it, normalised as in training, without dropout; nothing is learned."""
    net.train()
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    with torch.no_grad():
        entering = traceless(net.get_submodule("stem"), x)
        leaving = traceless(net.get_submodule("body"), entering)
    net.train()
    return entering, leaving


def one_batch(last: Tensor, samples: int, count: int, rng: torch.Generator) -> Tensor:
    """This many of a client's rows: those of its last batch, filled up with others, again from the start if need be."""
    order = torch.randperm(samples, generator=rng)
    rows = torch.cat([last.cpu(), order[~torch.isin(order, last.cpu())]])[:count]
    return rows[torch.arange(count) % len(rows)]


@lru_cache(maxsize=256)
def seams(spec: Spec, zoo: Zoo) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes of what enters (``in``) and leaves (``out``) the body; None: the network is not stem, body, head.

    Found on a network without numbers, by watching what its parts hand on.
    """
    net, x = zoo.probe(spec, 1)
    parts = dict(net.eval().named_children())
    if not {"stem", "body", "head"} <= parts.keys():
        return None
    passed: list[Tensor] = []
    for name in ("stem", "body", "head"):
        parts[name].register_forward_hook(lambda part, given, made: passed.extend((given[0], made)))
    scores = net(x)
    chain = [x, *passed, scores]
    if len(chain) != 8 or any(one is not other for one, other in zip(chain[::2], chain[1::2], strict=True)):
        return None
    return {"in": tuple(chain[2].shape[1:]), "out": tuple(chain[4].shape[1:])}
