"""The Gaussian mechanism: an update is clipped to a norm, and every number of it gets noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from potluck.core import Arrays, Model, Newborn, Reply, Task, Zoo

TELLS_NOTHING = frozenset({"steps"})
"""Plain values that may leave a device as they are: they follow from the number of its examples."""


@dataclass(frozen=True)
class GaussianMechanism:
    """The Gaussian mechanism on the update (new minus sent) of one reply, all of its models taken together.

    Trained tensors are clipped and get noise. Buffers and whole numbers go back as they were sent, plain values that
    tell of the data stay behind, and a reply with other arrays is refused: no part of it may leave as it is.
    """

    clip: float
    """The longest update, in the Euclidean norm; a longer one is scaled down to this."""
    noise: float
    """The noise's standard deviation, in lengths of the clip."""

    def __call__(self, task: Task, reply: Reply, zoo: Zoo, rng: torch.Generator) -> Reply:
        """The reply as it may leave the device."""
        if reply.arrays:
            raise PermissionError(f"[privacy] lets models leave a device, and '{min(reply.arrays)}' is no part of one")
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
        """An update no longer than the clip, with noise. One that is not finite counts as none: that would tell too."""
        length = float(torch.linalg.vector_norm(step))
        if not math.isfinite(length):
            step = torch.zeros_like(step)
        elif length > self.clip:
            step = step * (self.clip / length)
        drawn = torch.randn(len(step), generator=rng, dtype=torch.float64)
        return step + self.noise * self.clip * drawn.to(step.device)


def _sent_arrays(task: Task, key: str) -> Arrays:
    """The tensors that a model of the reply is compared with."""
    sent = task.models.get(key)
    if sent is None or isinstance(sent, Newborn):
        raise PermissionError(f"[privacy] needs to know how far model '{key}' moved, and none was sent")
    return sent.arrays


def _trained_tensors(model: Model, sent: Arrays, zoo: Zoo) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model that training moves, by name and in its order."""
    fixed = zoo.buffers(model.spec)
    for name, new in sorted(model.arrays.items()):
        if name not in sent or sent[name].shape != new.shape:
            raise PermissionError(f"[privacy] needs to know how far '{name}' moved, and it was not sent in this shape")
        if new.is_floating_point() and name not in fixed:
            yield name, new
