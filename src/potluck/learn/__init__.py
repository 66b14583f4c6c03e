"""The local loop, losses and gradient edits as values, problems, and the usual client."""

from potluck.learn.descend import clipped, stepper
from potluck.learn.edits import Pull
from potluck.learn.fit import fit, rows, weights_of
from potluck.learn.losses import CrossEntropy, MaskedCrossEntropy, Turns, masked, truths
from potluck.learn.observe import observe
from potluck.learn.problems import Classify
from potluck.learn.training import LocalTraining, told

__all__ = [
    "Classify", "CrossEntropy", "LocalTraining", "MaskedCrossEntropy", "Pull", "Turns", "clipped", "fit",
    "masked", "observe", "rows", "stepper", "told", "truths", "weights_of",
]  # fmt: skip
