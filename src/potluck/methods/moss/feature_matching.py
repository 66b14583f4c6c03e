"""Feature matching: the distance between a teacher's and a student's features, weighted by meta-networks.

From WIRE (Cai et al., Moss, IMWUT 2025) and Jang et al., "Learning What and Where to Transfer", ICML 2019,
https://arxiv.org/abs/1905.05901; initial values are as in the code of Jang et al. For each pair of taps, one of the
teacher and one of the student, two meta-networks take the teacher's map, averaged over its positions. *Loc* says how
much the pair counts, and *Deg* how much each channel counts. A transform (a 1x1 convolution) takes the student's map to
the teacher's channels. The teacher's map is resized to the student's height and width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from potluck.core import Arrays
from potluck.methods.moss.taps import Tap

RIDGE = 1e-3
"""Ridge penalty of the least-squares transforms: it makes the solution unique where channels repeat each other."""


@dataclass(frozen=True, eq=False)
class MatchTargets:
    """A teacher's features of one batch, in the form that the loss needs."""

    pooled: list[Tensor]
    """Each of the teacher's maps, averaged over positions: [batch, channels]."""
    maps: list[Tensor]
    """For each tap of the student, the teacher's maps of its pairs, resized and joined along their channels."""


@dataclass(frozen=True)
class FeatureMatching:
    """The pairs of taps between a teacher and a student, and their loss.

    Weights of pairs are stored together. Meta-networks are stored by the teacher's tap; their first dimension is the
    student's tap. Transforms are stored by the student's tap; their rows are the channels of all the teacher's taps.
    """

    teacher: tuple[Tap, ...]
    student: tuple[Tap, ...]
    use_meta: bool = True
    """All pairs, with Loc and Deg of meta-networks. If false: pairs of equal depth, with Loc = 1 and uniform Deg."""
    meta_layers: int = 1
    """Linear layers of each meta-network."""
    loc_softmax: bool = False
    """Softmax of Loc over all pairs; if false, ReLU6 of each Loc."""

    def partners(self, n: int) -> list[int]:
        """The teacher's taps that are paired with the student's n-th."""
        count = len(self.teacher)
        return list(range(count)) if self.use_meta else [-(-(n + 1) * count // len(self.student)) - 1]

    def initial(self, rng: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """New meta-networks, with uniform Deg, and new transforms."""
        meta: dict[str, Tensor] = {}
        transforms: dict[str, Tensor] = {}
        for n, tap in enumerate(self.student):
            channels = sum(self.teacher[m].channels for m in self.partners(n))
            transforms |= _initial_linear(f"{n}", tap.channels, (channels,), rng)
        taps = len(self.student)
        for m, tap in enumerate(self.teacher if self.use_meta else ()):
            for name, outputs in (("loc", 1), ("deg", tap.channels)):
                if self.meta_layers == 2:
                    meta |= _initial_linear(f"{name}.{m}.hidden", tap.channels, (taps, tap.channels), rng)
                meta |= _initial_linear(f"{name}.{m}", tap.channels, (taps, outputs), rng)
            meta[f"loc.{m}.bias"].fill_(1.0)
            meta[f"deg.{m}.weight"].zero_()
            meta[f"deg.{m}.bias"].zero_()
        return meta, transforms

    def targets(self, maps: Sequence[Tensor]) -> MatchTargets:
        """The targets that a teacher's maps set for a student."""
        targets = [
            torch.cat([resize(maps[m], tap.height, tap.width) for m in self.partners(n)], 1)
            for n, tap in enumerate(self.student)
        ]
        return MatchTargets([features.mean((2, 3)) for features in maps], targets)

    def loc(self, meta: Arrays, pooled: Sequence[Tensor]) -> Tensor:
        """How much each pair counts, for each sample: [batch, teacher's taps, student's taps]."""
        if not self.use_meta:
            return self._pair_table(pooled[0]).expand(len(pooled[0]), -1, -1)
        loc = torch.stack([_meta_output(meta, f"loc.{m}", x).squeeze(2) for m, x in enumerate(pooled)], 1)
        return loc.flatten(1).softmax(1).view_as(loc) if self.loc_softmax else functional.relu6(loc)

    def deg(self, meta: Arrays, m: int, pooled: Tensor) -> Tensor:
        """How much each channel of the teacher's m-th tap counts: [batch, student's taps, channels]; sums to one."""
        if not self.use_meta:
            return torch.full_like(pooled, 1 / pooled.shape[1])[:, None].expand(-1, len(self.student), -1)
        return _meta_output(meta, f"deg.{m}", pooled).softmax(2)

    def loss(self, meta: Arrays, transforms: Arrays, targets: MatchTargets, maps: Sequence[Tensor]) -> Tensor:
        """Squared distance of the student's transformed maps to the targets, weighted by Loc and Deg; batch mean."""
        loc = self.loc(meta, targets.pooled)
        weights = [
            loc[:, m, :, None] * self.deg(meta, m, pooled) for m, pooled in enumerate(targets.pooled)
        ]  # [batch, student's taps, channels]
        total = torch.zeros((), device=loc.device)
        for n, features in enumerate(maps):
            output = functional.conv2d(features, transforms[f"{n}.weight"][:, :, None, None], transforms[f"{n}.bias"])
            distance = (output - targets.maps[n]).square().mean((2, 3))
            total = total + (torch.cat([weights[m][:, n] for m in self.partners(n)], 1) * distance).sum(1).mean()
        return total

    def least_squares_transforms(self, batches: Iterable[tuple[MatchTargets, Sequence[Tensor]]]) -> dict[str, Tensor]:
        """The transforms that bring a student's maps nearest to the targets, by least squares over all batches."""
        grams, products = ([torch.zeros(())] * len(self.student) for _ in range(2))
        for targets, maps in batches:
            for n, features in enumerate(maps):
                x, y = (each.movedim(1, -1).flatten(0, 2) for each in (features, targets.maps[n]))
                x = torch.cat([x, x.new_ones(len(x), 1)], 1)
                grams[n] = grams[n] + (x.T @ x).double() / len(x)
                products[n] = products[n] + (x.T @ y).double() / len(x)
        transforms: dict[str, Tensor] = {}
        for n, (gram, product) in enumerate(zip(grams, products, strict=True)):
            solution = torch.linalg.solve(gram + RIDGE * torch.eye(len(gram)).to(gram), product).float()
            transforms |= {f"{n}.weight": solution[:-1].T.contiguous(), f"{n}.bias": solution[-1].contiguous()}
        return transforms

    def flops(self) -> int:
        """FLOPs of the transforms of one sample, forward."""
        return sum(
            2 * self.teacher[m].channels * tap.channels * tap.positions
            for n, tap in enumerate(self.student)
            for m in self.partners(n)
        )

    def meta_flops(self) -> int:
        """FLOPs of the meta-networks for one sample, forward: those of Loc and Deg, for each pair of taps."""
        if not self.use_meta:
            return 0
        hidden = self.meta_layers == 2
        return sum(
            2 * len(self.student) * tap.channels * (1 + tap.channels + hidden * 2 * tap.channels)
            for tap in self.teacher
        )

    def _pair_table(self, like: Tensor) -> Tensor:
        """One for each pair, zero elsewhere: [teacher's taps, student's taps]."""
        table = like.new_zeros(len(self.teacher), len(self.student))
        for n in range(len(self.student)):
            for m in self.partners(n):
                table[m, n].fill_(1.0)
        return table


@dataclass
class MetaNetworks:
    """What a transfer keeps from call to call: meta-networks with the state of their Adam, and transforms."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    transforms: dict[str, Tensor] = field(default_factory=dict)
    exp_avg: dict[str, Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, Tensor] = field(default_factory=dict)
    step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.long))

    @classmethod
    def initial(cls, matching: FeatureMatching | None, rng: torch.Generator) -> MetaNetworks:
        weights, transforms = matching.initial(rng) if matching else ({}, {})
        exp_avg, exp_avg_sq = ({name: torch.zeros_like(tensor) for name, tensor in weights.items()} for _ in range(2))
        return cls(weights, transforms, exp_avg, exp_avg_sq)

    @classmethod
    def from_arrays(cls, arrays: Arrays, hardware: torch.device) -> MetaNetworks:
        """From a snapshot, copied to this hardware."""
        meta = cls(step=arrays["count"].to(hardware, copy=True))
        for name, tensor in arrays.items():
            group, _, own = name.partition("/")
            if own:
                meta._groups()[group][own] = tensor.to(hardware, copy=True)
        return meta

    def load(self, arrays: Arrays) -> None:
        """Copies a snapshot into its own tensors, which stay at their place in memory."""
        own = self._tensors()
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [arrays[name] for name in own])

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of all tensors, by name."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    def adam_step(self, grads: Arrays, lr: float, weight_decay: float) -> None:
        """One step of Adam, in place."""
        self.step.add_(1)
        correction, correction_sq = (1 - torch.pow(beta, self.step.double()) for beta in (0.9, 0.999))
        for name, grad in grads.items():
            weight, exp_avg, exp_avg_sq = self.weights[name], self.exp_avg[name], self.exp_avg_sq[name]
            grad = grad + weight_decay * weight
            exp_avg.lerp_(grad, 0.1)
            exp_avg_sq.lerp_(grad.square(), 0.001)
            weight.sub_(lr * (exp_avg / correction / ((exp_avg_sq / correction_sq).sqrt() + 1e-8)))

    def _groups(self) -> dict[str, dict[str, Tensor]]:
        """By the names that checkpoints have for them."""
        return {"small": self.weights, "transforms": self.transforms, "mean": self.exp_avg, "square": self.exp_avg_sq}

    def _tensors(self) -> dict[str, Tensor]:
        groups = self._groups().items()
        return {"count": self.step} | {f"{group}/{name}": t for group, own in groups for name, t in own.items()}


def resize(features: Tensor, height: int, width: int) -> Tensor:
    """A feature map at this size, by bilinear interpolation."""
    if features.shape[2:] == (height, width):
        return features
    if features.is_cuda:  # with channels first, CUDA has one thread per position only; it took most of a step's time
        features = features.contiguous(memory_format=torch.channels_last)
    return functional.interpolate(features, (height, width), mode="bilinear", align_corners=False)


def _meta_output(meta: Arrays, name: str, x: Tensor) -> Tensor:
    """The outputs of one teacher tap's meta-networks for its pooled features: [batch, student's taps, outputs]."""
    if f"{name}.hidden.weight" in meta:
        hidden = _linear(x, meta[f"{name}.hidden.weight"], meta[f"{name}.hidden.bias"]).relu()
        return torch.einsum("bnc,noc->bno", hidden, meta[f"{name}.weight"]) + meta[f"{name}.bias"]
    return _linear(x, meta[f"{name}.weight"], meta[f"{name}.bias"])


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One linear layer for each of the student's taps, all with the same input."""
    return functional.linear(x, weight.flatten(0, 1), bias.flatten()).view(len(x), *bias.shape)


def _initial_linear(name: str, inputs: int, outputs: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """Weight and bias, initialised as PyTorch's linear layer."""
    bound = inputs**-0.5
    shapes = {"weight": (*outputs, inputs), "bias": outputs}
    return {f"{name}.{key}": torch.empty(shape).uniform_(-bound, bound, generator=rng) for key, shape in shapes.items()}
