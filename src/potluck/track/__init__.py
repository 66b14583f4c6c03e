"""Trackers: TensorBoard, MLflow and Weights & Biases hear of a run while it goes on. See docs/tracking.md.

One file for each tracker; its library is imported there alone, and only if the tracker is asked for.
"""

from potluck.track.tracking import TrackedRun, Tracking
from potluck.track.wanted import check, trackers

__all__ = ["TrackedRun", "Tracking", "check", "trackers"]
