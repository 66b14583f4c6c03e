"""Every method, by the name under which settings ask for it. To add one: a file, and a line here."""

from collections.abc import Mapping
from typing import Any

from potluck.methods.averaging import Averaged, Averaging
from potluck.methods.bounds import AllLarge, AllSmall, ExclusiveFL
from potluck.methods.fedavg import FedAvg
from potluck.methods.feddropout import FedDropout
from potluck.methods.fedopt import FedAdagrad, FedAdam, FedAdamW, FedAvgM, FedYogi
from potluck.methods.fedprox import FedProx
from potluck.methods.fedrolex import FedRolex
from potluck.methods.fjord import FjORD
from potluck.methods.heterofl import HeteroFL
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
    "heterofl": HeteroFL,
    "feddropout": FedDropout,
    "fedrolex": FedRolex,
    "fjord": FjORD,
}

__all__ = [
    "METHODS", "AllLarge", "AllSmall", "Averaged", "Averaging", "ExclusiveFL", "FedAdagrad", "FedAdam", "FedAdamW",
    "FedAvg", "FedAvgM", "FedDropout", "FedProx", "FedRolex", "FedYogi", "FjORD", "HeteroFL", "Local",
]  # fmt: skip
