"""What is learned: a loss to descend, a tally to keep on each device, and scores made of many tallies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from potluck.core import Examples, Loss
from potluck.learn.losses import CrossEntropy, masked, truths

BATCH = 256
"""Rows scored at once."""


@dataclass(frozen=True)
class Classify:
    """One label of several for each example."""

    classes: int

    @property
    def loss(self) -> Loss:
        return CrossEntropy()

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Hits, examples and loss, class by class: counts that add up over examples and devices.

        Scores of classes that are not `owned`, if given, are set to zero, as in training under label masks.
        """
        right = torch.zeros(self.classes, dtype=torch.long)
        seen = torch.zeros(self.classes, dtype=torch.long)
        total = 0.0
        net.eval()
        with torch.inference_mode():
            for at in range(0, len(examples), BATCH):
                batch = examples[slice(at, at + BATCH)]
                scores, labels = net(batch["x"]), batch["y"]
                if owned is not None:
                    scores = masked(scores, truths(owned, self.classes))
                total += float(functional.cross_entropy(scores, labels, reduction="sum"))
                hits = labels[scores.argmax(1) == labels].cpu()
                right += torch.bincount(hits, minlength=self.classes)
                seen += torch.bincount(labels.cpu(), minlength=self.classes)
        return {"right": right.tolist(), "seen": seen.tolist(), "loss": total}

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy and mean loss, overall and per class (None for a class without examples)."""
        right, seen, loss = [0] * self.classes, [0] * self.classes, 0.0
        for tally in tallies:
            right = [a + b for a, b in zip(right, tally["right"], strict=True)]
            seen = [a + b for a, b in zip(seen, tally["seen"], strict=True)]
            loss += tally["loss"]
        count = sum(seen)
        return {
            "accuracy": sum(right) / count if count else None,
            "loss": loss / count if count else None,
            "count": count,
            "per_class": [a / b if b else None for a, b in zip(right, seen, strict=True)],
        }
