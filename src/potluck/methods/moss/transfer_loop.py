"""The loop of WIRE: batch by batch a student steps down labels and features, then the small networks learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd

from potluck.core import Batch, Examples, Plain
from potluck.learn import (
    BATCH,
    CapturedStep,
    CapturePool,
    batch_rows,
    clip_gradients,
    cross_entropy,
    make_optimiser,
    side_stream,
    trainable_weights,
)
from potluck.methods.moss.bilevel import Numbers, through_steps
from potluck.methods.moss.double_backward import DoubleBackward
from potluck.methods.moss.feature_matching import FeatureMatching, MatchTargets
from potluck.methods.moss.watch import TappedNetwork
from potluck.methods.moss.wire import MetaNetworks, WireSettings

TRANSFORM = "transform/"
"""What the names of transforms begin with, among the student's weights."""
Parts: TypeAlias = Literal["labels", "features", "both"]


@dataclass(frozen=True)
class TransferResult:
    """What a transfer tells."""

    loss: float
    """Mean over the steps; NaN when there was none."""
    steps: int
    samples: int
    """Rows seen, counted with repetition."""
    ahead: int
    """Of these, rows of batches after which small networks looked ahead."""
    loc: list[Plain]
    """How much each pair of taps matters by the end, over all rows: a line for each of the teacher's."""
    scores: tuple[Tensor, Tensor]
    """What teacher and student say of all rows by the end."""


@dataclass(frozen=True, eq=False)
class TransferBatch:
    """One batch, and what the teacher makes of it."""

    student: TappedNetwork
    matching: FeatureMatching | None
    beta: float
    x: Tensor
    labels: Tensor
    answers: Tensor | None
    """The teacher's scores, where they stand for labels."""
    goals: MatchTargets | None

    def loss(self, parts: Parts, weights: Numbers, small: Numbers, gather: bool = False) -> Tensor:
        """What the student descends under these weights: labels, features, or both."""
        own = {name: weight for name, weight in weights.items() if not name.startswith(TRANSFORM)}
        scores, maps = self.student(self.x, own, gather)
        total = torch.zeros((), device=scores.device)
        if parts != "features":
            total = total + cross_entropy(scores, self.labels, self.answers)
        if parts != "labels" and self.matching is not None and self.goals is not None:
            transforms = {name.removeprefix(TRANSFORM): weights[name] for name in weights.keys() - own.keys()}
            total = total + self.beta * self.matching.loss(small, transforms, self.goals, maps)
        return total


