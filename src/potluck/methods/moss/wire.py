"""WIRE: a student learns public rows from their labels and from the features of a teacher of another architecture.

Cai et al., IMWUT 2025. Meta-networks weigh the features (`feature_matching.py`). If they were trained to lower the
student's loss, they would set all weights to zero. So they are trained as in Jang et al. (ICML 2019), by bilevel
optimisation (`bilevel.py`): after each step of the student, simulate a few more steps on the features and one on the
labels, and change the meta-networks so that the loss after these steps becomes smaller.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd

from potluck.core import Arrays, Batch, Device, Examples, Model, Plain, Reply, Spec, Task, Work, Zoo
from potluck.learn import (
    BATCH,
    CapturedStep,
    CapturePool,
    DistillationSettings,
    batch_rows,
    clip_gradients,
    cross_entropy,
    make_optimiser,
    side_stream,
    trainable_weights,
)
from potluck.methods.moss.bilevel import gradient_through_steps
from potluck.methods.moss.double_backward import DoubleBackward
from potluck.methods.moss.feature_matching import FeatureMatching, MatchTargets, MetaNetworks
from potluck.methods.moss.fidelity import fidelity
from potluck.methods.moss.recalibrate import recalibrate
from potluck.methods.moss.taps import TappedNetwork, tap_shapes

TRANSFORM = "transform/"
"""Prefix of the transforms' names among the student's weights."""
LossTerms: TypeAlias = Literal["labels", "features", "both"]


@dataclass(frozen=True)
class WireSettings(DistillationSettings):
    """How students are trained: SGD on labels and features, five epochs a round."""

    lr: float = 1e-3
    momentum: float = 0.05
    epochs: int = 5
    batch: int = 32
    full_batch: bool = False
    """One step an epoch, on all rows at once."""
    recalibrate: bool = True
    """After the last step, gather the student's batch norm statistics anew, in one pass over the public rows. If false,
    those of proxies follow their steps, and those of tiers' models stay."""
    loss: Literal["full", "location", "ce", "mse"] = "full"
    """Labels and features; features alone; labels alone; labels and features of equal depth, all with equal weight."""
    beta: float = 1.0
    """Weight of the features' loss; the labels' loss has weight 1."""
    target: Literal["labels", "teacher", "soft"] = "labels"
    """What the cross-entropy compares with: the labels, the teacher's predicted class, or its probabilities (for rows
    without labels, or with labels of another task). Rows without labels use the probabilities, unless "teacher"."""
    train: Literal["bilevel", "joint"] = "bilevel"
    """How meta-networks are trained: through simulated steps of the student, or on the student's own loss."""
    transforms: Literal["fitted", "random"] = "fitted"
    """How transforms of features start: as least squares in every call, or at random in the first call."""
    steps_ahead: int = 2  # T in Jang et al.
    """Simulated steps on the features, before the one on the labels."""
    ahead_every: int = 1
    """Train the meta-networks after every so many steps: it takes about thirteen times as long as a step."""
    meta_lr: float = 1e-4
    """The learning rate of the meta-networks."""
    meta_decay: float = 1e-4
    """The weight decay of the meta-networks."""
    meta_layers: Literal[1, 2] = 1
    """Linear layers of each meta-network."""
    loc_norm: Literal["none", "softmax"] = "none"
    """Loc of each pair of taps lies between 0 and 6, or all Locs sum to one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "steps_ahead", "meta_lr", "meta_decay"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"method.wire.{name} = {value} is below 0")
        if self.ahead_every < 1:
            raise ValueError(f"method.wire.ahead_every = {self.ahead_every} is below 1")

    def warn(self) -> None:
        """Warns of settings under which the weight of features goes to zero."""
        if self.train == "joint" and self.loc_norm == "none" and self.loss in ("full", "location"):
            warnings.warn(
                'method.wire.train = "joint" lowers the weight of features to zero, because that lowers the loss; '
                'set method.wire.loc_norm = "softmax", or use "bilevel".',
                stacklevel=2,
            )

    def matching(self, teacher: Spec, student: Spec, zoo: Zoo) -> FeatureMatching | None:
        """The pairs of taps between two networks; None where features do not count."""
        if self.loss == "ce":
            return None
        taps = tap_shapes(teacher, zoo), tap_shapes(student, zoo)
        return FeatureMatching(*taps, self.loss != "mse", self.meta_layers, self.loc_norm == "softmax")


@dataclass(frozen=True, eq=False)
class TransferBatch:
    """One batch with the teacher's outputs for it: the student's loss as a function of weights and meta-networks."""

    student: TappedNetwork
    matching: FeatureMatching | None
    beta: float
    x: Tensor
    labels: Tensor
    teacher_logits: Tensor | None
    """Where the teacher's probabilities stand for labels."""
    targets: MatchTargets | None

    def loss(self, terms: LossTerms, weights: Arrays, meta: Arrays, update_statistics: bool = False) -> Tensor:
        """The loss of the student with these weights: of labels, of features, or of both."""
        own = {name: weight for name, weight in weights.items() if not name.startswith(TRANSFORM)}
        logits, maps = self.student(self.x, own, update_statistics)
        total = torch.zeros((), device=logits.device)
        if terms != "features":
            total = total + cross_entropy(logits, self.labels, self.teacher_logits)
        if terms != "labels" and self.matching is not None and self.targets is not None:
            transforms = {name.removeprefix(TRANSFORM): tensor for name, tensor in weights.items() if name not in own}
            total = total + self.beta * self.matching.loss(meta, transforms, self.targets, maps)
        return total


