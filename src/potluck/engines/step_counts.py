"""What local steps compute, by network and loss: each is counted once in a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from torch import nn

from potluck.core import Column, Loss, Spec, Zoo
from potluck.learn import StepCount, count_step, held_tensors, step_count_of, structure_key, without_numbers

MOST = 1024
"""The most counts that are kept; beyond that, the oldest is forgotten."""

SpecOf: TypeAlias = "Callable[[nn.Module], Spec | None]"
"""The spec of a live network; None: the device did not build it."""


class StepCounts:
    """Counts of local steps, for every network and loss that they were asked for."""

    def __init__(self, zoo: Zoo, plain: Loss) -> None:
        self._zoo, self._plain = zoo, plain
        self._networks: dict[Spec, StepCount] = {}
        self._losses: dict[Hashable, tuple[StepCount, Loss | None]] = {}

    def of(self, spec: Spec, loss: Loss, columns: Mapping[str, Column], spec_of: SpecOf) -> StepCount:
        """The count of a step of this network with this loss, on examples with these columns.

        If the loss cannot be counted (it reads numbers, for example, or holds a network that the device did not build),
        that of the network alone, and a forward pass of each other network that the loss holds.
        """
        if loss == self._plain:
            return self._of_network(spec)
        shapes = tuple((name, tuple(column.shape[1:]), column.dtype) for name, column in columns.items())
        try:
            key = (spec, structure_key(loss, partial(_known, spec_of)), shapes)
        except TypeError:
            return self._estimate(spec, loss, spec_of)
        if key not in self._losses:
            if len(self._losses) >= MOST:
                del self._losses[next(iter(self._losses))]
            self._losses[key] = self._count(spec, loss, columns, spec_of)
        return self._losses[key][0]

    def _of_network(self, spec: Spec) -> StepCount:
        if spec not in self._networks:
            self._networks[spec] = step_count_of(lambda batch: self._zoo.cost(spec, batch))
        return self._networks[spec]

    def _count(
        self, spec: Spec, loss: Loss, columns: Mapping[str, Column], spec_of: SpecOf
    ) -> tuple[StepCount, Loss | None]:
        """The count, and the loss without numbers: it holds the parts whose addresses are in the key."""
        try:
            held = without_numbers(loss, lambda net: self._zoo.probe(_known(spec_of, net), 1)[0])
            return count_step(lambda samples: self._zoo.probe(spec, samples), columns, held), held
        except Exception:  # whatever a loss of one's own does when numbers are not there
            return self._estimate(spec, loss, spec_of), None

    def _estimate(self, spec: Spec, loss: Loss, spec_of: SpecOf) -> StepCount:
        bare, (_, nets) = self._of_network(spec), held_tensors(loss)
        beside = sum(self._zoo.cost(known, 1).forward_flops for known in map(spec_of, nets) if known)
        return replace(bare, flops_per_sample=bare.flops_per_sample + beside)


def _known(spec_of: SpecOf, net: nn.Module) -> Spec:
    """The spec of a network; TypeError: the device did not build it."""
    if (spec := spec_of(net)) is None:
        raise TypeError("a network that the device did not build")
    return spec
