"""The local loop, losses and gradient edits as values, problems, and the usual client."""

from potluck.learn.bank import Bank, deposited, drawn
from potluck.learn.bilevel import through_steps
from potluck.learn.bridge import Bridge, resized
from potluck.learn.descend import clipped, stepper
from potluck.learn.drift import Contrast, Shift, carried, contrast, recalled
from potluck.learn.edits import Pull
from potluck.learn.fit import Descent, Precision, drawing, fit, fitted, rows, weights_of
from potluck.learn.joint import Blend, Joint, Project, Sum
from potluck.learn.lent import Lent, features, one_batch, seams
from potluck.learn.losses import CrossEntropy, MaskedCrossEntropy, Turns, cross_entropy, masked, truths
from potluck.learn.observe import observe
from potluck.learn.ordered import AtWidth
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
from potluck.learn.stack import dense, fit_stacked, likeness
from potluck.learn.tape import WARM, Recordings, Tapes, on
from potluck.learn.taps import taps
from potluck.learn.teach import fidelity, merged, taught
from potluck.learn.training import LocalTraining, is_usual, told
from potluck.learn.transfer import Transfer
from potluck.learn.values import Frozen, changed, form, kept, leaves, located
from potluck.learn.veil import Veil
from potluck.learn.watch import Stop, Watched, stops
from potluck.learn.wire import Meta, Wire
from potluck.learn.wish import Wish

__all__ = [
    "WARM", "AtWidth", "Bank", "Blend", "Bridge", "Classify", "Contrast", "CrossEntropy", "Descent", "Doubt", "Follow",
    "Frozen", "Guided", "Joint", "Lent", "Lessons", "LocalTraining", "MaskedCrossEntropy", "Meta", "Mimic", "NextToken",
    "Precision", "Project", "Pull", "Recordings", "Regress", "Shift", "SoftCrossEntropy", "Stop", "Sum", "Tag", "Tapes",
    "Transfer", "Turns", "Veil", "Watched", "Wire", "Wish", "agreed", "beside", "carried", "changed", "clipped",
    "confidence", "contrast", "cross_entropy", "dense", "deposited", "dissenting", "divergence", "drawing", "drawn",
    "features", "fidelity", "fit", "fit_stacked", "fitted", "form", "is_usual", "kept", "leaves", "likeness", "located",
    "masked", "mean_scores", "merged", "noise", "observe", "on", "one_batch", "predicted", "recalled", "reliance",
    "relied", "resized", "rows", "seams", "sharpened", "stepper", "stops", "taps", "taught", "through_steps", "told",
    "truths", "weights_of",
]  # fmt: skip
