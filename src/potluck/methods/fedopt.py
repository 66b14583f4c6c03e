"""FedAvgM, FedAdam, FedYogi, FedAdagrad, FedAdamW: FedAvg under a server optimiser.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295; Hsu et al., 2019,
https://arxiv.org/abs/1909.06335 (momentum). Only the default rule differs: ``server`` works under any method that
averages weights. v starts at zero; Reddi et al. start at tau squared (``server.v0``).
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.methods.fedavg import FedAvg
from potluck.parts import Adagrad, Adam, AdamW, Momentum, Rule, Yogi


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server."""

    server: Rule = Momentum()


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg with Adam on the server."""

    server: Rule = Adam(lr=0.03)


@dataclass(frozen=True)
class FedYogi(FedAvg):
    """FedAvg with Yogi on the server."""

    server: Rule = Yogi(lr=0.03)


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad on the server."""

    server: Rule = Adagrad(lr=0.1)


@dataclass(frozen=True)
class FedAdamW(FedAvg):
    """FedAvg with bias-corrected AdamW on the server."""

    server: Rule = AdamW(lr=0.01)
