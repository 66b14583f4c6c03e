"""Updates that may leave a device: clipped to a norm, with noise on every entry; or only clipped, if the server adds
noise to the sum of many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from potluck.core import Arrays, Model, Newborn, NoiseSource, Reply, Task, Zoo, normal

TELLS_NOTHING = frozenset({"steps"})
"""Plain values that may leave a device unchanged: they depend only on the number of its examples."""


@dataclass(frozen=True)
class GaussianMechanism:
    """The Gaussian mechanism on the update (new minus sent) of one reply, over all of its models together.

    Trained tensors are clipped and get noise. Buffers and integer tensors go back as they were sent. Plain values that
    depend on the data are removed. A reply with other arrays is refused, because they would leave without noise.
    """

    clip: float
    """The largest Euclidean norm of an update; a longer one is scaled down to it."""
    noise: float
    """The standard deviation of the noise, as a multiple of `clip`."""

    def __call__(self, task: Task, reply: Reply, zoo: Zoo, rng: NoiseSource) -> Reply:
        """The reply as it may leave the device."""
        if reply.arrays:
            raise PermissionError(
                f"[privacy] lets only models leave a device; '{min(reply.arrays)}' is not part of one"
            )
        told = {name: value for name, value in reply.metrics.items() if name in TELLS_NOTHING}
        update = _Update(task, reply, zoo)
        models = update.models(self.clip_and_blur(update.step, rng)) if update.moving else update.models(update.step)
        return replace(reply, models=models, metrics=told)

    def clip_and_blur(self, step: Tensor, rng: NoiseSource) -> Tensor:
        """Clips an update and adds noise. One that is not finite becomes zero: it would reveal something too."""
        length = float(torch.linalg.vector_norm(step))
        if not math.isfinite(length):
            step = torch.zeros_like(step)
        elif length > self.clip:
            step = step * (self.clip / length)
        return step + self.noise * self.clip * normal((len(step),), rng).to(step.device)


CLIP = "privacy.clip"
"""The name under which a task says how far its update may go, if its reply will only be used in a private sum."""
WITHIN = "within"
"""The name under which a reply says whether its update was shorter than the clip (1) or not (0)."""


@dataclass(frozen=True)
class ServerClip(GaussianMechanism):
    """What a client does if the server adds the noise: it clips its update once, over its whole part of the model.

    All clients have the weight 1, and no plain value leaves. Rounding to the model's numbers does not make the update
    longer than the clip: one that cannot be rounded within it is sent as zero.
    """

    noise: float = 0.0
    """The standard deviation of the noise that the server adds to the sum, as a multiple of the clip."""
    adaptive: bool = False
    """Whether the clip follows the clients' norms, so that each reply says whether its update was within it."""

    def __call__(self, task: Task, reply: Reply, zoo: Zoo, rng: NoiseSource) -> Reply:
        clip = task.config.get(CLIP)
        if reply.arrays or (reply.models and not isinstance(clip, float)):
            what = min(reply.arrays) if reply.arrays else min(reply.models)
            raise PermissionError(f"[privacy] lets only updates leave a device that are summed; '{what}' is not")
        if not reply.models or not isinstance(clip, float):
            return replace(reply, weight=1.0, metrics={})
        update = _Update(task, reply, zoo)
        length = float(torch.linalg.vector_norm(update.step))
        told = {WITHIN: int(length <= clip)} if self.adaptive else {}
        return replace(reply, models=_clipped(update, length, clip), weight=1.0, metrics=told)


@dataclass(frozen=True)
class SumClip(GaussianMechanism):
    """What a client does if all of them add noise together, under the masks of a secure sum: it clips its update once.

    All clients have the weight 1, and no plain value leaves. `noise` is that of the sum; each client's share of it is
    added where the update is masked.
    """

    def __call__(self, task: Task, reply: Reply, zoo: Zoo, rng: NoiseSource) -> Reply:
        if reply.arrays:
            raise PermissionError(
                f"[privacy] lets only updates leave a device that are summed; '{min(reply.arrays)}' is not"
            )
        update = _Update(task, reply, zoo)
        models = _clipped(update, float(torch.linalg.vector_norm(update.step)), self.clip)
        return replace(reply, models=models, weight=1.0, metrics={})


def _clipped(update: _Update, length: float, clip: float) -> dict[str, Model]:
    """The models after a step of at most this length, as it is after rounding."""
    factor = 0.0 if not math.isfinite(length) else min(1.0, clip / length) if length else 1.0
    for _ in range(4):
        models = update.models(update.step * factor if factor else torch.zeros_like(update.step))
        rounded = update.length_of(models)
        if rounded <= clip:
            return models
        factor *= clip / rounded * (1 - 1e-9)
    return update.models(torch.zeros_like(update.step))


class _Update:
    """The update of a reply: what its models' trained tensors are, less what was sent."""

    def __init__(self, task: Task, reply: Reply, zoo: Zoo) -> None:
        self._reply = reply
        self._sent = {key: _sent_arrays(task, key) for key in reply.models}
        self.moving = {
            (key, name): new
            for key, model in sorted(reply.models.items())
            for name, new in _trained_tensors(model, self._sent[key], zoo)
        }
        self.step = self._difference(self.moving)
        """All of it, in float64."""

    def models(self, step: Tensor) -> dict[str, Model]:
        """The reply's models after this step from what was sent; buffers and integers are as they were sent."""
        left: dict[str, dict[str, Tensor]] = {key: dict(arrays) for key, arrays in self._sent.items()}
        pieces = torch.split(step, [new.numel() for new in self.moving.values()]) if self.moving else ()
        for ((key, name), new), piece in zip(self.moving.items(), pieces, strict=True):
            left[key][name] = (self._sent[key][name].double() + piece.view(new.shape)).to(new.dtype)
        return {
            key: Model(model.spec, {name: left[key][name] for name in model.arrays})
            for key, model in self._reply.models.items()
        }

    def length_of(self, models: Mapping[str, Model]) -> float:
        """The Euclidean norm of the step that these models have made."""
        step = self._difference({(key, name): models[key].arrays[name] for key, name in self.moving})
        return float(torch.linalg.vector_norm(step))

    def _difference(self, new: Mapping[tuple[str, str], Tensor]) -> Tensor:
        steps = [(tensor.double() - self._sent[key][name].double()).reshape(-1) for (key, name), tensor in new.items()]
        return torch.cat(steps) if steps else torch.zeros(0, dtype=torch.float64)


def _sent_arrays(task: Task, key: str) -> Arrays:
    """The tensors that were sent for a model of the reply."""
    sent = task.models.get(key)
    if sent is None or isinstance(sent, Newborn):
        raise PermissionError(f"[privacy] needs the update of model '{key}', but none was sent to compare it with")
    return sent.arrays


def _trained_tensors(model: Model, sent: Arrays, zoo: Zoo) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model that training changes, sorted by name."""
    fixed = zoo.buffers(model.spec)
    for name, new in sorted(model.arrays.items()):
        if name not in sent or sent[name].shape != new.shape:
            raise PermissionError(f"[privacy] needs the update of '{name}', but it was not sent in this shape")
        if new.is_floating_point() and name not in fixed:
            yield name, new
