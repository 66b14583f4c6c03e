"""Averaging unequal networks: tensor by tensor, or only among equals.

Under ``layerwise`` each tensor is averaged over the clients whose network has one of that name and shape, as the FedIN
paper runs its baselines. Under ``per_arch`` only equal networks meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from potluck.core import Client, Facts, Model, Spec, Zoo
from potluck.methods.bases.submodels import SubmodelAssignment
from potluck.parts import WHOLE, Part, Place


@dataclass(frozen=True)
class UnequalNetworks(SubmodelAssignment):
    """Lets devices with unequal networks take part, if asked to."""

    share: Literal["whole", "layerwise", "per_arch"] = "whole"
    """Who trains what: all the full network; each tier its own, meeting by tensor; or only with its equals."""

    @property
    def facts(self) -> Facts:
        return Facts(networks="one" if self.share == "whole" else "any")

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        model = super().initial_model(zoo, rng)
        if self.share == "whole":
            return model
        full = model.arrays
        pool = dict(full)
        for tier in zoo.tiers:
            own = zoo.fresh(tier.spec, rng).arrays
            for name, place in tensor_places(self.share, tier.spec, zoo).places.items():
                alike = name in full and full[name].shape == own[name].shape
                pool.setdefault(place.name, full[name] if alike else own[name])
        return Model(model.spec, pool)

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        if self.share == "whole":
            return self.target(zoo), WHOLE
        return client.tier.spec, tensor_places(self.share, client.tier.spec, zoo)

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        if self.share == "whole":
            return super().buffers(zoo)
        places = {tier.spec: tensor_places(self.share, tier.spec, zoo) for tier in zoo.tiers}
        return frozenset(part.place(name).name for spec, part in places.items() for name in zoo.buffers(spec))


@lru_cache(maxsize=256)
def tensor_places(share: str, spec: Spec, zoo: Zoo) -> Part:
    """Where an unequal network's tensors lie on the server: under their name, or under another where that is taken."""
    shapes, full = zoo.shapes(spec), zoo.shapes(zoo.full)
    if share == "per_arch" and spec != zoo.full:
        return Part({name: Place(f"{name} of {spec.key}") for name in shapes})
    return Part(
        {name: Place(name if full.get(name) == shape else f"{name} {list(shape[0])}") for name, shape in shapes.items()}
    )
