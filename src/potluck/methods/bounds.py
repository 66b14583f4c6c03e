"""AllLarge, AllSmall, ExclusiveFL: baselines that run ordinary federated learning on unequal devices.

They are the baselines of Liu et al., "No One Left Behind: Inclusive Federated Learning over Heterogeneous Devices",
KDD 2022, https://arxiv.org/abs/2202.08036 (ExclusiveFL is "DropWeak" in its first version).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from potluck.core import Client, ContractSettings, Facts, Round, Spec, Zoo
from potluck.methods.bases.private_head import PrivateHead


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

    The other clients use that network too, although they cannot train it. It knows nothing of their data.
    """

    contract = ContractSettings(as_fedavg={})

    sampling: Literal["drop", "eligible"] = "drop"
    """drop: sample from all, then drop weak clients (cohorts shrink); eligible: sample only from strong clients."""

    def target(self, zoo: Zoo) -> Spec:
        return zoo.tiers[-1].spec

    def can_train(self, client: Client, zoo: Zoo) -> bool:
        return client.tier.spec == self.target(zoo)

    def pick(self, now: Round) -> Sequence[Client]:
        def strong(client: Client) -> bool:
            return self.can_train(client, now.zoo)

        return now.recruit(strong) if self.sampling == "eligible" else [c for c in now.cohort if strong(c)]
