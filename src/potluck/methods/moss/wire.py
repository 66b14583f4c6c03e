"""WIRE: a network learns public rows and, beside their labels, what a network of another architecture makes of them.

Cai et al., IMWUT 2025. The small networks in between (`FeatureMatching`) are trained as in Jang et al. (ICML 2019):
they do not descend the distance that they weigh, for that would end with weights of zero, but ask after each step where
a few more steps down the distance and one down the labels' loss would lead, and learn what makes that better.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from potluck.core import Arrays, Spec, Zoo
from potluck.learn import DistillationSettings
from potluck.methods.moss.bilevel import Numbers
from potluck.methods.moss.feature_matching import FeatureMatching
from potluck.methods.moss.watch import tap_shapes


@dataclass(frozen=True)
class WireSettings(DistillationSettings):
    """How students are taught: SGD on labels and features, five epochs a round."""

    lr: float = 1e-3
    momentum: float = 0.05
    epochs: int = 5
    batch: int = 32
    full_batch: bool = False
    """One step an epoch, on all rows at once."""
    loss: Literal["full", "location", "ce", "mse"] = "full"
    """Labels and features; features alone; labels alone; labels and features that all count alike, by depth."""
    beta: float = 1.0
    """How much features count beside labels."""
    target: Literal["labels", "teacher", "soft"] = "labels"
    """What is learned beside features: labels or, for rows that have none or unrelated ones, what the teacher would
    choose, or all its answers. Rows without labels have all its answers, unless its choice is asked for."""
    train: Literal["bilevel", "joint"] = "bilevel"
    """How small networks learn: from where the student would get to, or down the student's own loss."""
    transforms: Literal["fitted", "random"] = "fitted"
    """What transforms of features start from: in every call those that fit best, or in the first random ones."""
    steps_ahead: int = 2  # T in Jang et al.
    """Steps down the distance of features before the one down the labels' loss."""
    ahead_every: int = 1
    """Look ahead after every so many steps: it takes about thirteen times as long as a step."""
    meta_lr: float = 1e-4
    meta_decay: float = 1e-4
    meta_layers: Literal[1, 2] = 1
    loc_norm: Literal["none", "softmax"] = "none"
    """Let the importance of pairs lie between 0 and 6 each, or sum to one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "steps_ahead", "meta_lr", "meta_decay"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"method.wire.{name} = {value} is below 0")
        if self.ahead_every < 1:
            raise ValueError(f"method.wire.ahead_every = {self.ahead_every} is below 1")

    def warn(self) -> None:
        """Says, where transfer will switch itself off, that it will."""
        if self.train == "joint" and self.loc_norm == "none" and self.loss in ("full", "location"):
            warnings.warn(
                'method.wire.train = "joint" lowers the importance of features to zero, for that lowers the loss; '
                'set method.wire.loc_norm = "softmax", or leave "bilevel".',
                stacklevel=2,
            )

    def matching(self, teacher: Spec, student: Spec, zoo: Zoo) -> FeatureMatching | None:
        """What leads from one network's features to another's; None where features do not count."""
        if self.loss == "ce":
            return None
        ends = tap_shapes(teacher, zoo), tap_shapes(student, zoo)
        return FeatureMatching(*ends, self.loss != "mse", self.meta_layers, self.loc_norm == "softmax")


@dataclass
class MetaNetworks:
    """What a wire keeps from call to call: small networks with their optimiser, and transforms."""

    small: dict[str, Tensor] = field(default_factory=dict)
    transforms: dict[str, Tensor] = field(default_factory=dict)
    mean: dict[str, Tensor] = field(default_factory=dict)
    square: dict[str, Tensor] = field(default_factory=dict)
    count: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.long))

    @classmethod
    def initial(cls, matching: FeatureMatching | None, rng: torch.Generator) -> MetaNetworks:
        small, transforms = matching.initial(rng) if matching else ({}, {})
        mean, square = ({name: torch.zeros_like(tensor) for name, tensor in small.items()} for _ in range(2))
        return cls(small, transforms, mean, square)

    @classmethod
    def of(cls, arrays: Arrays, where: torch.device) -> MetaNetworks:
        """As it was at rest, to be worked on here."""
        found = cls(count=arrays["count"].to(where, copy=True))
        for name, tensor in arrays.items():
            group, _, own = name.partition("/")
            if own:
                getattr(found, group)[own] = tensor.to(where, copy=True)
        return found

    def fill(self, arrays: Arrays) -> None:
        """Takes these numbers, at rest, in its own place."""
        own = self._tensors()
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [arrays[name] for name in own])

    def rest(self) -> dict[str, Tensor]:
        """At rest: plain arrays by name."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    def learn(self, grads: Numbers, lr: float, decay: float) -> None:
        """A step of Adam, in place."""
        self.count.add_(1)
        first, second = (1 - torch.pow(beta, self.count.double()) for beta in (0.9, 0.999))
        for name, grad in grads.items():
            small, mean, square = self.small[name], self.mean[name], self.square[name]
            grad = grad + decay * small
            mean.lerp_(grad, 0.1)
            square.lerp_(grad.square(), 0.001)
            small.sub_(lr * (mean / first / ((square / second).sqrt() + 1e-8)))

    def _tensors(self) -> dict[str, Tensor]:
        groups = {name: getattr(self, name) for name in ("small", "transforms", "mean", "square")}
        named = {f"{group}/{name}": tensor for group, held in groups.items() for name, tensor in held.items()}
        return {"count": self.count, **named}
