"""The local loop, losses and gradient edits as values, problems, and the usual client."""

from potluck.learn.bank import Bank, deposited, drawn
from potluck.learn.bilevel import through_steps
from potluck.learn.capture import WARM, CapturePolicy, GraphCache, on
from potluck.learn.drift import ContrastiveLoss, Shift, carried, contrast, recalled
from potluck.learn.edits import ProximalTerm
from potluck.learn.feature_matching import FeatureMatching, resized
from potluck.learn.fit import LocalSteps, Precision, draw_batches, fit, fitted, rows, weights_of
from potluck.learn.fit_job import FitJob
from potluck.learn.gaussian import GaussianMechanism
from potluck.learn.joint import Blend, Joint, Project, Sum
from potluck.learn.lent import Lent, features, one_batch, seams
from potluck.learn.losses import CrossEntropy, MaskedCrossEntropy, Turns, cross_entropy, masked, truths
from potluck.learn.observe import observe
from potluck.learn.optimisers import clip_gradients, make_optimiser
from potluck.learn.ordered import AtWidth
from potluck.learn.outputs import (
    DistillationSettings,
    Doubt,
    Follow,
    Guided,
    Mimic,
    SoftCrossEntropy,
    agreed,
    confidence,
    dissenting,
    divergence,
    mean_scores,
    noise,
    predict_logits,
    reliance,
    relied,
    sharpened,
    with_columns,
)
from potluck.learn.problems import Classify, NextToken, Regress, Tag
from potluck.learn.stack import dense, fit_stacked, likeness
from potluck.learn.taps import taps
from potluck.learn.teach import fidelity, merged, taught
from potluck.learn.training import LocalTraining, is_usual, told
from potluck.learn.transfer import Transfer
from potluck.learn.values import Frozen, kept, map_tensors, structure_key, tensor_leaves, to_device
from potluck.learn.watch import Tap, TappedNetwork, tap_shapes
from potluck.learn.wire import Meta, Wire

__all__ = [
    "WARM",
    "AtWidth",
    "Bank",
    "Blend",
    "CapturePolicy",
    "Classify",
    "ContrastiveLoss",
    "CrossEntropy",
    "DistillationSettings",
    "Doubt",
    "FeatureMatching",
    "FitJob",
    "Follow",
    "Frozen",
    "GaussianMechanism",
    "GraphCache",
    "Guided",
    "Joint",
    "Lent",
    "LocalSteps",
    "LocalTraining",
    "MaskedCrossEntropy",
    "Meta",
    "Mimic",
    "NextToken",
    "Precision",
    "Project",
    "ProximalTerm",
    "Regress",
    "Shift",
    "SoftCrossEntropy",
    "Sum",
    "Tag",
    "Tap",
    "TappedNetwork",
    "Transfer",
    "Turns",
    "Wire",
    "agreed",
    "carried",
    "clip_gradients",
    "confidence",
    "contrast",
    "cross_entropy",
    "dense",
    "deposited",
    "dissenting",
    "divergence",
    "draw_batches",
    "drawn",
    "features",
    "fidelity",
    "fit",
    "fit_stacked",
    "fitted",
    "is_usual",
    "kept",
    "likeness",
    "make_optimiser",
    "map_tensors",
    "masked",
    "mean_scores",
    "merged",
    "noise",
    "observe",
    "on",
    "one_batch",
    "predict_logits",
    "recalled",
    "reliance",
    "relied",
    "resized",
    "rows",
    "seams",
    "sharpened",
    "structure_key",
    "tap_shapes",
    "taps",
    "taught",
    "tensor_leaves",
    "through_steps",
    "to_device",
    "told",
    "truths",
    "weights_of",
    "with_columns",
]  # fmt: skip
