"""Parts of models: cut a small model out of the whole, average many small models, apply a server rule."""

from potluck.parts.mean import BLOCK, OverlapMean, Sums, batches
from potluck.parts.part import WHOLE, Choose, Index, Mask, Part, Place, index, part, place
from potluck.parts.rules import Adagrad, Adam, AdamW, Momentum, Replace, Rule, Slots, Yogi, add_steps

__all__ = [
    "BLOCK", "WHOLE", "Adagrad", "Adam", "AdamW", "Choose", "Index", "Mask", "Momentum", "OverlapMean", "Part", "Place",
    "Replace", "Rule", "Slots", "Sums", "Yogi", "add_steps", "batches", "index", "part", "place",
]  # fmt: skip
