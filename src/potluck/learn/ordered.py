"""Ordered dropout: the loss of a batch at one of a network's widths, with the weights of the widest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call

from potluck.core import Batch
from potluck.learn.losses import cross_entropy
from potluck.parts import Part


@dataclass(frozen=True, eq=False)
class AtWidth:
    """The loss of one batch at one width, taught by the labels or by the client's full width."""

    narrow: nn.Module | None
    """None: the full width itself."""
    part: Part
    distill: bool

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        if self.narrow is None and not self.distill:
            return cross_entropy(net(batch["x"]), batch["y"])
        wide = net(batch["x"]) if self.distill else None
        small = wide if self.narrow is None and wide is not None else self.lent(net, batch["x"])
        if wide is None:
            return cross_entropy(small, batch["y"])
        return cross_entropy(wide, batch["y"]) + cross_entropy(small, batch["y"], teacher=wide.detach())

    def lent(self, net: nn.Module, x: Tensor) -> Tensor:
        """The narrow network's scores, computed with the wide one's weights."""
        assert self.narrow is not None
        live = dict(net.named_parameters())
        weights = {name: place.take(live[place.name]) for name, place in self.part.places.items() if name in live}
        scores: Tensor = functional_call(self.narrow, weights, (x,))
        return scores