class TransferLoop:
    """A teacher and a student, both live, and what is between them.

    All that a step touches stays at its place in memory, from call to call: on a GPU steps are recorded and played.
    """

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        matching: FeatureMatching | None,
        meta: MetaNetworks,
        wire: WireSettings,
        gather: bool,
        capture_pool: CapturePool | None = None,
    ) -> None:
        """`gather` lets the student's batch norms gather running statistics of the public rows."""
        self.matching, self.meta, self.wire, self.gather = matching, meta, wire, gather
        ends = (matching.teacher, matching.student) if matching else ((), ())
        self.teacher, self.student = (
            TappedNetwork(net, [stop.name for stop in taps]) for net, taps in zip((teacher, student), ends, strict=True)
        )
        where = next(student.parameters()).device
        self.move, self.rate = make_optimiser(wire, wire.lr, where), torch.tensor(wire.lr, device=where)
        capture_pool = capture_pool or CapturePool(where)
        self.reels = (
            CapturedStep(partial(self._turn, False), capture_pool),
            CapturedStep(partial(self._turn, True), capture_pool),
        )
        self.looking = wire.train == "bilevel" and bool(meta.small)
        self.parts: Parts = {"location": "features", "ce": "labels"}.get(wire.loss, "both")  # type: ignore[assignment]

    def run(self, examples: Examples, lr: float, rng: torch.Generator) -> TransferResult:
        """Teaches, in place."""
        local = replace(self.wire, batch=max(len(examples), 1)) if self.wire.full_batch else self.wire
        # A row by itself has no statistics for batch norms.
        batches = [batch for batch in batch_rows(len(examples), local, rng) if len(batch) > 1 or len(examples) == 1]
        self.move.reset(lr)
        self.rate.fill_(lr)
        with side_stream(self.reels[0].capture_pool.stream), self.teacher, self.student:
            self._wake()
            self._fit_transforms([examples[picked] for picked in batches[: -(-len(examples) // local.batch)]])
            looks = [self.looking and at % self.wire.ahead_every == 0 for at in range(len(batches))]
            losses = [self.reels[look](examples[picked]) for look, picked in zip(looks, batches, strict=True)]
            loc, scores = self._judged(examples)
        mean = float(torch.stack(losses).mean()) if losses else float("nan")
        ahead = sum(len(picked) for look, picked in zip(looks, batches, strict=True) if look)
        return TransferResult(mean, len(batches), sum(map(len, batches)), ahead, loc, scores)

    def _turn(self, ahead: bool, batch: Batch) -> Tensor:
        """What becomes of a batch: a step of the student, then perhaps a look ahead; the loss."""
        transforms = {f"{TRANSFORM}{name}": t.requires_grad_() for name, t in self.meta.transforms.items()}
        scene, weights = self._scene(batch), {**trainable_weights(self.student.net), **transforms}
        loss = self._step(scene, weights)
        if ahead:
            self._look_ahead(scene, weights)
        return loss

    def _wake(self) -> None:
        """The student trains, without dropout: a step that is taken twice must be the same step."""
        self.teacher.net.eval()
        for layer in self.student.net.train().modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()

    def _fit_transforms(self, batches: Sequence[Batch]) -> None:
        """Lets transforms start where they fit best: random ones would pull the student's features at random."""
        if self.matching is None or self.wire.transforms == "random" or not batches:
            return
        with torch.no_grad():
            seen = (
                (self.matching.goals(self.teacher(batch["x"])[1]), self.student(batch["x"])[1]) for batch in batches
            )
            for name, best in self.matching.fitted(seen).items():
                self.meta.transforms[name].copy_(best)

    def _scene(self, batch: Batch) -> TransferBatch:
        with torch.no_grad():
            scores, maps = self.teacher(batch["x"])
            goals = self.matching.goals(maps) if self.matching else None
        own = self.wire.target == "labels" and "y" in batch
        labels, soft = batch["y"] if own else scores.argmax(-1), not own and self.wire.target != "teacher"
        return TransferBatch(
            self.student, self.matching, self.wire.beta, batch["x"], labels, scores if soft else None, goals
        )

    def _step(self, scene: TransferBatch, weights: Numbers) -> Tensor:
        """A step that counts: of the student and its transforms and, in joint training, of the small networks too."""
        joint = self.wire.train == "joint"
        small = {name: tensor.detach().requires_grad_(joint) for name, tensor in self.meta.small.items()}
        value, moving = scene.loss(self.parts, weights, small, self.gather), list(weights.values())
        wanted = [*moving, *small.values()] if joint else moving
        grads = list(torch.autograd.grad(value, wanted, materialize_grads=True))
        own, others = grads[: len(moving)], grads[len(moving) :]
        with torch.no_grad():
            self.move(moving, own if self.wire.clip is None else clip_gradients(own, self.wire.clip))
            if others:
                self._learn(dict(zip(small, others, strict=True)))
        return value.detach()

    def _look_ahead(self, scene: TransferBatch, weights: Numbers) -> None:
        """Where the next steps would lead, and what of that the small networks learn; the weights stay."""
        features, labels = partial(scene.loss, "features"), partial(scene.loss, "labels")
        ahead = [features] * self.wire.steps_ahead + [labels]
        start = {name: weight.detach() for name, weight in weights.items()}
        with DoubleBackward(), sdpa_kernel(SDPBackend.MATH):  # fused attention has gradients, but they have none
            _, grads = through_steps(start, self.meta.small, ahead, self.rate, labels)
        with torch.no_grad():
            self._learn(grads)

    def _learn(self, grads: Numbers) -> None:
        self.meta.learn(grads, self.wire.meta_lr, self.wire.meta_decay)

    def _judged(self, examples: Examples) -> tuple[list[Plain], tuple[Tensor, Tensor]]:
        """How much pairs matter, and what both networks say, over all rows."""
        self.student.net.eval()
        locs, said, heard = list[Tensor](), list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for at in range(0, len(examples), BATCH):
                x = examples[slice(at, at + BATCH)]["x"]
                scores, maps = self.teacher(x)
                said.append(scores)
                heard.append(self.student(x)[0])
                if self.matching is not None:
                    locs.append(self.matching.locs(self.meta.small, [features.mean((2, 3)) for features in maps]))
        table: list[Plain] = torch.cat(locs).mean(0).tolist() if locs else []
        return table, (torch.cat(said), torch.cat(heard))
