"""Every method, by the name under which settings ask for it. To add one: a file, and a line here."""

from collections.abc import Mapping
from typing import Any

from potluck.methods.bounds import AllLarge, AllSmall, ExclusiveFL
from potluck.methods.fedavg import Averaged, FedAvg
from potluck.methods.fedopt import FedAdagrad, FedAdam, FedAdamW, FedAvgM, FedYogi
from potluck.methods.fedprox import FedProx
from potluck.methods.local import Local

METHODS: Mapping[str, type[Any]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedadamw": FedAdamW,
    "alllarge": AllLarge,
    "allsmall": AllSmall,
    "exclusivefl": ExclusiveFL,
    "local": Local,
}

__all__ = [
    "METHODS", "AllLarge", "AllSmall", "Averaged", "ExclusiveFL", "FedAdagrad", "FedAdam", "FedAdamW", "FedAvg",
    "FedAvgM", "FedProx", "FedYogi", "Local",
]  # fmt: skip
