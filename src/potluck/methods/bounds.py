"""AllLarge, AllSmall, ExclusiveFL: what ordinary federated learning can do with unequal devices.

The reference baselines of Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices",
KDD 2022, https://arxiv.org/abs/2202.08036 (ExclusiveFL is "DropWeak" in its first version).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from potluck.core import SERVER, Client, ContractSettings, Facts, Model, Round, Spec, Zoo
from potluck.methods.bases.private_head import PrivateHead
from potluck.methods.fedavg import AveragedState


@dataclass(frozen=True)
class AllLarge(PrivateHead):
    """Every client trains the largest network, whatever it can carry: the ideal bound."""

    contract = ContractSettings(as_fedavg={})

    @property
    def facts(self) -> Facts:
        return replace(super().facts, bound=True)


@dataclass(frozen=True)
class AllSmall(PrivateHead):
    """Every client trains the smallest tier's network."""

    contract = ContractSettings(as_fedavg={})

    def target(self, zoo: Zoo) -> Spec:
        return zoo.tiers[0].spec


@dataclass(frozen=True)
class ExclusiveFL(PrivateHead):
    """Only clients that can carry the largest tier's network take part; the others are left out.

    They have no model either: the server's is too large for them.
    """

    contract = ContractSettings(as_fedavg={})

    sampling: Literal["drop", "eligible"] = "drop"
    """Sample everyone and drop who is too weak (cohorts shrink), or sample only among those strong enough."""

    def target(self, zoo: Zoo) -> Spec:
        return zoo.tiers[-1].spec

    def pick(self, now: Round) -> Sequence[Client]:
        def strong(client: Client) -> bool:
            return client.tier.spec == self.target(now.zoo)

        return now.recruit(strong) if self.sampling == "eligible" else [c for c in now.cohort if strong(c)]

    def serve(self, state: AveragedState, client: Client, zoo: Zoo) -> Model | None:
        strong = client.id == SERVER or client.tier.spec == self.target(zoo)
        return super().serve(state, client, zoo) if strong else None
