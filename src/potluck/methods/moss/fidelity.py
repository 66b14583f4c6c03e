"""FILE: the server averages the proxies, weighted by fidelity: how much a proxy agrees with its teacher."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional

from potluck.core import Model
from potluck.parts import WHOLE, OverlapMean


def fidelity(teacher: Tensor, student: Tensor, flat: bool = False) -> Tensor:
    """Cosine similarity of a teacher's and a student's logits, scaled to [0, 1].

    The mean over rows or, if `flat`, one cosine of all rows in one vector.
    """
    one, other = (logits.double().reshape(1 if flat else len(logits), -1) for logits in (teacher, student))
    return ((functional.cosine_similarity(one, other).mean() + 1) / 2).clamp(0, 1)


def weighted_mean(start: Model, models: Iterable[tuple[Model, float]]) -> Model:
    """The mean of models, each with its fidelity as weight; `start` where there is no model.

    If all weights are zero, all models count alike.
    """
    weighted = list(models)
    uniform = not any(weight for _, weight in weighted)
    mean = OverlapMean(start.arrays)
    for model, weight in weighted:
        mean.add(model.arrays, WHOLE, 1.0 if uniform else weight)
    return Model(start.spec, mean.value())
