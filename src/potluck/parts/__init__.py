"""Parts of models: cut a small model out of the whole, average many small models, apply a server rule."""

from potluck.parts.mean import BLOCK, OverlapMean, Sums, batches
from potluck.parts.part import WHOLE, Choose, Index, Mask, Part, Place, index, part, place
from potluck.parts.private_sum import Holders, expected_holders, first_holders, privatise
from potluck.parts.robust import Krum, MeanRule, Median, RobustMean, Trimmed, Weighted
from potluck.parts.rules import Adagrad, Adam, AdamW, Momentum, Replace, Rule, Slots, Yogi, add_steps

__all__ = [
    "BLOCK", "WHOLE", "Adagrad", "Adam", "AdamW", "Choose", "Holders", "Index", "Krum", "Mask", "MeanRule", "Median",
    "Momentum", "OverlapMean", "Part", "Place", "Replace", "RobustMean", "Rule", "Slots", "Sums", "Trimmed",
    "Weighted", "Yogi", "add_steps", "batches", "expected_holders", "first_holders", "index", "part", "place",
    "privatise",
]  # fmt: skip
