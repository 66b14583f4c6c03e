"""Every method, by the name under which settings ask for it. To add one: a file, and a line here."""

from collections.abc import Mapping
from typing import Any

from potluck.methods.averaging import Averaged, Averaging
from potluck.methods.bounds import AllLarge, AllSmall, ExclusiveFL
from potluck.methods.fedavg import FedAvg
from potluck.methods.feddropout import FedDropout
from potluck.methods.fedin import FedIN, Lending
from potluck.methods.fednova import FedNova
from potluck.methods.fedopt import FedAdagrad, FedAdam, FedAdamW, FedAvgM, FedYogi
from potluck.methods.fedprox import FedProx
from potluck.methods.fedrolex import FedRolex
from potluck.methods.fjord import FjORD
from potluck.methods.heterofl import HeteroFL
from potluck.methods.inclusivefl import Inclusive, InclusiveFL
from potluck.methods.local import Local
from potluck.methods.moon import MOON
from potluck.methods.scaffold import SCAFFOLD, Controlled

METHODS: Mapping[str, type[Any]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "moon": MOON,
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
    "fedin": FedIN,
    "inclusivefl": InclusiveFL,
}

__all__ = [
    "METHODS", "MOON", "SCAFFOLD", "AllLarge", "AllSmall", "Averaged", "Averaging", "Controlled", "ExclusiveFL",
    "FedAdagrad", "FedAdam", "FedAdamW", "FedAvg", "FedAvgM", "FedDropout", "FedIN", "FedNova", "FedProx", "FedRolex",
    "FedYogi", "FjORD", "HeteroFL", "Inclusive", "InclusiveFL", "Lending", "Local",
]  # fmt: skip
