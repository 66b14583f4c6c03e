"""Depth tiers: each tier's network on the server, what tiers share, and what a tier learns from the next larger one.

A tier has its own last block and its own head. It shares its stem and its other blocks with every tier that has them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, Client, Facts, Spec, Zoo
from potluck.methods.bases.private_head import HEAD, PrivateHead
from potluck.parts import WHOLE, OverlapMean, Part, Place, add_steps, batches

Shape: TypeAlias = "tuple[tuple[int, ...], torch.dtype]"


@dataclass(frozen=True, eq=False)
class DepthTier:
    """A tier's network on the server. Only the largest tier's tensors keep their names there."""

    spec: Spec
    part: Part
    shared: Mapping[tuple[str, Shape], str]
    """Tensors that it shares with other tiers: from (name, shape) to the name on the server."""
    teachers: Mapping[str, tuple[str, ...]]
    """For each weight of its last block, the weights of the next larger tier that teach it; by names on the server."""

    @property
    def names(self) -> list[str]:
        """The names of its tensors on the server."""
        return [place.name for place in self.part.places.values()]


@lru_cache(maxsize=64)
def depth_tiers(zoo: Zoo, headless: bool = False) -> tuple[DepthTier, ...]:
    """A `DepthTier` for each network of the tiers, smallest first; with `headless`, without heads (private heads)."""
    specs = tuple(dict.fromkeys(tier.spec for tier in zoo.tiers))
    parts = [_part(spec, spec == specs[-1], headless, zoo) for spec in specs]
    tiers = []
    for number, (spec, own) in enumerate(zip(specs, parts, strict=True)):
        teachers_of = number + 1 < len(specs) and _teachers(spec, specs[number + 1], zoo)
        teachers = {
            own.place(name).name: tuple(parts[number + 1].place(source).name for source in sources)
            for name, sources in (teachers_of or {}).items()
        }
        tiers.append(DepthTier(spec, own, _shared_tensors(spec, own, zoo), teachers))
    return tuple(tiers)


@dataclass(frozen=True)
class DepthTiers(PrivateHead):
    """Averaging in which the server keeps a network for each tier."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, networks="depth")

    def tiers(self, zoo: Zoo) -> tuple[DepthTier, ...]:
        """The tiers' networks on the server."""
        return depth_tiers(zoo, self.private == "head")

    def target(self, zoo: Zoo) -> Spec:
        return self.tiers(zoo)[-1].spec

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        tiers = self.tiers(zoo)
        tier = next((tier for tier in tiers if tier.spec == client.tier.spec), tiers[-1])
        return tier.spec, tier.part

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        return frozenset(
            tier.part.place(name).name
            for tier in self.tiers(zoo)
            for name in zoo.buffers(tier.spec) & tier.part.places.keys()
        )


def add_momentum(
    whole: Arrays, mean: Arrays, momentum: Arrays, share: float, present: Container[Spec], tiers: Sequence[DepthTier]
) -> Arrays:
    """The target of each tier's step: its clients' mean; in the last block, with a share of momentum."""
    target = dict(mean)
    taught = [name for tier in tiers if tier.spec in present for name in tier.teachers]
    for names in batches(taught if share else (), whole):
        old = [whole[name] for name in names]
        own = torch._foreach_sub([mean[name] for name in names], old)
        torch._foreach_mul_(own, 1 - share)
        steps = torch._foreach_mul([momentum[name] for name in names], share)
        torch._foreach_add_(steps, own)
        target.update(zip(names, add_steps(old, steps), strict=True))
    return target


def next_momentum(
    whole: Arrays, target: Arrays, momentum: Arrays, present: Container[Spec], tiers: Sequence[DepthTier]
) -> Arrays:
    """Momentum for the next round: the mean step of the larger tier's blocks; if that tier is absent, the old one."""
    found = dict(momentum)
    taught = {
        name: sources
        for tier, larger in pairwise(tiers)
        if larger.spec in present
        for name, sources in tier.teachers.items()
    }
    teachers = dict.fromkeys(source for sources in taught.values() for source in sources)
    steps: dict[str, Tensor] = {}
    for names in batches(teachers, whole):
        moved = torch._foreach_sub([target[name] for name in names], [whole[name] for name in names])
        steps.update(zip(names, moved, strict=True))
    for name, sources in taught.items():
        found[name] = torch.stack([steps[source] for source in sources]).mean(0)
    return found


