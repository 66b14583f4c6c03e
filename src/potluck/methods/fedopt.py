"""FedAvgM, FedAdam, FedYogi, FedAdagrad, FedAdamW: FedAvg with an optimiser on the server.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295; Hsu et al., 2019,
https://arxiv.org/abs/1909.06335 (momentum). Only the default of ``server`` differs from FedAvg; every method that
averages weights has this setting. The second moment v starts at zero; Reddi et al. start at tau squared
(``server.v0``).
"""

from __future__ import annotations

from dataclasses import dataclass

from potluck.core import ContractSettings
from potluck.methods.fedavg import FedAvg
from potluck.parts import Adagrad, Adam, AdamW, Momentum, Rule, Yogi

NEUTRAL = {"lr": 1e6, "beta1": 0.0, "tau": 1e6}
"""Turns an adaptive rule into plain averaging: if lr = tau is large, step * lr / (abs(step) + tau) is the step."""


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server."""

    contract = ContractSettings(as_fedavg={"server": {"name": "momentum", "beta": 0.0}}, within=1e-6)

    server: Rule = Momentum()


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg with Adam on the server."""

    contract = ContractSettings(as_fedavg={"server": {"name": "adam", **NEUTRAL}}, within=1e-5)

    server: Rule = Adam(lr=0.03)


@dataclass(frozen=True)
class FedYogi(FedAvg):
    """FedAvg with Yogi on the server."""

    contract = ContractSettings(as_fedavg={"server": {"name": "yogi", **NEUTRAL}}, within=1e-5)

    server: Rule = Yogi(lr=0.03)


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad on the server."""

    contract = ContractSettings(as_fedavg={"server": {"name": "adagrad", **NEUTRAL}}, within=1e-5)

    server: Rule = Adagrad(lr=0.1)


@dataclass(frozen=True)
class FedAdamW(FedAvg):
    """FedAvg with bias-corrected AdamW on the server."""

    contract = ContractSettings(
        as_fedavg={"server": {"name": "adamw", "lr": 1e6, "beta1": 0.0, "eps": 1e6}}, within=1e-5
    )

    server: Rule = AdamW(lr=0.01)
