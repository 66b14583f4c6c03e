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
from potluck.learn.outputs import (
    Doubt,
    Follow,
    Guided,
    Lessons,
    Mimic,
    SoftCrossEntropy,
    agreed,
    beside,
    confidence,
    dissenting,
    divergence,
    mean_scores,
    noise,
    predicted,
    reliance,
    relied,
    sharpened,
)
from potluck.learn.problems import Classify, NextToken, Regress, Tag
from potluck.learn.stack import Wish, dense, fit_stacked, likeness
from potluck.learn.training import LocalTraining, is_usual, told
from potluck.learn.values import Frozen, kept, located

__all__ = [
    "Bank", "Blend", "Classify", "Contrast", "CrossEntropy", "Descent", "Doubt", "Follow", "Frozen", "Guided", "Joint",
    "Lent", "Lessons", "LocalTraining", "MaskedCrossEntropy", "Mimic", "NextToken", "Project", "Pull", "Regress",
    "Shift", "SoftCrossEntropy", "Sum", "Tag", "Turns", "Wish", "agreed", "beside", "carried", "clipped", "confidence",
    "contrast", "cross_entropy", "dense", "deposited", "dissenting", "divergence", "drawn", "features", "fit",
    "fit_stacked", "is_usual", "kept", "likeness", "located", "masked", "mean_scores", "noise", "observe", "one_batch",
    "predicted", "recalled", "reliance", "relied", "rows", "seams", "sharpened", "stepper", "told", "truths",
    "weights_of",
]  # fmt: skip
