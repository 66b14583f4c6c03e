"""Server rules: how the server updates the whole model with the mean of the clients' models.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295; momentum after Hsu et al.,
2019, https://arxiv.org/abs/1909.06335. No bias correction except in `AdamW`. Entries that no client
trained skip the whole update, momentum too: it would change weights without a gradient. Buffers (batch-norm statistics)
and integers always take the plain mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays
from potluck.parts.mean import OverlapMean

Slots: TypeAlias = Mapping[str, Arrays]
"""The state of a rule between rounds: for each slot, arrays with the shapes of the whole."""


@dataclass(frozen=True)
class Replace:
    """FedAvg: the mean becomes the model."""

    name: Literal["replace"] = "replace"

    def __call__(self, whole: Arrays, mean: OverlapMean, slots: Slots, fixed: frozenset[str]) -> tuple[Arrays, Slots]:
        return mean.value(), slots


@dataclass(frozen=True)
class _StepRule:
    """A rule that treats the step (mean minus old model) as the negative of a gradient."""

    slot_names: ClassVar[tuple[str, ...]] = ("m", "v")

    def __call__(self, whole: Arrays, mean: OverlapMean, slots: Slots, fixed: frozenset[str]) -> tuple[Arrays, Slots]:
        target = mean.value()
        out = dict(target)
        new: dict[str, dict[str, Tensor]] = {slot: dict(slots.get(slot, {})) for slot in self.slot_names}
        for name, old in whole.items():
            covered = mean.covered(name)
            if name in fixed or not old.is_floating_point() or covered is False:
                continue
            had = {slot: new[slot].get(name, self.initial_slot(slot, old)) for slot in self.slot_names}
            moved, after = self.update(old, target[name] - old, had)
            # Adding a zero step would turn -0.0 into 0.0; an entry that did not change keeps its bits.
            out[name] = torch.where(moved == old, old, _where_covered(covered, moved, old))
            for slot, tensor in after.items():
                new[slot][name] = _where_covered(covered, tensor, had[slot]) if tensor.is_floating_point() else tensor
        return out, new

    def initial_slot(self, slot: str, old: Tensor) -> Tensor:
        """The value of a slot before the first step."""
        return torch.zeros((), dtype=torch.int64, device=old.device) if slot == "steps" else torch.zeros_like(old)

    def update(self, old: Tensor, step: Tensor, had: Arrays) -> tuple[Tensor, dict[str, Tensor]]:
        """The new tensor and its new slots."""
        raise NotImplementedError


@dataclass(frozen=True)
class Momentum(_StepRule):
    """FedAvgM: m <- beta m + step; whole <- whole + lr m."""

    slot_names: ClassVar[tuple[str, ...]] = ("m",)
    name: Literal["momentum"] = "momentum"
    lr: float = 1.0
    beta: float = 0.9

    def update(self, old: Tensor, step: Tensor, had: Arrays) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.beta * had["m"] + step
        return old + self.lr * m, {"m": m}


@dataclass(frozen=True)
class _Adaptive(_StepRule):
    """An adaptive rule with moments m and v of each entry: whole <- whole + lr m / (sqrt(v) + tau)."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v0: float = 0.0
    """v before the first step; Reddi et al. start at tau squared."""

    def initial_slot(self, slot: str, old: Tensor) -> Tensor:
        return torch.full_like(old, self.v0) if slot == "v" else super().initial_slot(slot, old)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, old: Tensor, step: Tensor, had: Arrays) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.beta1 * had["m"] + (1 - self.beta1) * step
        v = self.second_moment(had["v"], step * step)
        return old + self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) step^2."""

    name: Literal["adam"] = "adam"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) step^2 sign(v - step^2)."""

    name: Literal["yogi"] = "yogi"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v <- v + step^2."""

    name: Literal["adagrad"] = "adagrad"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class AdamW(_StepRule):
    """Adam with bias correction and decoupled weight decay, as in torch.optim.AdamW."""

    slot_names: ClassVar[tuple[str, ...]] = ("m", "v", "steps")
    name: Literal["adamw"] = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0

    def update(self, old: Tensor, step: Tensor, had: Arrays) -> tuple[Tensor, dict[str, Tensor]]:
        steps = had["steps"] + 1
        m = self.beta1 * had["m"] + (1 - self.beta1) * step
        v = self.beta2 * had["v"] + (1 - self.beta2) * step * step
        count = int(steps)
        size = self.lr / (1 - self.beta1**count)
        root = (v / (1 - self.beta2**count)).sqrt()
        moved = old * (1 - self.lr * self.weight_decay) + size * m / (root + self.eps)
        return moved, {"m": m, "v": v, "steps": steps}


Rule: TypeAlias = Replace | Momentum | Adam | Yogi | Adagrad | AdamW


def _where_covered(covered: Tensor | bool, new: Tensor, old: Tensor) -> Tensor:
    return new if covered is True else torch.where(torch.as_tensor(covered, device=new.device), new, old)
