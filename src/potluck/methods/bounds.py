"""AllLarge, AllSmall, ExclusiveFL: baselines that run ordinary federated learning on unequal devices.

They are the baselines of Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices",
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
    """Every client trains the largest network, even on devices too small for it: the ideal bound."""

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
    """Only clients that can train the largest tier's network take part.

    The other clients have no model: the server's is too large for them.
    """

    contract = ContractSettings(as_fedavg={})

    sampling: Literal["drop", "eligible"] = "drop"
    """drop: sample from all, then drop weak clients (cohorts shrink); eligible: sample only from strong clients."""

    def target(self, zoo: Zoo) -> Spec:
        return zoo.tiers[-1].spec

    def pick(self, now: Round) -> Sequence[Client]:
        def strong(client: Client) -> bool:
            return client.tier.spec == self.target(now.zoo)

        return now.recruit(strong) if self.sampling == "eligible" else [c for c in now.cohort if strong(c)]

    def serve(self, state: AveragedState, client: Client, zoo: Zoo) -> Model | None:
        strong = client.id == SERVER or client.tier.spec == self.target(zoo)
        return super().serve(state, client, zoo) if strong else None
