"""The zoo: every network of a federation, to be built, cut and priced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from potluck.core import Depth, Dimensions, Model, Newborn, Spec, Tier, Work
from potluck.models import birth, skeleton, specs
from potluck.models.cost import cost


@dataclass(frozen=True)
class ModelZoo:
    """The networks of a federation: the server's full one, and what each tier can carry (smallest first)."""

    full: Spec
    tiers: Sequence[Tier] = ()
    public: int = 0
    """Rows of the public set."""
    hardware: str = "cpu"
    """Where newly born models rest: torch's name of it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "full", specs.complete(self.full))
        object.__setattr__(self, "tiers", tuple(sorted(self.tiers, key=self._parameters)))

    def build(self, model: Model, rng: torch.Generator | None = None) -> nn.Module:
        """A live network: a copy of the model's numbers or, where it has none, born from the generator."""
        spec = specs.complete(model.spec)
        if not isinstance(model, Newborn):
            return birth.filled(spec, model.arrays)
        if rng is None:
            raise ValueError(f"a {spec.family} without arrays needs a generator to be born from")
        return birth.born(spec, rng)

    def fresh(self, spec: Spec, rng: torch.Generator) -> Model:
        """A newly born model at rest: random, or pre-trained where its spec says so."""
        born = birth.fresh(specs.complete(spec), rng)
        if self.hardware == "cpu":
            return born
        return Model(born.spec, {name: tensor.to(self.hardware) for name, tensor in born.arrays.items()})

    def axes(self, spec: Spec) -> Mapping[str, Dimensions]:
        """What each dimension of each tensor counts."""
        return skeleton.axes(specs.complete(spec))

    def shapes(self, spec: Spec) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor, buffers included."""
        return skeleton.shapes(specs.complete(spec))

    def buffers(self, spec: Spec) -> frozenset[str]:
        """Names of tensors that are not trained."""
        return skeleton.buffers(specs.complete(spec))

    def narrow(self, spec: Spec, width: float | Mapping[str, float]) -> Spec:
        """This share of the units, for all groups or for each that is named; rounded up, at least one."""
        return specs.narrow(spec, width)

    def shallow(self, spec: Spec, depth: Depth) -> Spec:
        """The first blocks only (of each stage)."""
        return specs.shallow(spec, depth)

    def scaled(self, spec: Spec, ratio: float) -> Spec:
        """The same network with scalers for this ratio of its width to the whole's; refused where it has none."""
        return specs.scaled(spec, ratio)

    def counting(self, spec: Spec) -> Spec:
        """The twin that counts the statistics of static norms as means over batches; without such norms, the same."""
        return specs.counting(spec)

    def block(self, spec: Spec, name: str) -> int | None:
        """Which body block of this network a tensor belongs to, in forward order; None: it is there at every depth."""
        return skeleton.places(specs.complete(spec))[name]

    def cost(self, spec: Spec, batch: int) -> Work:
        """What one training step on a batch asks of a device."""
        return cost(specs.complete(spec), batch)

    def _parameters(self, tier: Tier) -> int:
        return self.cost(tier.spec, 1).parameters
