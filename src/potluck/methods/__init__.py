"""Every method, by the name that settings use for it. To add a method, add a file, and a line here."""

from collections.abc import Mapping
from typing import Any

from potluck.methods.bounds import AllLarge, AllSmall, ExclusiveFL
from potluck.methods.dsfl import DSFL
from potluck.methods.fedavg import AveragedState, Averaging, FedAvg
from potluck.methods.feddf import FedDF
from potluck.methods.feddropout import FedDropout
from potluck.methods.fedet import FedET
from potluck.methods.fedgems import FedGEMS
from potluck.methods.fedin import FedIN
from potluck.methods.fedmask import FedMask
from potluck.methods.fedmd import FedMD
from potluck.methods.fednova import FedNova
from potluck.methods.fedopt import FedAdagrad, FedAdam, FedAdamW, FedAvgM, FedYogi
from potluck.methods.fedprox import FedProx
from potluck.methods.fedrolex import FedRolex
from potluck.methods.fedskel import FedSkel
from potluck.methods.fjord import FjORD
from potluck.methods.hermes import Hermes
from potluck.methods.heterofl import HeteroFL
from potluck.methods.inclusivefl import InclusiveFL
from potluck.methods.local import LocalOnly
from potluck.methods.lotteryfl import LotteryFL
from potluck.methods.moon import MOON
from potluck.methods.moss import Moss
from potluck.methods.scaffold import SCAFFOLD
from potluck.methods.tailorfl import TailorFL

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
    "local": LocalOnly,
    "heterofl": HeteroFL,
    "feddropout": FedDropout,
    "fedrolex": FedRolex,
    "fjord": FjORD,
    "fedin": FedIN,
    "inclusivefl": InclusiveFL,
    "lotteryfl": LotteryFL,
    "hermes": Hermes,
    "tailorfl": TailorFL,
    "fedmask": FedMask,
    "fedskel": FedSkel,
    "fedmd": FedMD,
    "feddf": FedDF,
    "dsfl": DSFL,
    "fedgems": FedGEMS,
    "fedet": FedET,
    "moss": Moss,
}

__all__ = [
    "DSFL", "METHODS", "MOON", "SCAFFOLD", "AllLarge", "AllSmall", "AveragedState", "Averaging", "ExclusiveFL",
    "FedAdagrad", "FedAdam", "FedAdamW", "FedAvg", "FedAvgM", "FedDF", "FedDropout", "FedET", "FedGEMS", "FedIN",
    "FedMD", "FedMask", "FedNova", "FedProx", "FedRolex", "FedSkel", "FedYogi", "FjORD", "Hermes", "HeteroFL",
    "InclusiveFL", "LocalOnly", "LotteryFL", "Moss", "TailorFL",
]  # fmt: skip
