"""Averaging of unequal networks: tensor by tensor, or only within each architecture.

Under ``layerwise``, each tensor is averaged over the clients whose network has a tensor of the same name and shape, as
in the FedIN paper's baselines. Under ``per_arch``, only equal networks are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch

from potluck.core import Client, Facts, Model, Spec, Tier, Zoo
from potluck.methods.bases.submodels import SubmodelAssignment
from potluck.parts import WHOLE, Part, Place


@dataclass(frozen=True)
class UnequalNetworks(SubmodelAssignment):
    """Lets clients with unequal networks take part (`share`)."""

    share: Literal["whole", "layerwise", "per_arch"] = "whole"
    """whole: all train the full network. layerwise, per_arch: each tier trains its own; tensors of the same name and
    shape are averaged, or only equal networks."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, networks="one" if self.share == "whole" else "any")

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        model = super().initial_model(zoo, rng)
        if self.share == "whole":
            return model
        full = model.arrays
        pool = dict(full)
        for tier in zoo.tiers:
            spec = self.network(tier, zoo)
            own = zoo.fresh(spec, rng).arrays
            for name, place in tensor_places(self.share, spec, self.target(zoo), zoo).places.items():
                alike = name in full and full[name].shape == own[name].shape
                pool.setdefault(place.name, full[name] if alike else own[name])
        return Model(model.spec, pool)

    def network(self, tier: Tier, zoo: Zoo) -> Spec:
        """The network that a tier trains, unless all train the full one."""
        return tier.spec

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        if self.share == "whole":
            return self.target(zoo), WHOLE
        spec = self.network(client.tier, zoo)
        return spec, tensor_places(self.share, spec, self.target(zoo), zoo)

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        if self.share == "whole":
            return super().buffers(zoo)
        specs = {self.network(tier, zoo) for tier in zoo.tiers}
        places = {spec: tensor_places(self.share, spec, self.target(zoo), zoo) for spec in specs}
        return frozenset(part.place(name).name for spec, part in places.items() for name in zoo.buffers(spec))


@lru_cache(maxsize=256)
def tensor_places(share: str, spec: Spec, target: Spec, zoo: Zoo) -> Part:
    """A network's tensors on the server: under their own name or, if the server's network uses it, under another."""
    shapes, full = zoo.shapes(spec), zoo.shapes(target)
    if share == "per_arch" and spec != target:
        return Part({name: Place(f"{name} of {spec.key}") for name in shapes})
    return Part(
        {name: Place(name if full.get(name) == shape else f"{name} {list(shape[0])}") for name, shape in shapes.items()}
    )
