"""The settings of local training: how a client trains its model in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Local:
    """How a client trains in one round. Optimiser state is fresh each round."""

    lr: float = 0.1
    """The learning rate."""
    epochs: int = 1
    """Passes over the client's rows in each round."""
    steps: int | None = None
    """This many optimiser steps instead of whole epochs. Rows are shuffled again after each pass over the data."""
    batch: int = 16
    """Rows in each optimiser step; the last step of a pass takes what is left."""
    drop_last: bool = False
    """Leave out the last step of a pass if fewer rows than `batch` are left, as in PyTorch's DataLoader. A client that
    has fewer rows than that trains on them in one step all the same. On a GPU it is faster if clients differ in their
    number of rows."""
    momentum: float = 0.0
    """SGD only: the share of the last step's direction that is kept; 0: none."""
    weight_decay: float = 0.0
    """The factor of the L2 penalty, which is added to the gradient; 0: none."""
    clip: float | None = None
    """The largest norm of the gradient; a longer one is scaled down."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """The optimiser of local training."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam only: the shares that are kept of the means of the gradient and of its square; from 0, below 1."""
    eps: float = 1e-8
    """Adam only: what is added to the root of the mean square, so that nothing is divided by zero."""
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    """The learning rate over rounds: constant; multiplied by `factor` at each milestone; half a cosine down to zero."""
    milestones: tuple[int, ...] = ()
    """For the schedule "steps": the rounds, counted from 0, from which on the rate is multiplied by `factor` again."""
    factor: float = 0.1
    """For the schedule "steps": what the rate is multiplied by."""
    horizon: int = 100
    """For the schedule "cosine": rounds until the rate is zero."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        for name, low in (
            ("lr", 0.0),
            ("epochs", 0),
            ("batch", 1),
            ("momentum", 0.0),
            ("weight_decay", 0.0),
            ("eps", 0.0),
            ("factor", 0.0),
            ("horizon", 1),
        ):
            if getattr(self, name) < low:
                raise ValueError(f"local.{name} = {getattr(self, name)} is below {low}")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"local.clip = {self.clip} must be above 0; leave it out for no clipping")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"local.betas = {list(self.betas)} must lie between 0 and 1, 1 excluded")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"local.steps = {self.steps} is below 0")

    def rate(self, index: int) -> float:
        """The learning rate of this round."""
        if self.schedule == "steps":
            return self.lr * self.factor ** sum(index >= milestone for milestone in self.milestones)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(index / self.horizon, 1.0)))
        return self.lr

    def count(self, samples: int) -> int:
        """The number of optimiser steps on this many samples."""
        if samples == 0:
            return 0
        return self.steps if self.steps is not None else self.epochs * self.batches(samples)

    def batches(self, samples: int) -> int:
        """The number of batches in one pass over this many samples."""
        whole, left = divmod(samples, self.batch)
        return whole + (left > 0 and not (self.drop_last and whole))
