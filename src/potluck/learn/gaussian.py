"""The Gaussian mechanism: an update is clipped to a norm, and noise is added to every entry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from potluck.core import Arrays, Model, Newborn, Reply, Task, Zoo

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

    def __call__(self, task: Task, reply: Reply, zoo: Zoo, rng: torch.Generator) -> Reply:
        """The reply as it may leave the device."""
        if reply.arrays:
            raise PermissionError(
                f"[privacy] lets only models leave a device; '{min(reply.arrays)}' is not part of one"
            )
        told = {name: value for name, value in reply.metrics.items() if name in TELLS_NOTHING}
        sent = {key: _sent_arrays(task, key) for key in reply.models}
        moving = {
            (key, name): new
            for key, model in sorted(reply.models.items())
            for name, new in _trained_tensors(model, sent[key], zoo)
        }
        steps = [(new.double() - sent[key][name].double()).reshape(-1) for (key, name), new in moving.items()]
        blurred = torch.split(self.clip_and_blur(torch.cat(steps), rng), [len(step) for step in steps]) if steps else ()
        left: dict[str, dict[str, Tensor]] = {key: dict(arrays) for key, arrays in sent.items()}
        for ((key, name), new), step in zip(moving.items(), blurred, strict=True):
            left[key][name] = (sent[key][name].double() + step.view(new.shape)).to(new.dtype)
        models = {
            key: Model(model.spec, {name: left[key][name] for name in model.arrays})
            for key, model in reply.models.items()
        }
        return replace(reply, models=models, metrics=told)

    def clip_and_blur(self, step: Tensor, rng: torch.Generator) -> Tensor:
        """Clips an update and adds noise. One that is not finite becomes zero: it would reveal something too."""
        length = float(torch.linalg.vector_norm(step))
        if not math.isfinite(length):
            step = torch.zeros_like(step)
        elif length > self.clip:
            step = step * (self.clip / length)
        drawn = torch.randn(len(step), generator=rng, dtype=torch.float64)
        return step + self.noise * self.clip * drawn.to(step.device)


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
