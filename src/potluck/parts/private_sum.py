"""Private sums: noise on the sum of clipped updates, before the server's model sees it.

Clients hold unequal parts of the model. Each of them adds an update of at most one clip to the sum, over all of its
entries together, whatever its part is. So one Gaussian noise on every entry covers them all. The sum is divided by a
number that everyone may know: how many clients are expected to hold an entry, not how many did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from potluck.core import Arrays, NoiseSource, normal
from potluck.parts.mean import OverlapMean, Sums
from potluck.parts.part import Part

Holders: TypeAlias = "Mapping[str, float | Tensor]"
"""How many clients hold each entry, by tensor: one number, or a tensor that broadcasts to its shape."""


def expected_holders(start: Arrays, tiers: Iterable[tuple[Part, float]], fixed: Iterable[str] = ()) -> Holders:
    """How many clients are expected to hold each entry of the trained tensors: of each tier, its part and how many.

    `fixed` names tensors that are not trained. Those that no tier holds are left out.

    >>> wide, narrow = Part({"w": Place("w")}), Part({"w": Place("w", ((slice(0, 1),),))})
    >>> expected_holders({"w": torch.zeros(2)}, [(wide, 2.0), (narrow, 3.0)])["w"].tolist()
    [5.0, 2.0]
    """
    blank = {name: torch.zeros((), dtype=tensor.dtype, device=tensor.device) for name, tensor in start.items()}
    mean = OverlapMean({name: blank[name].expand(tensor.shape) for name, tensor in start.items()})
    for part, count in tiers:
        mean.add(part.take(mean.start), part, count)
    mean.coverage()  # closes the last block
    left = frozenset(fixed)
    return {name: weight for name, weight in mean.sums.weights.items() if name not in left}


def first_holders(found: Iterable[Holders]) -> Holders:
    """For each entry, how many hold it in the first of these in which anybody does.

    >>> {name: count.tolist() for name, count in first_holders([{"w": torch.tensor([2.0, 0.0])}, {"w": 3.0}]).items()}
    {'w': [2.0, 3.0]}
    """
    first: dict[str, float | Tensor] = {}
    for holders in found:
        for name, count in holders.items():
            had = first.get(name, 0.0)
            first[name] = torch.where(had > 0, had, count) if isinstance(had, Tensor) else had or count
    return first


def privatise(
    sums: Sums,
    start: Arrays,
    expected: Holders,
    clip: float,
    noise: float,
    rng: NoiseSource,
    undo: Iterable[NoiseSource] = (),
) -> Sums:
    """The sum of updates with noise of `noise` times `clip`, as sums whose mean is the start plus the private update.

    Every entry that has expected holders gets noise, also if nobody sent it. All other entries, integers and tensors
    that are not in `expected` keep their value. `undo`: earlier noise to take back, each from a generator as it was
    when it was drawn (noise on prefix sums). Weights of the sums must be one for each client.
    """
    found, earlier = Sums(), list(undo)
    for name, tensor in sorted(start.items()):
        if not tensor.is_floating_point():
            continue
        # Drawn for every tensor, so that a generator gives the same noise again whoever is expected then.
        drawn = _normal(tensor, rng)
        for other in earlier:
            drawn -= _normal(tensor, other)
        if name in expected:
            old, holders = tensor.double(), expected[name]
            update = sums.totals[name] - sums.weights[name] * old if name in sums.totals else torch.zeros_like(old)
            found.totals[name], found.weights[name] = update + noise * clip * drawn + holders * old, holders
    return found


def _normal(like: Tensor, rng: NoiseSource) -> Tensor:
    return normal(tuple(like.shape), rng).to(like.device)
