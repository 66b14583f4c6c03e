"""Learning problems: a training loss, a tally (counts) on each device, and scores computed from all tallies.

A problem's `metric` is the name of its main score, by which runs are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from potluck.core import Batch, Examples, Loss
from potluck.learn import metrics
from potluck.learn.losses import IGNORED, CrossEntropy, class_mask, mask_logits

BATCH = 256
"""The most rows that are scored at once on a CPU."""

GPU_BATCH, GPU_ENTRIES = 1024, 1 << 22
"""The most rows that are scored at once on a GPU, and the most entries of their inputs; `BATCH` rows always are."""

ROOM = 1 << 24
"""The most logits that are held at once, for problems with logits for every token of a row."""


@dataclass(frozen=True)
class Classify:
    """Classification: one label for each example."""

    classes: int
    metric: str = "accuracy"
    """The main score: accuracy, f1 or matthews."""

    @property
    def loss(self) -> Loss:
        return CrossEntropy()

    def label_counts(self, examples: Examples) -> list[int]:
        """How many examples each class has."""
        return _class_counts(examples.column("y"), self.classes).tolist()

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Correct predictions and examples of each class, the total loss and, if needed, predictions of each class.

        These counts can be added over examples and devices. If `owned` is given, the logits of other classes are set to
        zero, as in training with label masks.
        """
        losses, said, true = list[Tensor](), list[Tensor](), list[Tensor]()
        net.eval()
        with torch.inference_mode():
            for batch in scored_batches(net, examples):
                scores, labels = net(batch["x"]), batch["y"]
                if owned is not None:
                    scores = mask_logits(scores, class_mask(owned, self.classes))
                losses.append(functional.cross_entropy(scores, labels, reduction="sum"))
                said.append(scores.argmax(1))
                true.append(labels)
        # Values are read once, at the end: reading them in the loop would wait for a GPU in every batch.
        guesses, labels = (torch.cat(parts).cpu() if parts else torch.zeros(0).long() for parts in (said, true))
        counted = (labels[guesses == labels], labels, guesses)
        right, seen, guessed = (_class_counts(some, self.classes) for some in counted)
        total = sum(_values(losses), 0.0)
        extra = {} if self.metric == "accuracy" else {"guessed": guessed.tolist()}
        return {"right": right.tolist(), "seen": seen.tolist(), "loss": total, **extra}

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy, mean loss, accuracy per class (None for a class without examples), and other scores if needed."""
        right, seen, guessed, loss = [0] * self.classes, [0] * self.classes, [0] * self.classes, 0.0
        for tally in tallies:
            right = [a + b for a, b in zip(right, tally["right"], strict=True)]
            seen = [a + b for a, b in zip(seen, tally["seen"], strict=True)]
            guessed = [a + b for a, b in zip(guessed, tally.get("guessed", guessed), strict=True)]
            loss += tally["loss"]
        count = sum(seen)
        found = {
            "accuracy": sum(right) / count if count else None,
            "loss": loss / count if count else None,
            "count": count,
            "per_class": [a / b if b else None for a, b in zip(right, seen, strict=True)],
        }
        if self.metric == "accuracy":
            return found
        others = {**metrics.class_f1(right, seen, guessed), "matthews": metrics.matthews(right, seen, guessed)}
        return {**found, **(others if count else dict.fromkeys(others))}


@dataclass(frozen=True)
class NextToken:
    """Next-token prediction, for every token of a row. Unknown tokens and ends of lines count; padding does not."""

    classes: int
    """The size of the vocabulary."""

    metric: ClassVar[str] = "accuracy"

    @property
    def loss(self) -> Loss:
        return CrossEntropy()

    def label_counts(self, examples: Examples) -> list[int]:
        """Empty: an example has no single class."""
        return []

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Correct predictions, tokens and total loss. If `owned` is given, the logits of other tokens are zero."""
        losses, right, seen = list[Tensor](), list[Tensor](), list[Tensor]()
        net.eval()
        with torch.inference_mode():
            for batch in _batches(net, examples, self.classes):
                scores, labels = net(batch["x"]).flatten(0, -2), batch["y"].flatten()
                if owned is not None:
                    scores = mask_logits(scores, class_mask(owned, self.classes))
                losses.append(functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum"))
                right.append((scores.argmax(1) == labels).sum())
                seen.append((labels != IGNORED).sum())
        return {"right": sum(_values(right)), "seen": sum(_values(seen)), "loss": sum(_values(losses), 0.0)}

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy, mean loss and perplexity over all tokens; no perplexity if it is too large for a float."""
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


@dataclass(frozen=True)
class Tag:
    """Tagging: a BIO tag for each token that has one. The main score counts the entities that the tags mark."""

    names: tuple[str, ...]
    """The names of the tags, "O" among them."""
    metric: str = "f1"
    """The main score: f1 of all entities, or accuracy of the tags."""

    @property
    def loss(self) -> Loss:
        return CrossEntropy()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of entity."""
        return tuple(dict.fromkeys(name[2:] for name in self.names if name != "O"))

    def label_counts(self, examples: Examples) -> list[int]:
        """Empty: an example has no single class."""
        return []

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """Correct tags, all tags and total loss; of each kind of entity the correct, true and predicted ones."""
        losses, said, true = list[Tensor](), list[Tensor](), list[Tensor]()
        net.eval()
        with torch.inference_mode():
            for batch in _batches(net, examples, len(self.names)):
                scores, labels = net(batch["x"]), batch["y"]
                if owned is not None:
                    scores = mask_logits(scores, class_mask(owned, len(self.names)))
                flat = scores.flatten(0, -2), labels.flatten()
                losses.append(functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum"))
                said.append(scores.argmax(-1))
                true.append(labels)
        counts = {kind: [0, 0, 0] for kind in self.kinds}
        for guesses, labels in zip(said, true, strict=True):
            self._count(counts, guesses.tolist(), labels.tolist())
        right = _values([(guesses == labels).sum() for guesses, labels in zip(said, true, strict=True)])
        seen = _values([(labels != IGNORED).sum() for labels in true])
        return {"right": sum(right), "seen": sum(seen), "loss": sum(_values(losses), 0.0), "entities": counts}

    def _count(self, counts: dict[str, list[int]], said: list[list[int]], labels: list[list[int]]) -> None:
        """Adds the entities of some rows to the counts; tokens without a tag are skipped."""
        for mine, true in zip(said, labels, strict=True):
            pairs = [(self.names[a], self.names[b]) for a, b in zip(mine, true, strict=True) if b != IGNORED]
            guessed, there = (metrics.entities(tags) for tags in (zip(*pairs, strict=True) if pairs else ((), ())))
            for place, found in enumerate((guessed & there, there, guessed)):
                for kind, _, _ in found:
                    counts[kind][place] += 1

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """F1, precision and recall over all entities and per kind; accuracy and mean loss over tags."""
        right, seen, total = 0, 0, 0.0
        counts = {kind: [0, 0, 0] for kind in self.kinds}
        for tally in tallies:
            right, seen, total = right + tally["right"], seen + tally["seen"], total + tally["loss"]
            for kind, sums in counts.items():
                counts[kind] = [a + b for a, b in zip(sums, tally["entities"][kind], strict=True)]
        whole = metrics.f1(*map(sum, zip(*counts.values(), strict=True))) if counts else metrics.f1(0, 0, 0)
        return {
            "accuracy": right / seen if seen else None,
            "loss": total / seen if seen else None,
            "count": seen,
            **(whole if seen else dict.fromkeys(whole)),
            "per_entity": {kind: {**metrics.f1(*sums), "count": sums[1]} for kind, sums in counts.items() if sums[1]},
        }


@dataclass(frozen=True)
class SquaredError:
    """Mean squared error of the network's single output."""

    inputs: str = "x"
    labels: str = "y"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.mse_loss(net(batch[self.inputs]).squeeze(-1), batch[self.labels])


@dataclass(frozen=True)
class Regress:
    """Regression: a number for each example."""

    metric: ClassVar[str] = "pearson"

    @property
    def loss(self) -> Loss:
        return SquaredError()

    def label_counts(self, examples: Examples) -> list[int]:
        """Empty: an example has no single class."""
        return []

    def tally(self, net: nn.Module, examples: Examples, owned: Sequence[int] | None = None) -> dict[str, Any]:
        """The sum of squared errors, and the moments of predictions and targets."""
        losses, pairs = list[Tensor](), list[tuple[Tensor, Tensor]]()
        net.eval()
        with torch.inference_mode():
            for batch in scored_batches(net, examples):
                said, true = net(batch["x"]).squeeze(-1).double(), batch["y"].double()
                losses.append(((said - true) ** 2).sum())
                pairs.append((said, true))
        parts = [metrics.moments(said.tolist(), true.tolist()) for said, true in pairs]
        return {"loss": sum(_values(losses), 0.0), "moments": metrics.merge_moments(parts)}

    def scores(self, tallies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Pearson's correlation, and the mean squared error as the loss."""
        kept = list(tallies)
        sums = metrics.merge_moments(tally["moments"] for tally in kept)
        count = int(sums["count"])
        loss = sum(tally["loss"] for tally in kept) / count if count else None
        return {"pearson": metrics.pearson(sums), "loss": loss, "count": count}


def _class_counts(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels.cpu(), minlength=classes)


def _values(scalars: Sequence[Tensor]) -> list[Any]:
    """The values of tensors without dimensions; a GPU is waited for once."""
    return list(torch.stack(list(scalars)).tolist()) if scalars else []


def scored_batches(net: nn.Module, examples: Examples) -> Iterator[Batch]:
    """All examples, in the batches in which they are scored."""
    rows = BATCH
    if len(examples) > rows:
        where = next((weight.device for weight in net.parameters()), torch.device("cpu"))
        rows = rows_at_once(net, examples[slice(0, 1)]["x"].numel(), where)
    return _in_batches(net, examples, rows)


def rows_at_once(net: nn.Module, entries: int, hardware: torch.device) -> int:
    """How many rows, with so many entries each, are scored at once: more on a GPU, which small batches leave idle."""
    if hardware.type != "cuda" or depends_on_batch(net):
        return BATCH
    return max(BATCH, min(GPU_BATCH, GPU_ENTRIES // max(entries, 1)))


def depends_on_batch(net: nn.Module) -> bool:
    """Whether a norm takes the statistics of the batch, so that a row's score depends on the other rows."""
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in net.modules())


def _batches(net: nn.Module, examples: Examples, classes: int) -> Iterator[Batch]:
    """Batches of examples with many labels each, small enough that their logits fit into memory."""
    length = examples.columns["y"][:1].numel() or 1
    return _in_batches(net, examples, max(1, min(BATCH, ROOM // (length * classes))))


def _in_batches(net: nn.Module, examples: Examples, rows: int) -> Iterator[Batch]:
    """Batches of so many rows. Texts come in the order of their lengths, so that little of a batch is padding."""
    lengths = getattr(examples.prepare, "lengths", None)
    if lengths is not None and len(examples) > rows and not depends_on_batch(net):
        examples = examples.pick(lengths(examples.column("x")).argsort(stable=True))
    for at in range(0, len(examples), rows):
        yield examples[slice(at, at + rows)]
