"""Federated Dropout: every client trains a random sub-model: random units of every layer.

Caldas et al., "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements", 2018,
https://arxiv.org/abs/1812.07210. Units are drawn anew for each client and round, as in the FedRolex paper's baseline
(its Eq. 5). Caldas et al. share one draw among a round's clients: ``shared_per_round``. Tensors whose units must agree
(a residual stream) share one draw. The FedRolex code draws anew for every layer, so that the two sides of an identity
shortcut hold different channels: ``coupling = "none"`` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from potluck.core import Axis, Client, ContractSettings, Facts, Round, Spec
from potluck.methods.bases.width import WidthTiers
from potluck.parts import Part, index, part, place


@dataclass(frozen=True)
class FedDropout(WidthTiers):
    """Narrow clients train random units of every layer."""

    contract = ContractSettings(as_fedavg={"weighting": "samples", "label_mask": False})

    called: ClassVar[str] = "Federated Dropout"
    shared_per_round: bool = False
    """All clients of a round share one draw; the units of a narrow client are then a subset of a wide one's."""
    coupling: Literal["group", "none"] = "group"
    """group: one draw for all tensors of an axis group; none: a new draw for every layer."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, larger=True)

    def draw(self, axis: Axis, spec: Spec, client: Client, now: Round, what: str) -> Sequence[int]:
        """Random units of a group, in ascending order."""
        who = () if self.shared_per_round else (client.id,)
        order = torch.randperm(axis.size, generator=now.rng("dropout", what, *who))
        return sorted(order[: spec.sizes[axis.group]].tolist())

    def cut(self, spec: Spec, whole: Spec, client: Client, now: Round) -> Part:
        axes, names = now.zoo.axes(whole), now.zoo.shapes(spec)
        if self.coupling == "group":
            return part(axes, lambda axis: self.draw(axis, spec, client, now, axis.group), names)
        latest: dict[str, Sequence[int]] = {}
        places = {}
        for name in names:
            rows, *rest = axes[name] or (None,)
            columns = [index(axis, lambda axis: latest[axis.group]) for axis in rest]
            if isinstance(rows, Axis) and (rest or rows.group not in latest):
                latest[rows.group] = self.draw(rows, spec, client, now, name)
            places[name] = place(name, (index(rows, lambda axis: latest[axis.group]), *columns))
        return Part(places)
