"""A fit that is yet to be done: what engines gather, and do one by one, stacked or recorded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from potluck.core import Edit, Examples, Fit, Layout, Local, Loss
from potluck.learn.fit import Precision, fit


@dataclass(frozen=True, eq=False)
class FitJob:
    """A fit that a device asks for."""

    kind: Hashable
    """Of the network: equal for networks that differ in nothing but their numbers; None: it is not to be stacked."""
    net: nn.Module
    weights: Mapping[str, Tensor]
    examples: Examples
    local: Local
    lr: float
    loss: Loss
    edits: Sequence[Edit]
    rng: torch.Generator
    want_gradient: bool = False
    laid: tuple[Tensor, Layout] | None = None
    """The buffer in which the network's weights lie, if they do, and where each of them."""
    precision: Precision = "fp32"
    noise: int | None = None
    """The seed of what a network draws from torch's own generator as it trains; None: it draws nothing."""

    def granted(self) -> Fit:
        """The fit, by itself; torch's own generator is put back."""
        if self.noise is None:
            return self._fitted()
        with torch.random.fork_rng():
            torch.manual_seed(self.noise)
            return self._fitted()

    def _fitted(self) -> Fit:
        return fit(
            self.net, self.examples, self.local, self.lr, self.loss, self.edits,
            rng=self.rng, weights=self.weights, want_gradient=self.want_gradient, precision=self.precision,
        )  # fmt: skip