@dataclass(frozen=True)
class TransferResult:
    """What a transfer reports."""

    loss: float
    """Mean over the steps; NaN if there was none."""
    steps: int
    samples: int
    """Rows that the student trained on, with repetition."""
    samples_ahead: int
    """Of these, rows of batches on which the meta-networks trained by simulated steps."""
    recalibrated: int
    """Rows of the pass that gathered batch norm statistics; 0 if there was none."""
    loc: list[Plain]
    """Mean Loc of each pair of taps over all rows, at the end: one line for each tap of the teacher."""
    logits: tuple[Tensor, Tensor]
    """Of the teacher and of the student for all rows, at the end."""


class TransferLoop:
    """WIRE's training loop: a live teacher, a live student, and the meta-networks between them.

    All tensors of a step stay at their place in memory from call to call, because on a GPU steps are captured as CUDA
    graphs and replayed.
    """

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        matching: FeatureMatching | None,
        meta: MetaNetworks,
        wire: WireSettings,
        update_statistics: bool,
        capture_pool: CapturePool | None = None,
    ) -> None:
        """`update_statistics`: whether the student's batch norm statistics follow its steps."""
        self.matching, self.meta, self.wire, self.update_statistics = matching, meta, wire, update_statistics
        taps = (matching.teacher, matching.student) if matching else ((), ())
        self.teacher, self.student = (
            TappedNetwork(net, [tap.name for tap in own]) for net, own in zip((teacher, student), taps, strict=True)
        )
        hardware = next(student.parameters()).device
        self.optimiser, self.lr = make_optimiser(wire, wire.lr, hardware), torch.tensor(wire.lr, device=hardware)
        pool = capture_pool or CapturePool(hardware)
        self.captured_steps = tuple(CapturedStep(partial(self._step, ahead), pool) for ahead in (False, True))
        """A step of the student alone, and one that also trains the meta-networks by simulated steps."""
        self.bilevel = wire.train == "bilevel" and bool(meta.weights)
        self.terms: LossTerms = {"location": "features", "ce": "labels"}.get(wire.loss, "both")  # type: ignore[assignment]

    def run(self, examples: Examples, lr: float, rng: torch.Generator) -> TransferResult:
        """Trains the student and the meta-networks, in place."""
        local = replace(self.wire, batch=max(len(examples), 1)) if self.wire.full_batch else self.wire
        # Batch norm has no variance for a single row.
        batches = [batch for batch in batch_rows(len(examples), local, rng) if len(batch) > 1 or len(examples) == 1]
        ahead = [self.bilevel and at % self.wire.ahead_every == 0 for at in range(len(batches))]
        self.optimiser.reset(lr)
        self.lr.fill_(lr)
        with side_stream(self.captured_steps[0].capture_pool.stream):
            self._set_modes()
            self._fit_transforms([examples[batch] for batch in batches[: local.batches(len(examples))]])
            losses = [self.captured_steps[both](examples[batch]) for both, batch in zip(ahead, batches, strict=True)]
            gather = self.wire.recalibrate and bool(losses)
            recalibrated = recalibrate(self.student.net, examples, local.batch, rng) if gather else 0
            loc, logits = self._evaluate(examples)
        mean = float(torch.stack(losses).mean()) if losses else float("nan")
        samples_ahead = sum(len(batch) for both, batch in zip(ahead, batches, strict=True) if both)
        samples = sum(map(len, batches))
        return TransferResult(mean, len(batches), samples, samples_ahead, recalibrated, loc, logits)

    def _set_modes(self) -> None:
        """The student trains, but without dropout: a step that is simulated again must be the same step."""
        self.teacher.net.eval()
        for layer in self.student.net.train().modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()

    def _fit_transforms(self, batches: Sequence[Batch]) -> None:
        """Starts transforms as least squares: random ones would push the student's features in random directions."""
        if self.matching is None or self.wire.transforms == "random" or not batches:
            return
        with torch.no_grad():
            features = (
                (self.matching.targets(self.teacher(batch["x"])[1]), self.student(batch["x"])[1]) for batch in batches
            )
            for name, transform in self.matching.least_squares_transforms(features).items():
                self.meta.transforms[name].copy_(transform)

    def _step(self, ahead: bool, batch: Batch) -> Tensor:
        """One step on a batch: of the student and, if `ahead`, of the meta-networks; the student's loss."""
        transforms = {f"{TRANSFORM}{name}": t.requires_grad_() for name, t in self.meta.transforms.items()}
        transfer_batch, weights = self._transfer_batch(batch), {**trainable_weights(self.student.net), **transforms}
        loss = self._student_step(transfer_batch, weights)
        if ahead:
            self._meta_step(transfer_batch, weights)
        return loss

    def _transfer_batch(self, batch: Batch) -> TransferBatch:
        with torch.no_grad():
            logits, maps = self.teacher(batch["x"])
            targets = self.matching.targets(maps) if self.matching else None
        own = self.wire.target == "labels" and "y" in batch
        labels, soft = batch["y"] if own else logits.argmax(-1), not own and self.wire.target != "teacher"
        return TransferBatch(
            self.student, self.matching, self.wire.beta, batch["x"], labels, logits if soft else None, targets
        )

    def _student_step(self, batch: TransferBatch, weights: Arrays) -> Tensor:
        """A step of the student and its transforms; in joint training, of the meta-networks too."""
        joint = self.wire.train == "joint"
        meta = {name: tensor.detach().requires_grad_(joint) for name, tensor in self.meta.weights.items()}
        loss, own = batch.loss(self.terms, weights, meta, self.update_statistics), list(weights.values())
        wanted = [*own, *meta.values()] if joint else own
        grads = list(torch.autograd.grad(loss, wanted, materialize_grads=True))
        own_grads, meta_grads = grads[: len(own)], grads[len(own) :]
        with torch.no_grad():
            self.optimiser(own, own_grads if self.wire.clip is None else clip_gradients(own_grads, self.wire.clip))
            if meta_grads:
                self._adam_step(dict(zip(meta, meta_grads, strict=True)))
        return loss.detach()

    def _meta_step(self, batch: TransferBatch, weights: Arrays) -> None:
        """A step of the meta-networks, by the labels' loss after simulated steps of the student; its weights stay."""
        features, labels = partial(batch.loss, "features"), partial(batch.loss, "labels")
        inner = [features] * self.wire.steps_ahead + [labels]
        start = {name: weight.detach() for name, weight in weights.items()}
        with DoubleBackward(), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
            _, grads = gradient_through_steps(start, self.meta.weights, inner, self.lr, labels, self.wire.clip)
        with torch.no_grad():
            self._adam_step(grads)

    def _adam_step(self, grads: Arrays) -> None:
        self.meta.adam_step(grads, self.wire.meta_lr, self.wire.meta_decay)

    def _evaluate(self, examples: Examples) -> tuple[list[Plain], tuple[Tensor, Tensor]]:
        """Mean Loc, and the logits of teacher and student, over all rows."""
        self.student.net.eval()
        locs, teacher, student = list[Tensor](), list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for at in range(0, len(examples), BATCH):
                x = examples[slice(at, at + BATCH)]["x"]
                logits, maps = self.teacher(x)
                teacher.append(logits)
                student.append(self.student(x)[0])
                if self.matching is not None:
                    locs.append(self.matching.loc(self.meta.weights, [features.mean((2, 3)) for features in maps]))
        table: list[Plain] = torch.cat(locs).mean(0).tolist() if locs else []
        return table, (torch.cat(teacher), torch.cat(student))


