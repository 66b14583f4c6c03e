"""Local training: the training loop, losses, gradient edits, learning problems, and the default client side."""

from potluck.learn.capture import (
    WARM_UPS,
    CapturedStep,
    CapturePolicy,
    CapturePool,
    GraphCache,
    on_stream,
    side_stream,
)
from potluck.learn.distillation import (
    BATCH,
    DistillationSettings,
    kl_divergence,
    mean_logits,
    predict_logits,
    random_inputs,
    with_columns,
)
from potluck.learn.fit import (
    FitJob,
    LocalSteps,
    Precision,
    batch_rows,
    draw_batches,
    fit_result,
    gather_statistics,
    run_fit,
    trainable_weights,
)
from potluck.learn.gaussian import CLIP, TELLS_NOTHING, WITHIN, GaussianMechanism, ServerClip, SumClip
from potluck.learn.hooks import forward_hooks
from potluck.learn.losses import (
    Blend,
    CrossEntropy,
    JointLoss,
    MaskedCrossEntropy,
    ProximalTerm,
    Turns,
    class_mask,
    cross_entropy,
    mask_logits,
)
from potluck.learn.optimisers import clip_gradients, displacement, make_optimiser
from potluck.learn.problems import Classify, NextToken, Regress, Tag
from potluck.learn.stack import can_stack, fit_stacked, run_stacked, stacking_key
from potluck.learn.stages import stage_features, stages
from potluck.learn.step_count import StepCount, count_step, step_count_of, turns_of, without_numbers
from potluck.learn.training import LocalTraining, fit_metrics
from potluck.learn.values import Frozen, held_tensors, map_tensors, structure_key, tensor_leaves, to_device

__all__ = [
    "BATCH", "CLIP", "TELLS_NOTHING", "WARM_UPS", "WITHIN", "Blend", "CapturePolicy", "CapturePool", "CapturedStep",
    "Classify",
    "CrossEntropy", "DistillationSettings", "FitJob", "Frozen", "GaussianMechanism", "GraphCache", "JointLoss",
    "LocalSteps", "LocalTraining", "MaskedCrossEntropy", "NextToken", "Precision", "ProximalTerm", "Regress",
    "ServerClip", "StepCount", "SumClip", "Tag", "Turns",
    "batch_rows", "can_stack", "class_mask", "clip_gradients", "count_step", "cross_entropy", "displacement",
    "draw_batches", "fit_metrics", "fit_result", "fit_stacked", "forward_hooks", "gather_statistics", "held_tensors",
    "kl_divergence", "make_optimiser", "map_tensors", "mask_logits", "mean_logits", "on_stream", "predict_logits",
    "random_inputs", "run_fit", "run_stacked", "side_stream", "stacking_key", "stage_features", "stages",
    "step_count_of", "structure_key", "tensor_leaves", "to_device", "trainable_weights", "turns_of", "with_columns",
    "without_numbers",
]  # fmt: skip
