"""Width tiers, which HeteroFL, Federated Dropout and FedRolex share. They differ in which units a client trains.

Each tier trains a sub-model with its share of the units of every axis group. Sub-models are cut out of the server's
model and averaged back entry by entry; all clients have the same weight. As in HeteroFL (Diao et al., ICLR 2021), a
scaler divides the activations of a narrow layer by its width in training, and labels are masked. For static batch norm,
HeteroFL's code gathers statistics over the whole training set (``bn_eval = "everyone"``); FedRolex's code scores with
the test batch's own (``bn_eval = "batch"``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from potluck.core import Client, Facts, Reply, Round, SettingsError, Spec, Weight, Zoo, display_name
from potluck.methods.fedavg import RobustAveraging
from potluck.parts import WHOLE, Part, part


@dataclass(frozen=True)
class WidthTiers(RobustAveraging):
    """Clients train narrow sub-models of one server model, which may be wider than any of them."""

    weighting: Literal["uniform", "width", "samples", "updates", "updates_width"] = "uniform"  # type: ignore[assignment]
    """A client's weight in the mean: the same for all; its number of units in a layer; its number of samples. "updates"
    and "updates_width" are FedRolex's other two: the same as "uniform" and "width", because the number of times that an
    entry was updated is the same for all clients, so it cancels."""
    label_mask: bool = True
    rounding: Literal["ceil", "floor"] = "ceil"
    """How a share of a group's units is rounded: every released code rounds up, the FedRolex paper rounds down."""
    scaler: bool = True
    """Divide activations by the width in training, if the network has scaler layers. With a width for each axis
    group, a layer's outputs are divided by that of their own group."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, networks="width")

    def cut(self, spec: Spec, whole: Spec, client: Client, now: Round) -> Part:
        """Which units of the whole network this client trains this round, as a network of this spec."""
        raise NotImplementedError

    def assign(self, client: Client, now: Round) -> tuple[Spec, Part]:
        spec = self.narrow(client, now.zoo)
        held = self.cut(spec, now.zoo.shallow(now.zoo.full, client.tier.depth), client, now)
        return self.with_scaler(spec, client, now.zoo), held

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        spec = self.narrow(client, zoo)
        return spec, prefix(spec, zoo.shallow(zoo.full, client.tier.depth), zoo)

    def narrow(self, client: Client, zoo: Zoo) -> Spec:
        """The network of this client's width, rounded by `rounding`."""
        tier = client.tier
        if self.rounding == "ceil" or tier.width is None:
            return tier.spec
        whole = zoo.shallow(zoo.full, tier.depth).sizes
        ratios = tier.width if isinstance(tier.width, Mapping) else dict.fromkeys(whole, tier.width)
        sizes = {group: max(1, math.floor(size * ratios.get(group, 1.0) + 1e-9)) for group, size in whole.items()}
        return replace(tier.spec, sizes=sizes)

    def with_scaler(self, spec: Spec, client: Client, zoo: Zoo) -> Spec:
        """The network for training, with the scaler for its width, or for the width of each axis group."""
        width = client.tier.width
        if not self.scaler or width is None or width == 1 or "scaler" not in spec.options:
            return spec
        return zoo.scaled(spec, width if isinstance(width, Mapping) else float(width))

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        if self.weighting not in ("width", "updates_width"):
            return super().weigh(reply, zoo)
        arrays = reply.models["model"].arrays
        units = {name: float(tensor.shape[0]) if tensor.dim() else 1.0 for name, tensor in arrays.items()}
        return self.mask_weight(units, reply, zoo)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        for tier in zoo.tiers:
            base = zoo.shallow(zoo.full, tier.depth) if tier.spec.family == zoo.full.family else tier.spec
            if tier.spec.family != zoo.full.family or tier.spec.sizes.keys() != base.sizes.keys():
                raise SettingsError(
                    f"{display_name(self)} cuts every tier's network out of [model]; tier '{tier.name}' has a model "
                    "of its own. Give it a width instead."
                )


@lru_cache(maxsize=256)
def prefix(spec: Spec, whole: Spec, zoo: Zoo) -> Part:
    """The first units of every group: HeteroFL trains these, and every width method serves these."""
    if spec == whole == zoo.full:
        return WHOLE
    return part(zoo.axes(whole), lambda axis: range(spec.sizes[axis.group]), zoo.shapes(spec))
