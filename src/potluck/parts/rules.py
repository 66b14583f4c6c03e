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
from potluck.parts.mean import OverlapMean, batches

Slots: TypeAlias = Mapping[str, Arrays]
"""The state of a rule between rounds: for each slot, arrays with the shapes of the whole."""


@dataclass(frozen=True)
class Replace:
    """FedAvg: the mean becomes the model."""

    name: Literal["replace"] = "replace"

    def __call__(self, whole: Arrays, mean: OverlapMean, slots: Slots, fixed: frozenset[str]) -> tuple[Arrays, Slots]:
        return mean.value(), slots


Tensors: TypeAlias = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class _StepRule:
    """A rule that treats the step (mean minus old model) as the negative of a gradient."""

    slot_names: ClassVar[tuple[str, ...]] = ("m", "v")

    def __call__(self, whole: Arrays, mean: OverlapMean, slots: Slots, fixed: frozenset[str]) -> tuple[Arrays, Slots]:
        target = mean.value()
        out = dict(target)
        new: dict[str, dict[str, Tensor]] = {slot: dict(slots.get(slot, {})) for slot in self.slot_names}
        covered = {
            name: mean.covered(name) for name, old in whole.items() if name not in fixed and old.is_floating_point()
        }
        for names in batches([name for name, some in covered.items() if some is not False], whole):
            old = [whole[name] for name in names]
            had = {
                slot: [new[slot][name] if name in new[slot] else self.initial_slot(slot, whole[name]) for name in names]
                for slot in self.slot_names
            }
            moved, after = self.update(old, torch._foreach_sub([target[name] for name in names], old), had)
            for at, name in enumerate(names):
                out[name] = _where_covered(covered[name], moved[at], old[at])
                for slot in self.slot_names:
                    tensor, before = after[slot][at], had[slot][at]
                    floats = tensor.is_floating_point()
                    new[slot][name] = _where_covered(covered[name], tensor, before) if floats else tensor
        return out, new

    def initial_slot(self, slot: str, old: Tensor) -> Tensor:
        """The value of a slot before the first step."""
        return torch.zeros((), dtype=torch.int64, device=old.device) if slot == "steps" else torch.zeros_like(old)

    def update(self, old: Tensors, step: Tensors, had: Mapping[str, Tensors]) -> tuple[Tensors, dict[str, Tensors]]:
        """The new tensors and their new slots. It may overwrite `step`, but not what was there before."""
        raise NotImplementedError


@dataclass(frozen=True)
class Momentum(_StepRule):
    """FedAvgM: m <- beta m + step; whole <- whole + lr m."""

    slot_names: ClassVar[tuple[str, ...]] = ("m",)
    name: Literal["momentum"] = "momentum"
    lr: float = 1.0
    """The server's learning rate."""
    beta: float = 0.9
    """The share of the last momentum that is kept."""

    def update(self, old: Tensors, step: Tensors, had: Mapping[str, Tensors]) -> tuple[Tensors, dict[str, Tensors]]:
        m = torch._foreach_mul(had["m"], self.beta)
        torch._foreach_add_(m, step)
        return add_steps(old, torch._foreach_mul(m, self.lr)), {"m": m}