def run_transfer(task: Task, device: Device, wire: WireSettings, flat: bool = False) -> Reply:
    """The server's task: its ``teacher`` teaches its ``student``. The reply holds the student and the meta-networks.

    ``update_statistics`` in the task's config lets the student's batch norm statistics follow its steps.
    """
    teacher, student = task.models["teacher"], task.models["student"]
    matching = wire.matching(teacher.spec, student.spec, device.zoo)
    nets, public = (device.build(teacher), device.build(student)), device.public
    hardware, update = next(iter(public.columns.values())).device, bool(task.config.get("update_statistics"))
    pool = device.cached("capture pool", lambda: CapturePool(hardware))
    loop = device.cached(
        ("transfer", *map(id, nets), matching, wire, update),
        lambda: TransferLoop(*nets, matching, MetaNetworks.from_arrays(task.arrays, hardware), wire, update, pool),
    )
    loop.meta.load(task.arrays)
    result = loop.run(public, wire.rate(device.round), device.rng)
    batch = len(public) if wire.full_batch else min(wire.batch, len(public))
    teacher_work, student_work = (device.zoo.cost(model.spec, batch) for model in (teacher, student))
    samples = result.samples, result.samples_ahead
    forward = (teacher_work.forward_flops + student_work.forward_flops) * len(public) // batch
    device.charge(*transfer_cost(wire, matching, teacher_work, student_work, batch, *samples))
    if matching is not None and wire.transforms == "fitted" and result.samples:
        device.charge(forward + matching.flops() * len(public), 0)
    end = forward + (matching.meta_flops() * len(public) if matching else 0)
    device.charge(end + student_work.forward_flops * result.recalibrated // batch, 0)
    agreement = fidelity(*result.logits, flat)
    metrics: dict[str, Plain] = {"loss": result.loss, "steps": result.steps, "fidelity": float(agreement)}
    if matching is not None:
        taps: list[Plain] = [[tap.name for tap in own] for own in (matching.teacher, matching.student)]
        metrics |= {"loc": result.loc, "taps": taps}
    arrays = {**loop.meta.snapshot(), "fidelity": agreement}
    return Reply({"student": Model(student.spec, device.snapshot(nets[1]))}, arrays, metrics=metrics)


def transfer_cost(
    wire: WireSettings,
    matching: FeatureMatching | None,
    teacher: Work,
    student: Work,
    batch: int,
    samples: int,
    samples_ahead: int,
) -> tuple[int, int]:
    """FLOPs and memory of a transfer, from those of a training step of each network on a batch.

    Simulated steps cost one training step each, one more for the loss at the end and, on the way back, where gradients
    are differentiated, three each. Meta-networks take a forward pass each time, and
    as much again for their own gradient.
    """
    states = wire.steps_ahead + 1
    flops = (student.flops * (samples + (4 * states + 1) * samples_ahead) + teacher.forward_flops * samples) // batch
    if matching is not None:
        flops += 3 * matching.flops() * (samples + 4 * wire.steps_ahead * samples_ahead)
        flops += matching.meta_flops() * (samples + 3 * wire.steps_ahead * samples_ahead)
    copies, graphs = (3 + states + 1, 2) if samples_ahead else (3, 1)
    return flops, student.parameter_bytes * copies + student.activation_bytes * graphs + teacher.parameter_bytes
