"""A transfer as a task of the server's, how true its student came out, and what many students make together."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional

from potluck.core import Device, Model, Plain, Reply, Task, Work
from potluck.learn import CapturePool
from potluck.methods.moss.feature_matching import FeatureMatching
from potluck.methods.moss.transfer_loop import TransferLoop
from potluck.methods.moss.wire import MetaNetworks, WireSettings
from potluck.parts import WHOLE, OverlapMean


def taught(task: Task, device: Device, wire: WireSettings, flat: bool = False) -> Reply:
    """The task's ``student`` after its ``teacher`` taught it public rows, and what both learned about transferring.

    With ``gather`` in the task's config the student's batch norms gather running statistics of these rows.
    """
    teacher, student = task.models["teacher"], task.models["student"]
    matching = wire.matching(teacher.spec, student.spec, device.zoo)
    nets, public = (device.build(teacher), device.build(student)), device.public
    where, gather = next(iter(public.columns.values())).device, bool(task.config.get("gather"))
    capture_pool = device.cached("capture pool", lambda: CapturePool(where))
    transfer = device.cached(
        ("transfer", *map(id, nets), matching, wire, gather),
        lambda: TransferLoop(*nets, matching, MetaNetworks.of(task.arrays, where), wire, gather, capture_pool),
    )
    transfer.meta.fill(task.arrays)
    done = transfer.run(public, wire.rate(device.round), device.rng)
    batch = len(public) if wire.full_batch else min(wire.batch, len(public))
    asked, trained = (device.zoo.cost(model.spec, batch) for model in (teacher, student))
    device.charge(*effort(wire, matching, asked, trained, batch, done.samples, done.ahead))
    if matching is not None and wire.transforms == "fitted" and done.samples:
        passed = (asked.flops + trained.flops) // 3 * len(public) // batch
        device.charge(passed + matching.flops() * len(public), 0)
    true = fidelity(*done.scores, flat)
    metrics: dict[str, Plain] = {"loss": done.loss, "steps": done.steps, "fidelity": float(true)}
    if matching is not None:
        metrics |= {
            "loc": done.loc,
            "taps": [[stop.name for stop in end] for end in (matching.teacher, matching.student)],
        }
    arrays = {**transfer.meta.rest(), "fidelity": true}
    return Reply({"student": Model(student.spec, device.snapshot(nets[1]))}, arrays, metrics=metrics)


def fidelity(taught: Tensor, learned: Tensor, flat: bool = False) -> Tensor:
    """How much a student's scores point where its teacher's do, from 0 to 1: a mean over rows, or of all as one row."""
    one, other = (scores.double().reshape(1 if flat else len(scores), -1) for scores in (taught, learned))
    return ((functional.cosine_similarity(one, other).mean() + 1) / 2).clamp(0, 1)


def effort(
    wire: WireSettings,
    matching: FeatureMatching | None,
    teacher: Work,
    student: Work,
    batch: int,
    samples: int,
    ahead: int,
) -> tuple[int, int]:
    """FLOPs and memory of a transfer, from those of a training step of each network on a batch.

    Looking ahead takes a step for each state, one at the end, and on the way back, where gradients are differentiated,
    three.
    """
    states = wire.steps_ahead + 1
    flops = (student.flops * (samples + (4 * states + 1) * ahead) + teacher.flops // 3 * samples) // batch
    if matching is not None:
        flops += 3 * matching.flops() * (samples + 4 * wire.steps_ahead * ahead)
    copies, held = (3 + states + 1, 2) if ahead else (3, 1)
    return flops, student.parameter_bytes * copies + student.activation_bytes * held + teacher.parameter_bytes


def weighted_mean(start: Model, models: Iterable[tuple[Model, float]]) -> Model:
    """The mean of models of one network, each by its weight; all alike where nobody has any; none: as at the start."""
    found = list(models)
    uniform = not any(weight for _, weight in found)
    mean = OverlapMean(start.arrays)
    for model, weight in found:
        mean.add(model.arrays, WHOLE, 1.0 if uniform else weight)
    return Model(start.spec, mean.value())