def average_shared(arrays: Arrays, weights: Mapping[Spec, float], tiers: Sequence[DepthTier]) -> Arrays:
    """Averages shared tensors over the tiers that have them. Absent tiers have weight zero, but get the mean."""
    owners: dict[tuple[str, Shape], list[str]] = {}
    for tier in tiers:
        for tensor, place in tier.shared.items():
            owners.setdefault(tensor, []).append(place)
    # A shared tensor is known by its name in the smallest tier that has it.
    first = {place: places[0] for places in owners.values() for place in places if len(places) > 1}
    mean = OverlapMean({name: arrays[name] for name in first.values()})
    for tier in tiers:
        own = {first[place]: arrays[place] for place in tier.shared.values() if place in first}
        mean.add(own, WHOLE, weights.get(tier.spec, 0.0))
    means = mean.value()
    return {**arrays, **{place: means[name] for place, name in first.items() if mean.covered(name) is not False}}


def block_count(spec: Spec, zoo: Zoo) -> int:
    """How many blocks a network has."""
    return 1 + max((block for _, block in _tensor_blocks(spec, zoo) if block is not None), default=-1)


def _part(spec: Spec, largest: bool, headless: bool, zoo: Zoo) -> Part:
    names = [name for name in zoo.shapes(spec) if not (headless and name.startswith(HEAD))]
    return Part({name: Place(name if largest else f"{name} of {spec.key}") for name in names})


def _shared_tensors(spec: Spec, own: Part, zoo: Zoo) -> dict[tuple[str, Shape], str]:
    last, shapes = block_count(spec, zoo) - 1, zoo.shapes(spec)
    stem = _stem_tensors(spec, zoo)
    common = [name for name, block in _tensor_blocks(spec, zoo) if name in stem or block not in (None, last)]
    return {(name, shapes[name]): own.place(name).name for name in common}


def _stem_tensors(spec: Spec, zoo: Zoo) -> frozenset[str]:
    """The tensors before the blocks: those of ``stem``; in a network of one's own, those that are listed before."""
    named = frozenset(name for name in zoo.shapes(spec) if name.startswith("stem."))
    if named or not isinstance(spec.options.get("blocks"), str):
        return named
    before = takewhile(lambda each: each[1] is None, _tensor_blocks(spec, zoo))
    return frozenset(name for name, _ in before) - frozenset(zoo.class_rows(spec))


def _teachers(spec: Spec, larger: Spec, zoo: Zoo) -> dict[str, tuple[str, ...]]:
    """For each weight of the last block, the same weights in the larger network, from that block to the last."""
    last, shapes, buffers = block_count(spec, zoo) - 1, zoo.shapes(spec), zoo.buffers(spec)
    upper = [name for name, block in _tensor_blocks(larger, zoo) if block is not None and block >= last]
    found = {}
    for name, block in _tensor_blocks(spec, zoo):
        if block is not None and block == last and name not in buffers:
            role, shape = _role(spec, name), shapes[name]
            sources = (each for each in upper if _role(larger, each) == role and zoo.shapes(larger)[each] == shape)
            found[name] = tuple(sources)
    return {name: sources for name, sources in found.items() if sources}


def _tensor_blocks(spec: Spec, zoo: Zoo) -> Iterable[tuple[str, int | None]]:
    return [(name, zoo.block(spec, name)) for name in zoo.shapes(spec)]


def _role(spec: Spec, name: str) -> str:
    """A tensor's name within its block: without ``body.<block>`` or ``body.<stage>.<position>``."""
    if isinstance(path := spec.options.get("blocks"), str):  # where a network of one's own has its blocks
        return name.removeprefix(f"{path}.").split(".", 1)[-1]
    return name.split(".", 3 if isinstance(spec.depth, tuple) else 2)[-1]


class MomentumMean(OverlapMean):
    """A mean in which some tensors have momentum added."""

    def __init__(self, mean: OverlapMean, target: Arrays) -> None:
        self.mean, self.target = mean, target

    def value(self) -> Arrays:
        return self.target

    def covered(self, name: str) -> Tensor | bool:
        return self.mean.covered(name)
