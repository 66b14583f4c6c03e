"""A model for each type of device: tiers are averaged each by itself, equal architectures too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from potluck.core import SERVER, Arrays, Client, Model, Spec, Zoo
from potluck.methods.fedavg import Averaging
from potluck.parts import Part, Place


@dataclass(frozen=True)
class PerTier(Averaging):
    """FedAvg within each tier. The server's network is the largest tier's."""

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        """Types of one architecture start from the same numbers."""
        born = {self.target(zoo): zoo.fresh(self.target(zoo), rng)}
        for tier in zoo.tiers:
            born[tier.spec] = born.get(tier.spec) or zoo.fresh(tier.spec, rng)
        return Model(self.target(zoo), pool({tier.name: born[tier.spec] for tier in zoo.tiers}, zoo))

    def types(self, state: Any, zoo: Zoo) -> dict[str, Model]:
        """Each type's model."""
        whole = state.model.arrays
        return {tier.name: Model(tier.spec, where(tier.name, tier.spec, zoo).take(whole)) for tier in zoo.tiers}

    def put(self, state: Any, types: Mapping[str, Model], zoo: Zoo) -> Any:
        """The state with these models of types."""
        return replace(state, model=Model(state.model.spec, {**state.model.arrays, **pool(types, zoo)}))

    def target(self, zoo: Zoo) -> Spec:
        """The largest network among the types'."""
        return zoo.tiers[-1].spec

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        tier = zoo.tiers[-1] if client.id == SERVER else client.tier
        return tier.spec, where(tier.name, tier.spec, zoo)

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        parts = [(where(tier.name, tier.spec, zoo), zoo.buffers(tier.spec)) for tier in zoo.tiers]
        return frozenset(part.place(name).name for part, names in parts for name in names)


def pool(types: Mapping[str, Model], zoo: Zoo) -> Arrays:
    """The models of all these types in one."""
    return {
        where(name, model.spec, zoo).place(own).name: tensor
        for name, model in types.items()
        for own, tensor in model.arrays.items()
    }


@lru_cache(maxsize=256)
def where(tier: str, spec: Spec, zoo: Zoo) -> Part:
    """Where a type's tensors lie on the server: the largest's under their names, any other's under its own too."""
    largest = tier == zoo.tiers[-1].name
    return Part({name: Place(name if largest else f"{name} of {tier}") for name in zoo.shapes(spec)})