@dataclass(frozen=True)
class _Adaptive(_StepRule):
    """An adaptive rule with moments m and v of each entry: whole <- whole + lr m / (sqrt(v) + tau)."""

    lr: float = 0.1
    """The server's learning rate."""
    beta1: float = 0.9
    """The share of the last m, the mean of the steps, that is kept."""
    beta2: float = 0.99
    """The share of the last v, the mean of the squared steps, that is kept; Adagrad does not use it."""
    tau: float = 1e-3
    """What is added to the root of v: the larger, the less the rule adapts."""
    v0: float = 0.0
    """v before the first step; Reddi et al. start at tau squared."""

    def initial_slot(self, slot: str, old: Tensor) -> Tensor:
        return torch.full_like(old, self.v0) if slot == "v" else super().initial_slot(slot, old)

    def second_moment(self, v: Tensors, square: Tensors) -> Tensors:
        """The new v. It may overwrite `square`."""
        raise NotImplementedError

    def update(self, old: Tensors, step: Tensors, had: Mapping[str, Tensors]) -> tuple[Tensors, dict[str, Tensors]]:
        v = self.second_moment(had["v"], torch._foreach_mul(step, step))
        m = _blend(had["m"], self.beta1, step)
        return add_steps(old, _quotient(m, [self.lr] * len(m), torch._foreach_sqrt(v), self.tau)), {"m": m, "v": v}


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) step^2."""

    name: Literal["adam"] = "adam"

    def second_moment(self, v: Tensors, square: Tensors) -> Tensors:
        return _blend(v, self.beta2, square)


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) step^2 sign(v - step^2)."""

    name: Literal["yogi"] = "yogi"

    def second_moment(self, v: Tensors, square: Tensors) -> Tensors:
        signs = torch._foreach_sub(v, square)
        torch._foreach_sign_(signs)
        torch._foreach_mul_(square, 1 - self.beta2)
        torch._foreach_mul_(square, signs)
        return torch._foreach_sub(v, square)


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v <- v + step^2."""

    name: Literal["adagrad"] = "adagrad"

    def second_moment(self, v: Tensors, square: Tensors) -> Tensors:
        torch._foreach_add_(square, v)
        return square


@dataclass(frozen=True)
class AdamW(_StepRule):
    """Adam with bias correction and decoupled weight decay, as in torch.optim.AdamW."""

    slot_names: ClassVar[tuple[str, ...]] = ("m", "v", "steps")
    name: Literal["adamw"] = "adamw"
    lr: float = 1e-3
    """The server's learning rate."""
    beta1: float = 0.9
    """The share of the last mean of the steps that is kept."""
    beta2: float = 0.999
    """The share of the last mean of the squared steps that is kept."""
    eps: float = 1e-6
    """What is added to the root of the mean square, so that nothing is divided by zero."""
    weight_decay: float = 0.0
    """The share of each weight, times the learning rate, that every step takes away."""

    def update(self, old: Tensors, step: Tensors, had: Mapping[str, Tensors]) -> tuple[Tensors, dict[str, Tensors]]:
        steps = torch._foreach_add(had["steps"], 1)
        counts = torch.stack(steps).tolist()  # one wait for the GPU, not one for each tensor
        square = torch._foreach_mul(step, 1 - self.beta2)
        torch._foreach_mul_(square, step)
        v = torch._foreach_mul(had["v"], self.beta2)
        torch._foreach_add_(v, square)
        m = _blend(had["m"], self.beta1, step)
        root = torch._foreach_div(v, [1 - self.beta2**count for count in counts])
        torch._foreach_sqrt_(root)
        size = [self.lr / (1 - self.beta1**count) for count in counts]
        kept = torch._foreach_mul(old, 1 - self.lr * self.weight_decay) if self.weight_decay else old
        return add_steps(kept, _quotient(m, size, root, self.eps)), {"m": m, "v": v, "steps": steps}


Rule: TypeAlias = Replace | Momentum | Adam | Yogi | Adagrad | AdamW


def add_steps(old: Tensors, steps: Tensors) -> Tensors:
    """The tensors after these steps, which it may overwrite. An entry with a step of zero keeps its bits."""
    # -0.0 plus a step of 0.0 would be 0.0. But -0.0 minus 0.0 is -0.0, so subtract the negative step without -0.0.
    torch._foreach_neg_(steps)
    torch._foreach_add_(steps, 0.0)
    return torch._foreach_sub(old, steps)


def _blend(old: Tensors, share: float, new: Tensors) -> Tensors:
    """share old + (1 - share) new; overwrites `new`."""
    torch._foreach_mul_(new, 1 - share)
    blend = torch._foreach_mul(old, share)
    torch._foreach_add_(blend, new)
    return blend


def _quotient(m: Tensors, lr: list[float], root: Tensors, tau: float) -> Tensors:
    """lr m / (root + tau), with an lr for each tensor; overwrites `root`."""
    torch._foreach_add_(root, tau)
    quotient = torch._foreach_mul(m, lr)
    torch._foreach_div_(quotient, root)
    return quotient


def _where_covered(covered: Tensor | bool, new: Tensor, old: Tensor) -> Tensor:
    return new if covered is True else torch.where(torch.as_tensor(covered, device=new.device), new, old)
