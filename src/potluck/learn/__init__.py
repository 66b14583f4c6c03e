"""The local loop, losses and gradient edits as values, problems, and the usual client."""

from potluck.learn.bank import Bank, deposited, drawn
from potluck.learn.descend import clipped, stepper
from potluck.learn.drift import Contrast, Shift, carried, contrast, recalled
from potluck.learn.edits import Pull
from potluck.learn.fit import Descent, fit, rows, weights_of
from potluck.learn.joint import Blend, Joint, Project, Sum
from potluck.learn.lent import Lent, features, one_batch, seams
from potluck.learn.losses import CrossEntropy, MaskedCrossEntropy, Turns, cross_entropy, masked, truths
from potluck.learn.observe import observe
from potluck.learn.problems import Classify, NextToken
from potluck.learn.stack import Wish, dense, fit_stacked, likeness
from potluck.learn.training import LocalTraining, is_usual, told
from potluck.learn.values import Frozen, kept, located

__all__ = [
    "Bank", "Blend", "Classify", "Contrast", "CrossEntropy", "Descent", "Frozen", "Joint", "Lent", "LocalTraining",
    "MaskedCrossEntropy", "NextToken", "Project", "Pull", "Shift", "Sum", "Turns", "Wish", "carried", "clipped",
    "contrast", "cross_entropy", "dense", "deposited", "drawn", "features", "fit", "fit_stacked", "is_usual", "kept",
    "likeness", "located", "masked", "observe", "one_batch", "recalled", "rows", "seams", "stepper", "told", "truths",
    "weights_of",
]  # fmt: skip
