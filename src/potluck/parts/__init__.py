"""Cut a part out of a model, put many back together."""

from potluck.parts.mean import BLOCK, OverlapMean, Sums
from potluck.parts.part import WHOLE, Choose, Index, Mask, Part, Place, index, part, place
from potluck.parts.rules import Adagrad, Adam, AdamW, Momentum, Replace, Rule, Slots, Yogi

__all__ = [
    "BLOCK", "WHOLE", "Adagrad", "Adam", "AdamW", "Choose", "Index", "Mask", "Momentum", "OverlapMean", "Part", "Place",
    "Replace", "Rule", "Slots", "Sums", "Yogi", "index", "part", "place",
]  # fmt: skip
