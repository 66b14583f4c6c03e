"""HeteroFL: every client trains a sub-model: the first units of every layer, as many as its width allows.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021, https://arxiv.org/abs/2010.01264. All clients have the same weight, as in the released code. With attention
heads, the first units of each head are kept. The code assigns widths in contiguous blocks or draws them anew: this is
``[fleet] tiers``.
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.core import Client, ContractSettings, Round, Spec
from potluck.methods.bases.width import WidthTiers, prefix
from potluck.parts import Part


@dataclass(frozen=True)
class HeteroFL(WidthTiers):
    """Narrow clients train the first units of every layer."""

    contract = ContractSettings(as_fedavg={"weighting": "samples", "label_mask": False, "mean": {"name": "weighted"}})

    def cut(self, spec: Spec, whole: Spec, client: Client, now: Round) -> Part:
        return prefix(spec, whole, now.zoo)
