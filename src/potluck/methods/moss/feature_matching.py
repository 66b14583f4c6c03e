"""A matching from a teacher's features to a student's: how far each pair is apart, and how much that matters.

After WIRE (Cai et al., Moss, IMWUT 2025) and Jang et al., "Learning What and Where to TransferLoop", ICML 2019,
https://arxiv.org/abs/1905.05901, whose initial values are used. For a pair of taps small networks look at the teacher's
map, averaged over its places: one says how much the pair matters (*Loc*), one how much each channel does (*Deg*). A 1x1
transform takes the student's map to the teacher's channels; the teacher's is resized to the student's places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from potluck.methods.moss.watch import Tap

RIDGE = 1e-3
"""How much the size of a fitted transform counts beside its error."""


@dataclass(frozen=True, eq=False)
class MatchTargets:
    """What a teacher makes of a batch, in the form in which students are held to it."""

    pooled: list[Tensor]
    """Each of its maps, averaged over places: [batch, channels]."""
    maps: list[Tensor]
    """For each of the student's taps, its maps at that size, one below the other: [batch, channels of all, ...]."""


@dataclass(frozen=True)
class FeatureMatching:
    """Which taps of a teacher speak to which of a student, and through what.

    What belongs to the pairs of one tap lies together: small networks by the teacher's, with a first dimension for the
    student's; transforms by the student's, with the teacher's channels one below the other.
    """

    teacher: tuple[Tap, ...]
    student: tuple[Tap, ...]
    learned: bool = True
    """Loc and Deg are learned, for all pairs; else 1 and uniform, for pairs of the same depth."""
    layers: int = 1
    """Linear layers of each small network."""
    softmax: bool = False
    """Loc sums to one over pairs; else it lies between 0 and 6."""

    def partners(self, n: int) -> list[int]:
        """The teacher's taps that the student's n-th is held to."""
        most = len(self.teacher)
        return list(range(most)) if self.learned else [-(-(n + 1) * most // len(self.student)) - 1]

    def initial(self, rng: torch.Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """New small networks, in which all channels count alike; and new transforms."""
        small: dict[str, Tensor] = {}
        transforms: dict[str, Tensor] = {}
        for n, stop in enumerate(self.student):
            across = sum(self.teacher[m].channels for m in self.partners(n))
            transforms |= _linear(f"{n}", stop.channels, (across,), rng)
        for m, stop in enumerate(self.teacher if self.learned else ()):
            for name, out in (("loc", 1), ("deg", stop.channels)):
                if self.layers == 2:
                    small |= _linear(f"{name}.{m}.hidden", stop.channels, (len(self.student), stop.channels), rng)
                small |= _linear(f"{name}.{m}", stop.channels, (len(self.student), out), rng)
            small[f"loc.{m}.bias"].fill_(1.0)
            small[f"deg.{m}.weight"].zero_()
            small[f"deg.{m}.bias"].zero_()
        return small, transforms

    def goals(self, maps: Sequence[Tensor]) -> MatchTargets:
        """What a teacher's maps ask of a student."""
        sized = [
            torch.cat([resized(maps[m], stop.height, stop.width) for m in self.partners(n)], 1)
            for n, stop in enumerate(self.student)
        ]
        return MatchTargets([features.mean((2, 3)) for features in maps], sized)

    def locs(self, small: Mapping[str, Tensor], pooled: Sequence[Tensor]) -> Tensor:
        """How much each pair matters for each sample: [batch, teacher's taps, student's taps]."""
        if not self.learned:
            return self._paired(pooled[0]).expand(len(pooled[0]), -1, -1)
        found = torch.stack([_said(small, f"loc.{m}", x).squeeze(2) for m, x in enumerate(pooled)], 1)
        return found.flatten(1).softmax(1).view_as(found) if self.softmax else functional.relu6(found)

    def degs(self, small: Mapping[str, Tensor], m: int, pooled: Tensor) -> Tensor:
        """How much each of the teacher's channels matters: [batch, student's taps, channels], one in sum."""
        if not self.learned:
            return torch.full_like(pooled, 1 / pooled.shape[1])[:, None].expand(-1, len(self.student), -1)
        return _said(small, f"deg.{m}", pooled).softmax(2)

    def loss(
        self,
        small: Mapping[str, Tensor],
        transforms: Mapping[str, Tensor],
        goals: MatchTargets,
        learning: Sequence[Tensor],
    ) -> Tensor:
        """How far the student's maps are from the teacher's, where it matters; a mean over samples."""
        locs = self.locs(small, goals.pooled)
        weights = [
            locs[:, m, :, None] * self.degs(small, m, pooled) for m, pooled in enumerate(goals.pooled)
        ]  # [batch, student's taps, channels]
        total = torch.zeros((), device=locs.device)
        for n, features in enumerate(learning):
            made = functional.conv2d(features, transforms[f"{n}.weight"][:, :, None, None], transforms[f"{n}.bias"])
            apart = (made - goals.maps[n]).square().mean((2, 3))
            total = total + (torch.cat([weights[m][:, n] for m in self.partners(n)], 1) * apart).sum(1).mean()
        return total

    def fitted(self, seen: Iterable[tuple[MatchTargets, Sequence[Tensor]]]) -> dict[str, Tensor]:
        """Transforms that take a student's maps as near to a teacher's as they can: least squares over batches.

        A little is asked of them to stay small, so that there is one answer where channels repeat each other.
        """
        squares, products = ([torch.zeros(())] * len(self.student) for _ in range(2))
        for goals, maps in seen:
            for n, features in enumerate(maps):
                given, wanted = (each.movedim(1, -1).flatten(0, 2) for each in (features, goals.maps[n]))
                given = torch.cat([given, given.new_ones(len(given), 1)], 1)
                squares[n] = squares[n] + (given.T @ given).double() / len(given)
                products[n] = products[n] + (given.T @ wanted).double() / len(given)
        found: dict[str, Tensor] = {}
        for n, (square, product) in enumerate(zip(squares, products, strict=True)):
            solved = torch.linalg.solve(square + RIDGE * torch.eye(len(square)).to(square), product).float()
            found |= {f"{n}.weight": solved[:-1].T.contiguous(), f"{n}.bias": solved[-1].contiguous()}
        return found

    def flops(self) -> int:
        """Of the transforms of one sample, forward."""
        return sum(
            2 * self.teacher[m].channels * stop.channels * stop.places
            for n, stop in enumerate(self.student)
            for m in self.partners(n)
        )

    def _paired(self, like: Tensor) -> Tensor:
        """One for each pair, zero elsewhere."""
        table = like.new_zeros(len(self.teacher), len(self.student))
        for n in range(len(self.student)):
            for m in self.partners(n):
                table[m, n].fill_(1.0)
        return table


def resized(features: Tensor, height: int, width: int) -> Tensor:
    """A map at this size."""
    if features.shape[2:] == (height, width):
        return features
    if features.is_cuda:  # the other layout has a thread for every place alone, which takes most of a step's time
        features = features.contiguous(memory_format=torch.channels_last)
    return functional.interpolate(features, (height, width), mode="bilinear", align_corners=False)


def _said(small: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """What the small networks of one tap say of its pooled features: [batch, student's taps, numbers]."""
    if f"{name}.hidden.weight" in small:
        hidden = _spread(x, small[f"{name}.hidden.weight"], small[f"{name}.hidden.bias"]).relu()
        return torch.einsum("bnc,noc->bno", hidden, small[f"{name}.weight"]) + small[f"{name}.bias"]
    return _spread(x, small[f"{name}.weight"], small[f"{name}.bias"])


def _spread(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight.flatten(0, 1), bias.flatten()).view(len(x), *bias.shape)


def _linear(name: str, inside: int, outside: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """A linear layer's usual birth."""
    bound = inside**-0.5
    shapes = {"weight": (*outside, inside), "bias": outside}
    return {f"{name}.{key}": torch.empty(shape).uniform_(-bound, bound, generator=rng) for key, shape in shapes.items()}
