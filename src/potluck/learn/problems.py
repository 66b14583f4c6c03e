"""What is learned: a loss to descend, a tally to keep on each device, and scores made of many tallies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from potluck.core import Batch, Examples, Loss
from potluck.learn.losses import IGNORED, CrossEntropy, masked, truths

BATCH = 256
"""Rows scored at once ..."""

ROOM = 1 << 24
"""... and scores held at once, where each token of a row has one for every token of the vocabulary."""


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


@dataclass(frozen=True)
class NextToken:
    """The token that follows each of a row's tokens. Unknown tokens and ends of lines count, padding does not."""

    classes: int
    """Tokens of the vocabulary."""

    @property
    def loss(self) -> Loss:
        return CrossEntropy()

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Hits, tokens and loss: counts that add up. Scores of tokens that are not `owned`, if given, are zero."""
        right, seen, total = 0, 0, 0.0
        net.eval()
        with torch.inference_mode():
            for batch in self._batches(examples):
                scores, labels = net(batch["x"]).flatten(0, -2), batch["y"].flatten()
                if owned is not None:
                    scores = masked(scores, truths(owned, self.classes))
                total += float(functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum"))
                right += int((scores.argmax(1) == labels).sum())
                seen += int((labels != IGNORED).sum())
        return {"right": right, "seen": seen, "loss": total}

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy, mean loss and perplexity over all tokens (none where it is beyond numbers)."""
        right, seen, total = 0, 0, 0.0
        for tally in tallies:
            right, seen, total = right + tally["right"], seen + tally["seen"], total + tally["loss"]
        loss = total / seen if seen else None
        return {
            "accuracy": right / seen if seen else None,
            "loss": loss,
            "perplexity": math.exp(loss) if loss is not None and loss < 700 else None,
            "count": seen,
        }

    def _batches(self, examples: Examples) -> Iterator[Batch]:
        """The examples in order, so few at once that their scores fit."""
        length = examples.columns["y"][:1].numel() or 1
        rows = max(1, min(BATCH, ROOM // (length * self.classes)))
        for at in range(0, len(examples), rows):
            yield examples[slice(at, at + rows)]
